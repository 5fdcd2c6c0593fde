"""An index over the confirm runs, which are few and read by many pages."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    confirms = sa.text("stage = 'confirm'")
    op.create_index(
        "ix_admeta_runs_confirm",
        "admeta_runs",
        ["search_id", "trial_number", "state", "value"],
        sqlite_where=confirms,
        postgresql_where=confirms,
    )


def downgrade() -> None:
    op.drop_index("ix_admeta_runs_confirm", table_name="admeta_runs")
