"""Epochs that a run trained in all its attempts; for earlier runs, the points of their curves."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("admeta_runs", sa.Column("n_epochs", sa.Integer, nullable=False, server_default=sa.text("0")))
    runs = sa.table("admeta_runs", sa.column("n_epochs"), sa.column("epoch"), sa.column("attempt"))
    op.execute(sa.update(runs).where(runs.c.attempt > 0).values(n_epochs=runs.c.epoch))


def downgrade() -> None:
    op.drop_column("admeta_runs", "n_epochs")
