"""Preemption of a worker: SIGTERM, as spot capacity, `docker stop` and Kubernetes send it before they end a machine.

An epoch that ends within the grace period is saved. A longer one is interrupted, and its run goes on from its last
checkpoint on another worker. Both happen within 30 s.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

GRACE_S = 15.0
"""For the current epoch. Machines are ended 30 s after the signal or later, and saving takes time too."""


class PreemptedError(Exception):
    """The worker was told to stop, and its run waits for another worker. The run did not fail."""


class Preemption:
    """Handles SIGTERM while a run is open on the main thread. Python handles no signals on other threads.

    Attributes:
        requested: whether the signal has come.
    """

    def __init__(self, *, grace_s: float = GRACE_S) -> None:
        self.requested = False
        self._grace_s = grace_s
        self._before: dict[signal.Signals, Any] | None = None

    def listen(self) -> None:
        """Handle SIGTERM until `stop_listening`."""
        if threading.current_thread() is threading.main_thread() and self._before is None:
            self._before = {
                signal.SIGTERM: signal.signal(signal.SIGTERM, self._request),
                signal.SIGALRM: signal.signal(signal.SIGALRM, self._interrupt),
            }

    def stop_listening(self) -> None:
        """Put back the handlers that were there before."""
        if self._before is not None:
            signal.setitimer(signal.ITIMER_REAL, 0)
            for number, handler in self._before.items():
                signal.signal(number, handler)
            self._before = None

    @contextmanager
    def may_interrupt(self) -> Iterator[None]:
        """A block that may be interrupted at the end of the grace period: training. Saving, which follows, may not."""
        try:
            yield
        finally:
            if self._before is not None:
                signal.setitimer(signal.ITIMER_REAL, 0)

    def _request(self, number: int, frame: object) -> None:
        self.requested = True
        signal.setitimer(signal.ITIMER_REAL, self._grace_s)

    def _interrupt(self, number: int, frame: object) -> None:
        raise PreemptedError(
            f"the worker was told to stop (SIGTERM), and its epoch took longer than the {self._grace_s:g} s left; "
            "the run goes on from its last checkpoint"
        )
