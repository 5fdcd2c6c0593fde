"""Stores answers as they were sent, without tokens. Earlier ones were encrypted with the request's key."""

from __future__ import annotations

from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("DELETE FROM admeta_answers")
    op.execute("ALTER TABLE admeta_answers RENAME COLUMN sealed TO answer")


def downgrade() -> None:
    op.execute("DELETE FROM admeta_answers")
    op.execute("ALTER TABLE admeta_answers RENAME COLUMN answer TO sealed")
