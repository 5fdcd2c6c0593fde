"""How fast pages are read from a large database.

    python benchmarks/database.py                                       SQLite in a temporary folder
    python benchmarks/database.py --url postgresql://user@host/empty    PostgreSQL, in an empty database

Fills the database with studies, trials and curve points past the store, then reads each page many times, each time
another study or trial, and prints the median, the 95th percentile and the slowest in milliseconds. The times are those
of the queries and of building the answer's models; HTTP is not in them.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, insert, text

from search.definition import StudyDefinition
from search.records import StudyState
from service.database import make_engine, prepare
from service.database.closing import unclosed_studies
from service.database.models import Search, Study
from service.database.queries import best, comparison, get_study_view, get_trial, list_studies, list_trials
from service.database.studies import definition_sha256, runnable_studies

OPTIMIZERS = ("admetar", "admetas", "adamw", "sgdm")


def main() -> None:
    options = parse()
    with tempfile.TemporaryDirectory() as folder:
        url = options.url or f"sqlite:///{Path(folder) / 'bench.sqlite3'}"
        prepare(url)
        engine = make_engine(url)
        started = time.perf_counter()
        fill(engine, n_studies=options.studies, n_trials=options.trials, n_points=options.points)
        print(f"{engine.url.render_as_string()}: filled in {time.perf_counter() - started:.0f} s")
        print_sizes(engine)
        measure(engine, n_studies=options.studies, n_trials=options.trials, repeats=options.repeats)
        engine.dispose()


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", help="an empty database")
    parser.add_argument("--studies", type=int, default=1000)
    parser.add_argument("--trials", type=int, default=25, help="of each of a study's four optimizers")
    parser.add_argument("--points", type=int, default=10, help="of each run")
    parser.add_argument("--repeats", type=int, default=100)
    return parser.parse_args()


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


def definition(i: int) -> dict[str, Any]:
    optimizers = [{"name": name} for name in OPTIMIZERS]
    raw = {"name": f"study-{i}", "task": {"name": "digits"}, "optimizers": optimizers}
    return StudyDefinition.model_validate(raw).to_json()


def study_row(i: int, *, n_studies: int) -> dict[str, Any]:
    content = definition(i)
    time_ = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(minutes=i)
    state = StudyState.RUNNING if i >= n_studies - 10 else StudyState.COMPLETED
    return {
        "id": f"{i:012x}",
        "name": f"study-{i}",
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


def search_row(i: int, position: int, optimizer: str, *, n_trials: int) -> dict[str, Any]:
    return {
        "study_id": f"{i:012x}",
        "label": optimizer,
        "position": position,
        "optimizer": optimizer,
        "optuna_name": f"study-{i}/{optimizer}",
        "fixed": {},
        "n_trials": n_trials,
        "n_confirm_runs": 3,
    }


# A value in [0, 1) that looks random and is the same on every database.
VALUE = "((s.id * 7919 + n.i * 104729 + :salt) % 10007) / 10007.0"
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
"""
ATTEMPTS = """
INSERT INTO admeta_attempts (run_id, attempt, owner, state, node, device, started_at, finished_at)
SELECT id, 1, 'driver', state, 'node-1', 'cpu', started_at, finished_at FROM admeta_runs
"""
POINTS = """
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < :n)
INSERT INTO admeta_points (run_id, epoch, step, value, metrics, lr, train_s, eval_s, optimizer_s, data_s, gpu_s)
SELECT r.id, n.i, 10 * n.i, 0.5, '{"val_accuracy": 0.5, "val_loss": 1.5}', 0.1, 1.0, 0.1, 0.1, 0.1, 1.0
FROM admeta_runs r CROSS JOIN n
"""


def fill_runs(connection: Connection, *, n_trials: int, n_points: int) -> None:
    # Typed by hand: PostgreSQL cannot tell the type of a bare parameter.
    runs = RUNS.replace(":stage", "CAST(:stage AS VARCHAR(16))").replace(":points", "CAST(:points AS INTEGER)")
    statement = text(runs.replace(":salt", "CAST(:salt AS INTEGER)"))
    connection.execute(statement, {"n": n_trials, "stage": "search", "points": n_points, "salt": 0})
    connection.execute(statement, {"n": 3, "stage": "confirm", "points": n_points, "salt": 13})
    connection.execute(text(ATTEMPTS))


def print_sizes(engine: Engine) -> None:
    with engine.connect() as connection:
        for table in ("studies", "searches", "runs", "points"):
            n = connection.execute(text(f"SELECT count(*) FROM admeta_{table}")).scalar()
            print(f"  {table:<9}{n:>10,}")


def measure(engine: Engine, *, n_studies: int, n_trials: int, repeats: int) -> None:
    draw = random.Random(0)

    def study() -> str:
        return f"study-{draw.randrange(n_studies)}"

    second_page = list_studies(engine).next_cursor
    reads: dict[str, Callable[[], object]] = {
        "list studies": lambda: list_studies(engine),
        "list studies, second page": lambda: list_studies(engine, cursor=second_page),
        "list studies of an optimizer": lambda: list_studies(engine, optimizer="sgdm", state=StudyState.COMPLETED),
        "one study": lambda: get_study_view(engine, study()),
        "trials of a study": lambda: list_trials(engine, study()),
        "trials of a study, best first": lambda: list_trials(engine, study(), order="best"),
        "one trial": lambda: get_trial(engine, study(), draw.choice(OPTIMIZERS), draw.randrange(n_trials)),
        "comparison": lambda: comparison(engine, study()),
        "best": lambda: best(engine, task="digits", optimizer=draw.choice(OPTIMIZERS)),
        "supervisor: runnable studies": lambda: runnable_studies(engine),
        "supervisor: unclosed studies": lambda: unclosed_studies(engine),
    }
    print(f"{'ms':<32}{'median':>9}{'p95':>9}{'max':>9}")
    for name, read in reads.items():
        read()
        times = sorted(timed(read) for _ in range(repeats))
        p95 = times[min(len(times) - 1, int(0.95 * len(times)))]
        print(f"{name:<32}{statistics.median(times):>9.1f}{p95:>9.1f}{times[-1]:>9.1f}")


def timed(read: Callable[[], object]) -> float:
    """Milliseconds of one call."""
    started = time.perf_counter()
    read()
    return 1000 * (time.perf_counter() - started)


if __name__ == "__main__":
    main()
