"""Studies, searches, runs, attempts and points.

Written with plain column types: a revision must not change when the code's own types do.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def _id() -> sa.types.TypeEngine[int]:
    return sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def _time() -> sa.DateTime:
    return sa.DateTime(timezone=True)


def upgrade() -> None:
    _create_studies()
    _create_searches()
    _create_runs()
    _create_attempts()
    _create_points()


def downgrade() -> None:
    for table in ("points", "attempts", "runs", "searches", "studies"):
        op.drop_table(f"admeta_{table}")


def _create_studies() -> None:
    op.create_table(
        "admeta_studies",
        sa.Column("id", sa.String(12), nullable=False),
        sa.Column("name", sa.String(100), nullable=False),
        sa.Column("task", sa.String(100), nullable=False),
        sa.Column("model", sa.String(200)),
        sa.Column("metric", sa.String(100), nullable=False),
        sa.Column("direction", sa.String(8), nullable=False),
        sa.Column("definition", sa.Text, nullable=False),
        sa.Column("definition_sha256", sa.String(64), nullable=False),
        sa.Column("priority", sa.Integer, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("reason", sa.Text),
        sa.Column("created_at", _time(), nullable=False),
        sa.Column("started_at", _time()),
        sa.Column("finished_at", _time()),
        sa.Column("lease_owner", sa.String(200)),
        sa.Column("lease_expires_at", _time()),
        sa.PrimaryKeyConstraint("id", name="pk_admeta_studies"),
        sa.UniqueConstraint("name", name="uq_admeta_studies_name"),
    )
    op.create_index("ix_admeta_studies_created_at_id", "admeta_studies", ["created_at", "id"])
    op.create_index(
        "ix_admeta_studies_state_priority_created_at", "admeta_studies", ["state", "priority", "created_at"]
    )
    op.create_index("ix_admeta_studies_task_metric", "admeta_studies", ["task", "metric"])


def _create_searches() -> None:
    op.create_table(
        "admeta_searches",
        sa.Column("id", _id(), nullable=False),
        sa.Column("study_id", sa.String(12), nullable=False),
        sa.Column("label", sa.String(100), nullable=False),
        sa.Column("position", sa.Integer, nullable=False),
        sa.Column("optimizer", sa.String(100), nullable=False),
        sa.Column("optuna_name", sa.String(250), nullable=False),
        sa.Column("fixed", sa.Text, nullable=False),
        sa.Column("n_trials", sa.Integer, nullable=False),
        sa.Column("n_confirm_runs", sa.Integer, nullable=False),
        sa.ForeignKeyConstraint(
            ["study_id"], ["admeta_studies.id"], name="fk_admeta_searches_study_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_admeta_searches"),
        sa.UniqueConstraint("optuna_name", name="uq_admeta_searches_optuna_name"),
        sa.UniqueConstraint("study_id", "label", name="uq_admeta_searches_study_id_label"),
    )
    op.create_index("ix_admeta_searches_optimizer_study_id", "admeta_searches", ["optimizer", "study_id"])


def _create_runs() -> None:
    op.create_table(
        "admeta_runs",
        sa.Column("id", _id(), nullable=False),
        sa.Column("search_id", _id(), nullable=False),
        sa.Column("trial_number", sa.Integer, nullable=False),
        sa.Column("stage", sa.String(16), nullable=False),
        sa.Column("seed", sa.BigInteger, nullable=False),
        sa.Column("params", sa.Text, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("n_failures", sa.Integer, nullable=False),
        sa.Column("epoch", sa.Integer, nullable=False),
        sa.Column("step", sa.BigInteger, nullable=False),
        sa.Column("value", sa.Double),
        sa.Column("failure", sa.String(16)),
        sa.Column("error", sa.Text),
        sa.Column("test_metrics", sa.Text, nullable=False),
        sa.Column("train_s", sa.Double, nullable=False),
        sa.Column("gpu_s", sa.Double, nullable=False),
        sa.Column("optimizer_s", sa.Double, nullable=False),
        sa.Column("created_at", _time(), nullable=False),
        sa.Column("started_at", _time()),
        sa.Column("finished_at", _time()),
        sa.ForeignKeyConstraint(
            ["search_id"], ["admeta_searches.id"], name="fk_admeta_runs_search_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_admeta_runs"),
        sa.UniqueConstraint(
            "search_id", "trial_number", "stage", "seed", name="uq_admeta_runs_search_id_trial_number_stage_seed"
        ),
    )
    op.create_index(
        "ix_admeta_runs_search_id_stage_state_value", "admeta_runs", ["search_id", "stage", "state", "value"]
    )
    unfinished = sa.text("state IN ('WAITING', 'RUNNING')")
    op.create_index(
        "ix_admeta_runs_unfinished",
        "admeta_runs",
        ["search_id"],
        sqlite_where=unfinished,
        postgresql_where=unfinished,
    )


def _create_attempts() -> None:
    op.create_table(
        "admeta_attempts",
        sa.Column("run_id", _id(), nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("owner", sa.String(200), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("node", sa.Text),
        sa.Column("pid", sa.BigInteger),
        sa.Column("device", sa.Text),
        sa.Column("environment", sa.Text),
        sa.Column("resumed_from_epoch", sa.Integer),
        sa.Column("error", sa.Text),
        sa.Column("started_at", _time(), nullable=False),
        sa.Column("finished_at", _time()),
        sa.ForeignKeyConstraint(["run_id"], ["admeta_runs.id"], name="fk_admeta_attempts_run_id", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "attempt", name="pk_admeta_attempts"),
    )


def _create_points() -> None:
    op.create_table(
        "admeta_points",
        sa.Column("run_id", _id(), nullable=False),
        sa.Column("epoch", sa.Integer, nullable=False),
        sa.Column("step", sa.BigInteger, nullable=False),
        sa.Column("value", sa.Double),
        sa.Column("metrics", sa.Text, nullable=False),
        sa.Column("lr", sa.Double),
        sa.Column("train_s", sa.Double, nullable=False),
        sa.Column("eval_s", sa.Double, nullable=False),
        sa.Column("optimizer_s", sa.Double, nullable=False),
        sa.Column("data_s", sa.Double, nullable=False),
        sa.Column("gpu_s", sa.Double, nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["admeta_runs.id"], name="fk_admeta_points_run_id", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "epoch", name="pk_admeta_points"),
        sqlite_with_rowid=False,
    )
