"""The command line: `admeta`. A command is a few calls of `admeta.client`; those on the service itself load it."""

from __future__ import annotations

import sys


def main() -> None:
    """The console script."""
    from admeta.cli.app import run

    sys.exit(run(sys.argv[1:]))
