"""A database as years of use would leave it: a thousand studies, a hundred thousand trials, a million curve points.

Fills the tables past the store, in seconds. Values look random and are the same on every database.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import Connection, Engine, insert, text

from search.definition import StudyDefinition
from search.states import StudyState
from service.database.models import Search, Study
from service.database.studies import definition_sha256

OPTIMIZERS = ("admetar", "admetas", "adamw", "sgdm")
LARGE = "large"
"""The study of `fill_large_study`."""


def fill(engine: Engine, *, n_studies: int, n_trials: int, n_points: int) -> None:
    """Studies that ended, but for the last ten; 6 of 10 trials complete, 3 pruned, 1 failed; one trial confirmed."""
    with engine.begin() as connection:
        connection.execute(insert(Study), [study_row(i, n_studies=n_studies) for i in range(n_studies)])
        connection.execute(
            insert(Search),
            [
                search_row(i, position, optimizer, n_trials=n_trials)
                for i in range(n_studies)
                for position, optimizer in enumerate(OPTIMIZERS)
            ],
        )
        fill_runs(connection, n_trials=n_trials, n_points=n_points)
        connection.execute(text(POINTS), {"n": n_points})
    with engine.connect() as connection:
        connection.execution_options(isolation_level="AUTOCOMMIT").execute(text("ANALYZE"))


def fill_large_study(engine: Engine, *, n_trials: int) -> None:
    """One study of one optimizer with very many trials, without curves: what an export has to stream."""
    with engine.begin() as connection:
        connection.execute(insert(Study), [study_row(-1, n_studies=0, name=LARGE, optimizers=OPTIMIZERS[:1])])
        connection.execute(insert(Search), [search_row(-1, 0, OPTIMIZERS[0], n_trials=n_trials, name=LARGE)])
        fill_runs(connection, n_trials=n_trials, n_points=0, of=LARGE)
    with engine.connect() as connection:
        connection.execution_options(isolation_level="AUTOCOMMIT").execute(text("ANALYZE"))


def definition(name: str, optimizers: Sequence[str]) -> dict[str, Any]:
    raw = {"name": name, "optimizers": [{"name": optimizer} for optimizer in optimizers], "task": {"name": "digits"}}
    return StudyDefinition.model_validate(raw).to_json()


def study_row(
    i: int, *, n_studies: int, name: str | None = None, optimizers: Sequence[str] = OPTIMIZERS
) -> dict[str, Any]:
    name = name or f"study-{i}"
    content = definition(name, optimizers)
    time_ = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(minutes=i)
    state = StudyState.RUNNING if i >= n_studies - 10 else StudyState.COMPLETED
    return {
        "id": study_id(i),
        "name": name,
        "task": "digits",
        "model": "convnet",
        "metric": "val_accuracy",
        "direction": "maximize",
        "definition": content,
        "definition_sha256": definition_sha256(content),
        "priority": 0,
        "state": state,
        "created_at": time_,
        "started_at": time_,
        "finished_at": time_ if state.is_terminal else None,
    }


def study_id(i: int) -> str:
    return f"{i % 2**48:012x}"


def search_row(i: int, position: int, optimizer: str, *, n_trials: int, name: str | None = None) -> dict[str, Any]:
    return {
        "study_id": study_id(i),
        "label": optimizer,
        "position": position,
        "optimizer": optimizer,
        "optuna_name": f"{name or f'study-{i}'}/{optimizer}",
        "fixed": {},
        "n_trials": n_trials,
        "n_confirm_runs": 3,
    }


# A value in [0, 1) that looks random and is the same on every database.
VALUE = "((s.id * 7919 + CAST(n.i AS BIGINT) * 104729 + :salt) % 10007) / 10007.0"
RUNS = f"""
WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i + 1 < :n)
INSERT INTO admeta_runs (search_id, trial_number, stage, seed, params, state, attempt, n_failures, epoch, step, value,
                         failure, test_metrics, train_s, gpu_s, optimizer_s, created_at, started_at, finished_at)
SELECT s.id, CASE :stage WHEN 'search' THEN n.i ELSE 1 END, :stage, CASE :stage WHEN 'search' THEN 100 ELSE n.i END,
       '{{"lr": 0.1}}',
       CASE WHEN :stage = 'confirm' OR n.i % 10 < 6 THEN 'COMPLETE' WHEN n.i % 10 < 9 THEN 'PRUNED' ELSE 'FAIL' END,
       1, 0, :points, 10 * :points, CASE WHEN n.i % 10 < 9 THEN {VALUE} END,
       CASE WHEN :stage = 'search' AND n.i % 10 = 9 THEN 'diverged' END,
       '{{"test_accuracy": 0.9}}', 10.0, 10.0, 1.0, t.created_at, t.created_at, t.created_at
FROM admeta_searches s JOIN admeta_studies t ON t.id = s.study_id CROSS JOIN n
WHERE :of = '' OR t.name = :of
"""
ATTEMPTS = """
INSERT INTO admeta_attempts (run_id, attempt, owner, state, node, device, started_at, finished_at)
SELECT id, 1, 'driver', state, 'node-1', 'cpu', started_at, finished_at FROM admeta_runs
WHERE id NOT IN (SELECT run_id FROM admeta_attempts)
"""
POINTS = """
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < :n)
INSERT INTO admeta_points (run_id, epoch, step, value, metrics, lr, train_s, eval_s, optimizer_s, data_s, gpu_s)
SELECT r.id, n.i, 10 * n.i, 0.5, '{"val_accuracy": 0.5, "val_loss": 1.5}', 0.1, 1.0, 0.1, 0.1, 0.1, 1.0
FROM admeta_runs r CROSS JOIN n
"""


def fill_runs(connection: Connection, *, n_trials: int, n_points: int, of: str = "") -> None:
    # Typed by hand: PostgreSQL cannot tell the type of a bare parameter.
    runs = RUNS.replace(":stage", "CAST(:stage AS VARCHAR(16))").replace(":points", "CAST(:points AS INTEGER)")
    statement = text(runs.replace(":salt", "CAST(:salt AS INTEGER)").replace(":of", "CAST(:of AS VARCHAR(100))"))
    connection.execute(statement, {"n": n_trials, "stage": "search", "points": n_points, "salt": 0, "of": of})
    connection.execute(statement, {"n": 3, "stage": "confirm", "points": n_points, "salt": 13, "of": of})
    connection.execute(text(ATTEMPTS))


def print_sizes(engine: Engine) -> None:
    """How many rows there are."""
    with engine.connect() as connection:
        for table in ("studies", "searches", "runs", "points"):
            n = connection.execute(text(f"SELECT count(*) FROM admeta_{table}")).scalar()
            print(f"  {table:<9}{n:>10,}")
