"""The errors of this package: those of the client, which it shares, and one more.

    ServiceError
    ├── SettingsError    an environment variable or a flag that cannot be used
    ├── StudyFileError   a study file that cannot be read
    └── ClientError      the service refused a request, or could not be reached

What the server answers is in `service.api.errors`.
"""

from admeta.client.errors import ClientError, ServiceError, StudyFileError

__all__ = ["ClientError", "ServiceError", "SettingsError", "StudyFileError"]


class SettingsError(ServiceError):
    """A setting cannot be used."""
