"""From which earlier trials a warm start took a run's settings. Runs of before name none."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("admeta_runs", sa.Column("taken_from", sa.Text(), nullable=False, server_default="[]"))


def downgrade() -> None:
    op.drop_column("admeta_runs", "taken_from")
