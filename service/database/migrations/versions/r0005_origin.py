"""What a study's training starts from, so that results of fresh and of trained weights are kept apart."""

from __future__ import annotations

import json

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("admeta_studies", sa.Column("origin", sa.Text(), nullable=True))
    studies = sa.table("admeta_studies", sa.column("id"), sa.column("definition"), sa.column("origin"))
    connection = op.get_bind()
    for study_id, definition in connection.execute(sa.select(studies.c.id, studies.c.definition)).all():
        origin = json.loads(definition).get("task", {}).get("init_from")
        if origin is not None:
            text = origin if isinstance(origin, str) else "{study}/{optimizer}/{trial}".format(**origin)
            connection.execute(sa.update(studies).where(studies.c.id == study_id).values(origin=text))


def downgrade() -> None:
    op.drop_column("admeta_studies", "origin")
