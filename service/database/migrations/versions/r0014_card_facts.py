"""What runs of a task found out about a kind of card: how many of them share one best."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "admeta_card_facts",
        sa.Column("task_shape", sa.String(64), nullable=False),
        sa.Column("card", sa.String(100), nullable=False),
        sa.Column("n_at_once", sa.Integer(), nullable=False),
        sa.Column("is_settled", sa.Boolean(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("totals", sa.Text(), nullable=False),
        sa.Column("memory_bytes", sa.BigInteger(), nullable=False),
        sa.Column("card_bytes", sa.BigInteger(), nullable=False),
        sa.Column("release", sa.Text(), nullable=False),
        sa.Column("found_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("task_shape", "card", name=op.f("pk_admeta_card_facts")),
    )


def downgrade() -> None:
    op.drop_table("admeta_card_facts")
