"""The exit codes, for scripts. 0 is success; 2, wrong usage, is typer's."""

from __future__ import annotations

FAILED = 1
"""The service refused, or the study that was followed did not complete, or a check failed."""
UNREACHABLE = 3
"""No service answers."""
EXPIRED = 4
"""--timeout ran out; the study goes on."""
INTERRUPTED = 130
"""Ctrl-C."""
