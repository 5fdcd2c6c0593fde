"""The command line: `admeta`. A command is a few calls of `admeta.client`; those on the service itself load it."""

from __future__ import annotations

import sys


def main() -> None:
    """The console script."""
    from admeta.cli.app import run
    from admeta.cli.output import accept_any_encoding

    accept_any_encoding()
    sys.exit(run(sys.argv[1:]))
