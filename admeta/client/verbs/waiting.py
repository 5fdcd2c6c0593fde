"""Waiting for a study to end: asks for changes only, and outlives a service that is started again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypedDict, TypeVar

import httpx

from admeta.client.errors import ClientError
from admeta.client.exchange import exchange, parse, part
from admeta.client.models import StudyView
from admeta.client.patience import Patience
from admeta.client.wire import Flow, Now, Request, Sleep

T = TypeVar("T")
TERMINAL_STATES = frozenset({"COMPLETED", "FAILED", "CANCELLED"})
_ABSENT_PAUSE_S = 2.0


class WaitOptions(TypedDict, total=False):
    """How to wait; what each means is said at `wait`."""

    progress: bool
    poll_s: float
    timeout_s: float | None
    patience_s: float
    on_update: Callable[[StudyView], None] | None
    on_absence: Callable[[ClientError], None] | None


def wait(
    study: str,
    *,
    progress: bool = False,
    poll_s: float = 1.0,
    timeout_s: float | None = None,
    patience_s: float = 60.0,
    on_update: Callable[[StudyView], None] | None = None,
    on_absence: Callable[[ClientError], None] | None = None,
) -> Flow[StudyView]:
    """The study once it is COMPLETED, FAILED or CANCELLED.

    Args:
        study: id or name.
        progress: show a bar an optimizer on stderr, or lines where that is no terminal.
        poll_s: seconds between two looks.
        timeout_s: patience with the study; None: as long as it takes.
        patience_s: how long the service may be away, once it has answered.
        on_update: told the study at every look that shows a change.
        on_absence: told when the service goes away, once each time.

    Raises:
        TimeoutError: the study has not ended in time.
        ClientError: the service refused, or stayed away.
    """
    if not progress:
        watch = _Watch(on_update or _ignore, on_absence or _ignore)
        return (yield from _wait(study, watch, poll_s=poll_s, timeout_s=timeout_s, patience_s=patience_s))
    from admeta.client.terminal.progress import shown

    with shown() as display:
        watch = _Watch(_both(display.show, on_update), _both(display.away, on_absence))
        return (yield from _wait(study, watch, poll_s=poll_s, timeout_s=timeout_s, patience_s=patience_s))


@dataclass(frozen=True)
class _Watch:
    on_update: Callable[[StudyView], None]
    on_absence: Callable[[ClientError], None]


def _wait(study: str, watch: _Watch, *, poll_s: float, timeout_s: float | None, patience_s: float) -> Flow[StudyView]:
    state, tag, is_away = "unknown", "", False
    patience = Patience(patience_s)
    started = yield Now()
    while True:
        pause_s = poll_s
        try:
            response = yield from exchange(_look(study, tag))
        except ClientError as error:
            now = yield from patience.bear(error)
            if not is_away:
                watch.on_absence(error)
            is_away, pause_s = True, max(poll_s, _ABSENT_PAUSE_S)
        else:
            now = yield from patience.hear()
            is_away = False
            if response.status_code != httpx.codes.NOT_MODIFIED:
                view, tag = parse(StudyView, response), response.headers.get("ETag", "")
                state = view.state
                watch.on_update(view)
                if state in TERMINAL_STATES:
                    return view
        if timeout_s is not None:
            left_s = started + timeout_s - now
            if left_s <= 0:
                raise TimeoutError(f"study '{study}' is still {state} after {timeout_s:g} s")
            pause_s = min(pause_s, left_s)
        yield Sleep(pause_s)


def _look(study: str, tag: str) -> Request:
    headers = {"If-None-Match": tag} if tag else {}
    return Request(method="GET", path=f"/v1/studies/{part(study)}", headers=headers)


def _ignore(_told: object) -> None:
    pass


def _both(first: Callable[[T], None], second: Callable[[T], None] | None) -> Callable[[T], None]:
    def tell(told: T) -> None:
        first(told)
        if second is not None:
            second(told)

    return tell
