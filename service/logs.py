"""Log lines: as text or as JSON objects, with the fields of their context (`about`), and without secrets.

A line may contain a secret by accident, for example in an exception's message, so secrets are masked in every line.
"""

from __future__ import annotations

import copy
import json
import logging
import logging.handlers
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from admeta.client.text import without_secrets
from service.settings import LogFormat

_TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_FILE_BYTES = 10_000_000
_MAX_LINES = 1000  # that are remembered, to detect repetitions
_context: ContextVar[Mapping[str, object]] = ContextVar("log_context", default={})  # noqa: B039  (never changed)


@contextmanager
def about(**fields: object) -> Iterator[None]:
    """Add fields to the lines that are logged inside: `study`, `trial`, `request`, …"""
    token = _context.set({**_context.get(), **fields})
    try:
        yield
    finally:
        _context.reset(token)


class TextFormatter(logging.Formatter):
    """Lines of text with times in UTC; fields that the message does not contain follow in brackets."""

    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"

    def __init__(self) -> None:
        super().__init__(_TEXT)
        self.converter = time.gmtime

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  (logging's name)
        """The line, before any traceback."""
        line = super().formatMessage(record)
        unsaid = {name: value for name, value in _fields(record).items() if not _says(line, value)}
        return f"{line} [{' '.join(f'{name}={value}' for name, value in unsaid.items())}]" if unsaid else line

    def format(self, record: logging.LogRecord) -> str:
        """The whole entry."""
        return without_secrets(super().format(record))


class JsonFormatter(logging.Formatter):
    """Lines that are JSON objects: time, level, logger, message, the fields, and the traceback if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        """The whole entry, on one line."""
        entry: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        shown = {name: without_secrets(value) if isinstance(value, str) else value for name, value in entry.items()}
        return json.dumps(shown, ensure_ascii=False, default=str)


def configure(path: Path, *, format: LogFormat, console: bool) -> None:
    """Send the process's log to a rotated file and, with `console`, to stderr."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handlers: list[logging.Handler] = [
        logging.handlers.RotatingFileHandler(path, maxBytes=_FILE_BYTES, backupCount=3, encoding="utf-8")
    ]
    if console:
        handlers.append(logging.StreamHandler())
    for handler in handlers:
        handler.setFormatter(JsonFormatter() if format is LogFormat.JSON else TextFormatter())
        handler.addFilter(Repeats(partial(_write, handler)))
    logging.basicConfig(level=logging.INFO, handlers=handlers, force=True)
    for name in ("uvicorn", "alembic", "httpx"):
        logging.getLogger(name).setLevel(logging.WARNING)
    # Ray warns that it sets no SIGTERM handler in a thread: uvicorn or the demo handles the process's signals.
    logging.getLogger("ray._private.worker").setLevel(logging.ERROR)


def driver_log(home: Path, study_id: str) -> Path:
    """The log file of a study's driver: under the service's home, on the host where the driver runs (Ray's head)."""
    return home / "logs" / "drivers" / f"{study_id}.log"


def configure_driver(study_id: str, *, home: Path, format: LogFormat) -> None:
    """Send the log of a driver's process to its file. If that cannot be written, the driver runs without a log."""
    try:
        configure(driver_log(home, study_id), format=format, console=False)
    except OSError as error:
        logging.getLogger(__name__).warning("study %s: its driver keeps no log: %s", study_id, error)
        return
    for handler in logging.getLogger().handlers:
        handler.addFilter(_About({"study": study_id}))  # threads do not share a context


class _About(logging.Filter):
    """Passes all lines, with these fields added."""

    def __init__(self, fields: Mapping[str, object]) -> None:
        super().__init__()
        self._about = fields

    def filter(self, record: logging.LogRecord) -> bool:
        """Add the fields."""
        record.about = {**self._about, **getattr(record, "about", {})}
        return True


class Repeats(logging.Filter):
    """Passes a line once in `every_s`. The next line after that says how often it was repeated, as `repeated`.

    A fault that repeats a thousand times a second, such as connections refused for lack of file descriptors, would
    otherwise rotate everything else out of the log.

    Args:
        write: writes a line that was repeated, when another line comes later.
    """

    def __init__(
        self,
        write: Callable[[logging.LogRecord], object],
        *,
        every_s: float = 30.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self._write = write
        self._every_s = every_s
        self._clock = clock
        self._lock = threading.Lock()
        self._passed: OrderedDict[tuple[object, ...], _Passed] = OrderedDict()

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the line is written."""
        kind = record.exc_info[0] if record.exc_info else None
        fields = _fields(record)
        line = (record.name, record.levelno, record.getMessage(), kind, str(fields))
        ended: list[_Passed] = []
        with self._lock:
            now = self._clock()
            while self._passed and (
                now - next(iter(self._passed.values())).at >= self._every_s or len(self._passed) > _MAX_LINES
            ):
                ended.append(self._passed.popitem(last=False)[1])
            known = self._passed.get(line)
            if known is None:
                self._passed[line] = _Passed(now)
            else:
                known.n_repeated += 1
                known.record = copy.copy(record)
                known.record.about = {**fields, "repeated": known.n_repeated}
                known.record.exc_info = None  # a traceback keeps everything alive that its frames hold
        for passed in ended:
            if passed.record is not None:
                self._write(passed.record)
        return known is None


def _write(handler: logging.Handler, record: logging.LogRecord) -> None:
    """Write a line about an earlier moment, without the context of the present one."""
    token = _context.set({})
    handler.acquire()
    try:
        handler.emit(record)
    finally:
        handler.release()
        _context.reset(token)


@dataclass
class _Passed:
    """A line that was written: when, how often it was repeated since, and the newest repetition."""

    at: float
    n_repeated: int = 0
    record: logging.LogRecord | None = None


def _fields(record: logging.LogRecord) -> dict[str, object]:
    """A line's fields: those of its context, then those given with `extra={"about": {…}}`."""
    return {**_context.get(), **getattr(record, "about", {})}


def _says(line: str, value: object) -> bool:
    return isinstance(value, str) and value in line
