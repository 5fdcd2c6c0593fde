"""The command line: `admeta`. Most commands are a few calls of `admeta.client`; the others load the service."""

from __future__ import annotations

import sys


def main() -> None:
    """The console script."""
    from admeta.cli.app import run
    from admeta.cli.output import accept_any_encoding

    accept_any_encoding()
    sys.exit(run(sys.argv[1:]))
