"""How much one service takes on: queued studies, running studies, trials of a study, bytes of a body.

Owns the limits and the sentences that tell them. Where they are asked for is the routes' and the supervisor's business.
Imports no server: the settings hold a `Quotas`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from service.errors import SettingsError


@dataclass(frozen=True, kw_only=True)
class Quotas:
    """Limits, each at least 1. A study that is over `max_running` waits; whatever is over another limit is refused.

    Attributes:
        max_queued: studies that wait for their turn, over the whole database; one more gets 429.
        max_running: studies that this service drives at a time.
        max_trials: trials and confirm runs of one study, over all its optimizers; more get 422.
        max_body_bytes: of a request; more get 413.
    """

    max_queued: int = 1000
    max_running: int = 4
    max_trials: int = 100_000
    max_body_bytes: int = 1 << 20

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value < 1:
                raise SettingsError(
                    f"{field.name} = {value} must be at least 1.",
                    hint=f"Set {variable(field.name)} to a whole number from 1 on, or leave it out.",
                )


def variable(name: str) -> str:
    """The environment variable of a limit: ADMETA_MAX_QUEUED, …"""
    return f"ADMETA_{name.upper()}"


def load(environ: Mapping[str, str], **flags: int | None) -> Quotas:
    """The limits from flags, where None from the environment, where unset the defaults.

    Raises:
        SettingsError: a value is no whole number from 1 on.
    """
    values: dict[str, int] = {}
    for field in fields(Quotas):
        flag, text = flags.get(field.name), environ.get(variable(field.name))
        if flag is not None:
            values[field.name] = flag
        elif text:
            values[field.name] = _whole(field.name, text)
    return Quotas(**values)


def _whole(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise SettingsError(
            f"{variable(name)} = '{text}' is no whole number.", hint="For example 1000; leave it out for the default."
        ) from None
