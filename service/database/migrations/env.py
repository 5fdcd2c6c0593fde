"""Run by Alembic: migrates the connection that `service.database.schema` puts into the configuration."""

from __future__ import annotations

from typing import Any

from alembic import context

from service.database.models import Base
from service.database.schema import TABLE_PREFIX, VERSION_TABLE


def _is_ours(name: str | None, kind: str, _parents: Any) -> bool:
    """Leave Optuna's tables alone when a new revision is generated."""
    return kind != "table" or (name or "").startswith(TABLE_PREFIX)


context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    version_table=VERSION_TABLE,
    include_name=_is_ours,
    render_as_batch=True,  # SQLite changes a column by copying its table
    compare_type=True,
)
context.run_migrations()
