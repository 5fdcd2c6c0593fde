"""The command line: `admeta`. A command is a few calls of `service.client`; those on the service itself load it."""

from __future__ import annotations

import sys


def main() -> None:
    """The console script."""
    from service.cli.app import run

    sys.exit(run(sys.argv[1:]))
