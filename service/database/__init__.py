"""The SQL truth: our tables and Optuna's in one database, SQLite or PostgreSQL.

schema      make and upgrade the tables (`prepare`)
engine      connections; `store` the driver's side of them, `optuna_storage` Optuna's
studies     what requests change
queries     what requests read
retry       repeats calls while the database cannot be used
"""

from service.database.engine import make_engine
from service.database.schema import prepare
from service.database.store import SqlStore

__all__ = ["SqlStore", "make_engine", "prepare"]
