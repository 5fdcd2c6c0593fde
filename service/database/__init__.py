"""The SQL truth: our tables and Optuna's in one database, SQLite or PostgreSQL.

schema      make and upgrade the tables (`prepare`)
engine      connections; `store` the driver's side of them, `optuna_storage` Optuna's
studies     what requests change
queries     what requests read
retry       repeats calls while the database cannot be used
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from service.database.engine import make_engine
    from service.database.schema import prepare
    from service.database.store import SqlStore

__all__ = ["SqlStore", "make_engine", "prepare"]

_HOME = {"SqlStore": "store", "make_engine": "engine", "prepare": "schema"}


def __getattr__(name: str) -> object:
    """Import on first use: a command that only connects needs neither Optuna nor SciPy."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
