"""A study's data as its recipe has them: a fingerprint of the files. Studies before this release keep their recipe."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("admeta_studies", sa.Column("data_fingerprint", sa.String(64), nullable=True))


def downgrade() -> None:
    op.drop_column("admeta_studies", "data_fingerprint")
