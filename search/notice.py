"""A worker's notice that its machine is about to go: SIGTERM, as spot capacity, `docker stop` and Kubernetes send it.

Owns the signal while a run is open. The run's epoch may end within the grace, and is then saved; one that is longer is
cut off, and the run goes on elsewhere from its last checkpoint. Either way the run is given back within 30 s.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

GRACE_S = 15.0
"""For the epoch that runs: machines are taken away 30 s after their notice or later, and saving takes time too."""


class GivenBackError(Exception):
    """The worker was told to stop, and its run waits for another: no fault of the run's."""


class Notice:
    """Heeds SIGTERM while a run is open on this process's main thread; elsewhere Python cannot, and it is left alone.

    Attributes:
        came: whether the signal has come.
    """

    def __init__(self, *, grace_s: float = GRACE_S) -> None:
        self.came = False
        self._grace_s = grace_s
        self._before: dict[signal.Signals, Any] | None = None

    def heed(self) -> None:
        """From now on SIGTERM is a notice, until `forget`."""
        if threading.current_thread() is threading.main_thread() and self._before is None:
            self._before = {
                signal.SIGTERM: signal.signal(signal.SIGTERM, self._told),
                signal.SIGALRM: signal.signal(signal.SIGALRM, self._cut_off),
            }

    def forget(self) -> None:
        """The signals are again whose they were."""
        if self._before is not None:
            signal.setitimer(signal.ITIMER_REAL, 0)
            for number, handler in self._before.items():
                signal.signal(number, handler)
            self._before = None

    @contextmanager
    def in_time(self) -> Iterator[None]:
        """What may be cut off, training that is. What follows in the same step, saving that is, may not."""
        try:
            yield
        finally:
            if self._before is not None:
                signal.setitimer(signal.ITIMER_REAL, 0)

    def _told(self, number: int, frame: object) -> None:
        self.came = True
        signal.setitimer(signal.ITIMER_REAL, self._grace_s)

    def _cut_off(self, number: int, frame: object) -> None:
        raise GivenBackError(
            f"the worker was told to stop (SIGTERM), and its epoch took longer than the {self._grace_s:g} s left; "
            "the run goes on from its last checkpoint"
        )
