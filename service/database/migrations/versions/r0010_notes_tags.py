"""Notes and tags of a study."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("admeta_studies", sa.Column("notes", sa.Text(), nullable=False, server_default=""))
    op.add_column("admeta_studies", sa.Column("tags", sa.Text(), nullable=False, server_default="[]"))


def downgrade() -> None:
    op.drop_column("admeta_studies", "tags")
    op.drop_column("admeta_studies", "notes")
