"""What the pages' benchmark looks at beside a thousand studies: one with long curves, one with very many trials.

The trials of the second are in Optuna's tables too, as a search leaves them, so that optuna-dashboard can show them.
"""

from __future__ import annotations

import random
from datetime import UTC, datetime
from typing import Any

import optuna
from optuna.storages._rdb import models as optuna_models  # the tables: adding trials one by one takes minutes
from sqlalchemy import Connection, Engine, insert, select, text

from benchmarks.large_database import OPTIMIZERS, POINTS, search_row, study_row
from search.states import RunState, Stage
from service.database.models import Run, Search, Study
from service.database.optuna_storage import optuna_storage
from service.database.retry import DRIVER

LONG, MANY = "long-curves", "many-trials"
N_REPORTS = 10
_EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


def fill_long_curves(engine: Engine, *, n_trials: int, n_points: int) -> None:
    """A study of four optimizers with `n_trials` in all, each with a curve."""
    with engine.begin() as connection:
        connection.execute(insert(Study), [study_row(-2, n_studies=0, name=LONG)])
        rows = [search_row(-2, i, name, n_trials=n_trials // 4, name=LONG) for i, name in enumerate(OPTIMIZERS)]
        connection.execute(insert(Search), rows)
        ids = _search_ids(connection, LONG)
        for search_id in ids:
            connection.execute(insert(Run), _runs(search_id, n_trials=n_trials // 4, epoch=n_points))
        of_these = f"FROM (SELECT id FROM admeta_runs WHERE search_id IN ({', '.join(map(str, ids))})) r CROSS JOIN n"
        curves = POINTS.replace("FROM admeta_runs r CROSS JOIN n", of_these)
        connection.execute(text(curves.replace("0.5, '{", "1.0 - 1.0 / (1 + n.i), '{")), {"n": n_points})


def fill_many_trials(engine: Engine, *, n_trials: int) -> int:
    """A study of one optimizer with very many trials, in Optuna's tables too; the id of Optuna's study."""
    with engine.begin() as connection:
        connection.execute(insert(Study), [study_row(-3, n_studies=0, name=MANY, optimizers=OPTIMIZERS[:1])])
        connection.execute(insert(Search), [search_row(-3, 0, OPTIMIZERS[0], n_trials=n_trials, name=MANY)])
        (search_id,) = _search_ids(connection, MANY)
        runs = _runs(search_id, n_trials=n_trials, epoch=N_REPORTS)
        connection.execute(insert(Run), runs)
    storage = optuna_storage(engine, DRIVER)
    study_id = storage.create_new_study([optuna.study.StudyDirection.MAXIMIZE], f"{MANY}/{OPTIMIZERS[0]}")
    with engine.begin() as connection:
        _fill_optuna(connection, study_id, runs)
    return study_id


def _search_ids(connection: Connection, study: str) -> list[int]:
    query = select(Search.id).join(Study, Study.id == Search.study_id).where(Study.name == study)
    return list(connection.execute(query.order_by(Search.position)).scalars())


def _runs(search_id: int, *, n_trials: int, epoch: int) -> list[dict[str, Any]]:
    """Search runs that TPE might have made: half complete, and better near lr = 0.01, lambd = 0.1."""
    draw = random.Random(search_id)
    rows = []
    for number in range(n_trials):
        lr, lambd = 10 ** draw.gauss(-2, 0.7), min(0.95, max(0.01, 10 ** draw.gauss(-1, 0.4)))
        value = 0.97 - 0.02 * abs(draw.gauss(0, 1)) - 0.05 * (1 - 0.01 / max(lr, 0.01)) - 0.1 * abs(lambd - 0.1)
        complete = number % 2 == 0
        rows.append(
            {
                "search_id": search_id, "trial_number": number, "stage": Stage.SEARCH, "seed": 100,
                "params": {"lr": lr, "lambd": lambd}, "attempt": 1, "value": value if complete else 0.8 * value,
                "state": RunState.COMPLETE if complete else RunState.PRUNED, "epoch": epoch if complete else 3,
                "step": 10 * epoch, "test_metrics": {}, "train_s": 10.0, "gpu_s": 10.0, "created_at": _EPOCH,
                "started_at": _EPOCH, "finished_at": _EPOCH,
            }
        )  # fmt: skip
    return rows


def _fill_optuna(connection: Connection, study_id: int, runs: list[dict[str, Any]]) -> None:
    tables = optuna_models.BaseModel.metadata.tables
    distribution = optuna.distributions.distribution_to_json(
        optuna.distributions.FloatDistribution(1e-8, 1e4, log=True)
    )
    kinds = {RunState.COMPLETE: optuna.trial.TrialState.COMPLETE, RunState.PRUNED: optuna.trial.TrialState.PRUNED}
    trials = [
        {
            "trial_id": i, "number": run["trial_number"], "study_id": study_id, "state": kinds[run["state"]].name,
            "datetime_start": _EPOCH.replace(tzinfo=None), "datetime_complete": _EPOCH.replace(tzinfo=None),
        }
        for i, run in enumerate(runs, start=1)
    ]  # fmt: skip
    connection.execute(insert(tables["trials"]), trials)
    params = [
        {"trial_id": i, "param_name": name, "param_value": value, "distribution_json": distribution}
        for i, run in enumerate(runs, start=1)
        for name, value in run["params"].items()
    ]
    connection.execute(insert(tables["trial_params"]), params)
    values = [
        {"trial_id": i, "objective": 0, "value": run["value"], "value_type": "FINITE"}
        for i, run in enumerate(runs, start=1)
    ]
    connection.execute(insert(tables["trial_values"]), values)
    reports = [
        {
            "trial_id": i, "step": step, "intermediate_value": run["value"] * step / N_REPORTS,
            "intermediate_value_type": "FINITE",
        }
        for i, run in enumerate(runs, start=1)
        for step in range(1, min(run["epoch"], N_REPORTS) + 1)
    ]  # fmt: skip
    connection.execute(insert(tables["trial_intermediate_values"]), reports)
