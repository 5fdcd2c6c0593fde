"""What tests may ask of the machine: nothing of its speed. Waits are of minutes, and work is compared with work."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable

PATIENCE_S = 400.0
"""How long to wait for what comes at once on an idle machine."""
_UNIT = json.dumps([{f"a{i}": [i, i / 3, "x" * i] for i in range(40)} for _ in range(220)])


def wait_until(
    condition: Callable[[], bool], *, what: str, timeout_s: float = PATIENCE_S, poll_s: float = 0.05
) -> float:
    """Seconds until the condition held.

    Raises:
        TimeoutError: it never did; the message says what was awaited.
    """
    begin = time.monotonic()
    while not condition():
        if time.monotonic() - begin > timeout_s:
            raise TimeoutError(f"after {timeout_s:g} s still waiting until {what}")
        time.sleep(poll_s)
    return time.monotonic() - begin


async def until(condition: Callable[[], bool]) -> None:
    """Let the event loop's other tasks run until the condition holds."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.001)


def unit_s() -> float:
    """CPU seconds that a fixed piece of work takes now; 0.005 where the bounds of the tests were set."""

    def once() -> float:
        began = time.thread_time()
        json.loads(_UNIT)
        return time.thread_time() - began

    return min(once(), once())
