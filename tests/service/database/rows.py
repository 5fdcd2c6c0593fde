"""Many rows at once, past the store: for tests of reading."""

from __future__ import annotations

from datetime import UTC, datetime

from sqlalchemy import Engine, insert, select

from search.states import RunState, Stage
from service.database.engine import writing
from service.database.models import CurvePoint, Run


def many_trials(engine: Engine, search_id: int, *, n_trials: int, n_points: int) -> None:
    """Complete trials with curves; trial n has the value n / n_trials."""
    now = datetime.now(UTC)
    runs = [
        {
            "search_id": search_id,
            "trial_number": number,
            "stage": Stage.SEARCH,
            "seed": 100,
            "params": {"lr": 0.1 / (number + 1)},
            "state": RunState.COMPLETE,
            "epoch": n_points,
            "step": 10 * n_points,
            "value": number / n_trials,
            "created_at": now,
            "started_at": now,
            "finished_at": now,
        }
        for number in range(n_trials)
    ]
    seconds = dict.fromkeys(("train_s", "eval_s", "optimizer_s", "data_s", "gpu_s"), 0.1)
    with writing(engine) as session:
        session.execute(insert(Run), runs)
        ids = session.execute(select(Run.id).where(Run.search_id == search_id)).scalars().all()
        for start in range(0, len(ids), 100):
            points = [
                {
                    "run_id": run_id,
                    "epoch": epoch,
                    "step": 10 * epoch,
                    "value": epoch / n_points,
                    "metrics": {"val_accuracy": epoch / n_points, "val_loss": 1.0},
                    "lr": 0.1,
                    **seconds,
                }
                for run_id in ids[start : start + 100]
                for epoch in range(1, n_points + 1)
            ]
            session.execute(insert(CurvePoint), points)
