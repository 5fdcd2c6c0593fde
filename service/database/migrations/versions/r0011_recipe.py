"""A study's recipe and its epochs: which results may be compared with its own."""

from __future__ import annotations

import json

import sqlalchemy as sa
from alembic import op
from pydantic import ValidationError

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    from search.definition import StudyDefinition  # takes 0.3 s, and `admeta db current` needs none
    from search.recipe import recipe_of

    op.add_column("admeta_studies", sa.Column("recipe", sa.String(64), nullable=True))
    op.add_column("admeta_studies", sa.Column("epochs", sa.Integer(), nullable=True))
    names = ("id", "definition", "recipe", "epochs")
    studies = sa.table("admeta_studies", *(sa.column(name) for name in names))
    connection = op.get_bind()
    for study_id, content in connection.execute(sa.select(studies.c.id, studies.c.definition)).all():
        try:
            definition = StudyDefinition.model_validate(json.loads(content))
        except ValidationError:  # of a release whose definitions this one cannot read
            continue
        values = {"recipe": recipe_of(definition), "epochs": definition.task.epochs}
        connection.execute(sa.update(studies).where(studies.c.id == study_id).values(**values))


def downgrade() -> None:
    op.drop_column("admeta_studies", "epochs")
    op.drop_column("admeta_studies", "recipe")
