"""How a driver stops its study's runs: paused, cancelled, or after an error. Imports nothing of Ray Tune."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

SAVE_S = 600.0
"""For which the workers of a study that is paused may write their checkpoints, on a slow storage; then they are killed.
"""
END_S = 10
"""For which other workers may end. One whose run was cancelled may be in a long step."""


class StopSwitch:
    """Ends the experiment: at once after `throw`; after `drain` each run stops at its next evaluation.

    Attributes:
        error: what the coordinator raised first; the driver raises it again once Tune has ended.
    """

    def __init__(self) -> None:
        self.error: BaseException | None = None
        self._draining = threading.Event()
        self._thrown = threading.Event()

    @property
    def is_draining(self) -> bool:
        return self._draining.is_set()

    @property
    def is_thrown(self) -> bool:
        """Whether the experiment ends now."""
        return self._thrown.is_set()

    @property
    def is_stopping(self) -> bool:
        """Whether no further run may start."""
        return self.is_draining or self.is_thrown

    def drain(self) -> None:
        self._draining.set()

    def throw(self, error: BaseException | None = None) -> None:
        if self.error is None:
            self.error = error
        self._thrown.set()

    def guard(self, call: Callable[[], T], *, default: T) -> T:
        """The call's result; the default if it raises, or if an earlier one raised.

        What it raises is kept for the driver: Tune would log it, wrap it, or count it as the run's failure.
        """
        if self.error is None:
            try:
                return call()
            except BaseException as error:  # noqa: BLE001 - the driver raises it again
                self.throw(error)
        return default

    def end_s(self) -> float:
        """Seconds that workers have to end."""
        return SAVE_S if self.is_draining and not self.is_thrown else END_S
