"""Adds a run's seconds of evaluation and of waiting for data; for earlier runs they are summed from their curves."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

_NAMES = ("eval_s", "data_s")


def upgrade() -> None:
    for name in _NAMES:
        op.add_column("admeta_runs", sa.Column(name, sa.Double, nullable=False, server_default=sa.text("0")))
    runs = sa.table("admeta_runs", sa.column("id"), *(sa.column(name) for name in _NAMES))
    points = sa.table("admeta_points", sa.column("run_id"), *(sa.column(name) for name in _NAMES))
    sums = {
        name: sa.select(sa.func.coalesce(sa.func.sum(points.c[name]), 0.0))
        .where(points.c.run_id == runs.c.id)
        .scalar_subquery()
        for name in _NAMES
    }
    op.execute(sa.update(runs).values(sums))


def downgrade() -> None:
    for name in _NAMES:
        op.drop_column("admeta_runs", name)
