"""What each run of a study holds, as its driver tells it. Studies of before have none until their next driver."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("admeta_studies", sa.Column("run_cpus", sa.Double(), nullable=True))
    op.add_column("admeta_studies", sa.Column("run_gpus", sa.Double(), nullable=True))


def downgrade() -> None:
    op.drop_column("admeta_studies", "run_gpus")
    op.drop_column("admeta_studies", "run_cpus")
