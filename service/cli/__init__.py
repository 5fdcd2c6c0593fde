"""Commands that work on the service itself and not through REST: serve, worker, demo, db, token.

The command line is `admeta.cli`, which loads these when they are called.
"""

from admeta.cli import main

__all__ = ["main"]
