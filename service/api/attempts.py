"""How many wrong tokens an address may send: a few a minute, then none are looked at for a while."""

from __future__ import annotations

import ipaddress
import time
from collections import OrderedDict, deque
from collections.abc import Callable

MAX_ADDRESSES = 10_000


class FailureLimit:
    """Counts the failures of each address over a sliding window. Lives in one process, on its event loop.

    Args:
        max_failures: so many within the window, and the address has to wait.
        window_s: seconds after which a failure no longer counts.
        clock: seconds from any origin, monotonic.
    """

    def __init__(
        self, *, max_failures: int = 10, window_s: float = 60.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.max_failures = max_failures
        self.window_s = window_s
        self._clock = clock
        self._failures: OrderedDict[str, deque[float]] = OrderedDict()

    def wait_s(self, address: str) -> float:
        """Seconds until the address may try again; 0 where it may now."""
        times = self._recent(_network(address))
        if len(times) < self.max_failures:
            return 0.0
        return times[0] + self.window_s - self._clock()

    def count(self, address: str) -> int:
        """Add a failure; how many there are now within the window."""
        network = _network(address)
        times = self._recent(network)
        times.append(self._clock())
        self._failures[network] = times
        self._failures.move_to_end(network)
        while len(self._failures) > MAX_ADDRESSES:
            self._failures.popitem(last=False)
        return len(times)

    def _recent(self, network: str) -> deque[float]:
        times = self._failures.get(network)
        if times is None:
            return deque(maxlen=self.max_failures)
        while times and times[0] <= self._clock() - self.window_s:
            times.popleft()
        return times


def _network(address: str) -> str:
    """What one party holds: an IPv4 address, or the /64 of an IPv6 one, within which addresses cost nothing."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    if parsed.version == 6:
        return str(ipaddress.ip_network((parsed, 64), strict=False))
    return address
