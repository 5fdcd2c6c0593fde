"""The peak memory of a run and of each of its evaluations; 0 for earlier runs, which did not store it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

_TABLES = ("admeta_runs", "admeta_points")


def upgrade() -> None:
    for table in _TABLES:
        column = sa.Column("peak_memory_bytes", sa.BigInteger, nullable=False, server_default=sa.text("0"))
        op.add_column(table, column)


def downgrade() -> None:
    for table in _TABLES:
        op.drop_column(table, "peak_memory_bytes")
