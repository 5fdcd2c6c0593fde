"""The errors of the database layer.

    ServiceError
    └── DatabaseError
        ├── DatabaseUrlError          the URL names no database that we can use
        ├── DatabaseVersionError      the tables are older or newer than this code
        ├── DatabaseUnavailableError  the database could not be read or written in the time given
        │   └── DatabaseFileError     the SQLite file was deleted, replaced or damaged while in use
        ├── InvalidCursorError        a page cursor that no list gave out
        ├── TrialNotFoundError        the study has no such trial
        ├── RunNotFoundError          no run has this id, or not so many attempts
        ├── NoProfileError            no study of those chosen has such an optimizer or recipe
        ├── TokenNotFoundError        no access token has this id
        ├── QueueFullError            as many studies are queued as the service takes
        └── KeyReusedError            an Idempotency-Key that came with another request before

`StudyNotFoundError`, `StudyConflictError` and `LeaseLostError` are `search.errors`: the driver knows them too.
"""

from admeta.client.errors import ServiceError
from search.errors import SearchError, StudyNotFoundError

RESTORE_HINT = (
    "Stop the service, put a backup in the file's place, remove the old file's -wal and -shm files, and start the "
    "service again."
)


class DatabaseError(ServiceError):
    """Base of the errors of `service.database`."""


class DatabaseUrlError(DatabaseError):
    """The URL cannot be parsed, or names a kind of database that is not supported."""


class DatabaseVersionError(DatabaseError):
    """The tables in the database are not those of this code."""


class DatabaseUnavailableError(DatabaseError):
    """The database could not be read or written for as long as the caller was willing to wait."""


class DatabaseFileError(DatabaseUnavailableError):
    """The SQLite file was deleted, replaced or damaged while it was in use. Waiting does not help."""


class InvalidCursorError(DatabaseError, SearchError):
    """The cursor was not given out by this list."""


class TrialNotFoundError(DatabaseError, StudyNotFoundError):
    """The study is there, but has no such search, trial or run."""


class RunNotFoundError(DatabaseError):
    """No run has this id, or it has no such attempt."""


class NoProfileError(DatabaseError):
    """None of the studies that a comparison across tasks was asked of has this optimizer or recipe."""


class TokenNotFoundError(DatabaseError):
    """No access token has this id."""


class QueueFullError(DatabaseError):
    """As many studies are queued as the service takes."""


class KeyReusedError(DatabaseError):
    """An Idempotency-Key came with another request before."""
