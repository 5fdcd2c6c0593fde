"""Answers to requests that carried an Idempotency-Key."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "admeta_answers",
        sa.Column("caller", sa.String(12), nullable=False),
        sa.Column("key_sha256", sa.String(64), nullable=False),
        sa.Column("request_sha256", sa.String(64), nullable=False),
        sa.Column("sealed", sa.Text, nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("caller", "key_sha256", name="pk_admeta_answers"),
    )
    op.create_index("ix_admeta_answers_created_at", "admeta_answers", ["created_at"])


def downgrade() -> None:
    op.drop_table("admeta_answers")
