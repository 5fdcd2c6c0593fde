"""The errors of the client and of every command.

ServiceError
├── StudyFileError   a study file that cannot be read
└── ClientError      the service refused a request, or could not be reached
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from admeta.client.text import without_secrets

if TYPE_CHECKING:
    from admeta.client.models import FieldError


class ServiceError(Exception):
    """Base of every error that this package raises on purpose: what is wrong, and the next step.

    Attributes:
        detail: what is wrong, with the value and the rule; without secrets, such as the password of an address.
        hint: what to do next.
    """

    def __init__(self, detail: str, *, hint: str) -> None:
        self.detail = without_secrets(detail)
        self.hint = without_secrets(hint)
        super().__init__(f"{self.detail} {self.hint}")


class StudyFileError(ServiceError):
    """A study file is missing, is not YAML, or holds something that JSON cannot say."""


class ClientError(ServiceError):
    """The service refused a request, or could not be reached.

    Attributes:
        status: the HTTP status; None where no answer came.
        error: the machine-readable name, as `study_not_found`; `unreachable` where no answer came.
        fields: the fields at fault, where a study definition was refused.
        retry_after_s: seconds after which the service asks to try again; None where it does not.
    """

    def __init__(
        self,
        detail: str,
        *,
        hint: str,
        status: int | None,
        error: str,
        fields: Sequence[FieldError] = (),
        retry_after_s: float | None = None,
    ) -> None:
        self.status = status
        self.error = error
        self.retry_after_s = retry_after_s
        self.fields = tuple(fields)
        super().__init__(detail, hint=hint)
