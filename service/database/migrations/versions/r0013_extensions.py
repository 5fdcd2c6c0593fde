"""How a study was extended after its end. Studies that never were have an empty list."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("admeta_studies", sa.Column("extensions", sa.Text(), nullable=False, server_default="[]"))


def downgrade() -> None:
    op.drop_column("admeta_studies", "extensions")
