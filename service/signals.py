"""Keep this process's own signal handling while a library installs its own.

Ray's core replaces the C-level handler of SIGTERM with one that prints a stack and ends the process, which cuts short
the orderly stop that uvicorn had set up. Python can set handlers from its main thread only, C from any.
"""

from __future__ import annotations

import ctypes
import signal
from collections.abc import Iterator
from contextlib import contextmanager

_SIGACTION_BYTES = 512  # struct sigaction is 152 bytes on Linux, 16 on macOS; only ever copied whole


@contextmanager
def handlers_kept(*signals: signal.Signals) -> Iterator[None]:
    """Put back the C-level handlers of these signals at the end of the block."""
    libc = ctypes.CDLL(None, use_errno=True)
    kept = {number: ctypes.create_string_buffer(_SIGACTION_BYTES) for number in signals}
    for number, action in kept.items():
        libc.sigaction(int(number), None, action)
    try:
        yield
    finally:
        for number, action in kept.items():
            libc.sigaction(int(number), action, None)
