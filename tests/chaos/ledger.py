"""What SQL and the checkpoints tell of a study, while it is disturbed and when it has ended.

Reads the tables directly and shares no query with the product: a fault there must not hide one here.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, text

RunKey = tuple[str, int, str, int]
"""Optimizer, trial number, stage, seed."""

_RUNS = """
    SELECT r.id, s.label, r.trial_number, r.stage, r.seed, r.state, r.attempt, r.params, r.value, r.finished_at, r.error
    FROM admeta_runs r JOIN admeta_searches s ON s.id = r.search_id WHERE s.study_id = :study ORDER BY r.id"""
_ATTEMPTS = """
    SELECT a.run_id, a.attempt, a.state, a.pid, a.resumed_from_epoch, a.started_at, a.error
    FROM admeta_attempts a JOIN admeta_runs r ON r.id = a.run_id JOIN admeta_searches s ON s.id = r.search_id
    WHERE s.study_id = :study ORDER BY a.run_id, a.attempt"""
_POINTS = """
    SELECT p.run_id, p.epoch, p.step FROM admeta_points p JOIN admeta_runs r ON r.id = p.run_id
    JOIN admeta_searches s ON s.id = r.search_id WHERE s.study_id = :study ORDER BY p.run_id, p.epoch"""
_OPTUNA_TRIALS = """
    SELECT s.label, t.trial_id, t.number, t.state FROM trials t JOIN studies o ON o.study_id = t.study_id
    JOIN admeta_searches s ON s.optuna_name = o.study_name WHERE s.study_id = :study"""
_OPTUNA_POINTS = """
    SELECT t.trial_id, i.step FROM trial_intermediate_values i JOIN trials t ON t.trial_id = i.trial_id
    JOIN studies o ON o.study_id = t.study_id JOIN admeta_searches s ON s.optuna_name = o.study_name
    WHERE s.study_id = :study ORDER BY t.trial_id, i.step"""
_FINISHED = {"COMPLETE", "PRUNED", "FAIL"}
_CHECKPOINT = re.compile(r"epoch-(\d+)\.pt")


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """A study right after a kill, before anything could go on.

    Attributes:
        finished: attempts of each finished run.
        interrupted: attempt and newest checkpoint's epoch (0: none) of each run that was not finished but begun.
        killed: pids of the workers that died; None: all.
    """

    finished: Mapping[int, int]
    interrupted: Mapping[int, tuple[int, int]]
    killed: Set[int] | None


@dataclass(frozen=True, kw_only=True)
class Expected:
    """What a study must have made at its end.

    Attributes:
        n_confirm_runs: of each optimizer; a mapping by label where they differ.
        n_sensitivity_runs: of each optimizer.
        in_order: times can be compared: the clock did not step.
    """

    n_trials: int
    n_confirm_runs: int | Mapping[str, int]
    n_epochs: int
    steps_per_epoch: int
    in_order: bool = True
    n_sensitivity_runs: int = 0


@dataclass(kw_only=True)
class Verdict:
    """How a study came out; every list is empty where nothing went wrong."""

    n_runs: int
    n_resumed: int
    values: dict[RunKey, float | None]
    lost: list[str] = field(default_factory=list)
    repeated: list[str] = field(default_factory=list)
    stuck: list[str] = field(default_factory=list)
    curves: list[str] = field(default_factory=list)
    resumes: list[str] = field(default_factory=list)

    @property
    def faults(self) -> list[str]:
        return [*self.lost, *self.repeated, *self.stuck, *self.curves, *self.resumes]


def look(engine: Engine, study: str, *, storage: Path, killed: Set[int] | None) -> Snapshot:
    """Take a snapshot; see `Snapshot`."""
    runs = _rows(engine, _RUNS, study)
    return Snapshot(
        finished={run["id"]: run["attempt"] for run in runs if run["state"] in _FINISHED},
        interrupted={
            run["id"]: (run["attempt"], _newest_checkpoint(storage / study / _folder(run)))
            for run in runs
            if run["state"] == "RUNNING"
        },
        killed=killed,
    )


def audit(engine: Engine, study: str, *, expected: Expected, snapshots: list[Snapshot]) -> Verdict:
    """Hold an ended study against what it should be and against what it was when it was disturbed."""
    runs, attempts = _rows(engine, _RUNS, study), _rows(engine, _ATTEMPTS, study)
    verdict = Verdict(
        n_runs=len(runs),
        n_resumed=0,
        values={(run["label"], run["trial_number"], run["stage"], run["seed"]): run["value"] for run in runs},
    )
    _check_counts(verdict, runs, expected)
    _check_repeats(verdict, runs, attempts, snapshots, expected)
    _check_open(verdict, runs, attempts, _rows(engine, _OPTUNA_TRIALS, study), expected)
    _check_curves(verdict, engine, study, runs, expected)
    _check_resumes(verdict, attempts, snapshots)
    return verdict


def _check_counts(verdict: Verdict, runs: list[dict[str, Any]], expected: Expected) -> None:
    n_confirm = expected.n_confirm_runs
    for label in sorted({run["label"] for run in runs}):
        n_seeds = n_confirm if isinstance(n_confirm, int) else n_confirm[label]
        wanted = {"search": expected.n_trials, "confirm": n_seeds, "sensitivity": expected.n_sensitivity_runs}
        for stage, n in wanted.items():
            own = [run for run in runs if run["label"] == label and run["stage"] == stage]
            complete = [run for run in own if run["state"] == "COMPLETE"]
            if len(complete) < n:
                errors = sorted({str(run["error"]) for run in own if run["error"]})
                verdict.lost.append(f"{label}: {len(complete)} of {n} {stage} runs are COMPLETE; {errors}")
            if len(own) > n:
                verdict.repeated.append(f"{label}: {len(own)} {stage} runs instead of {n}")


def _check_repeats(
    verdict: Verdict,
    runs: list[dict[str, Any]],
    attempts: list[dict[str, Any]],
    snapshots: list[Snapshot],
    expected: Expected,
) -> None:
    by_id = {run["id"]: run for run in runs}
    for snapshot in snapshots:
        for run_id, attempt in snapshot.finished.items():
            if by_id[run_id]["attempt"] != attempt:
                verdict.repeated.append(f"run {run_id} was finished and got attempt {by_id[run_id]['attempt']}")
    for attempt in attempts:
        end = by_id[attempt["run_id"]]["finished_at"]
        if expected.in_order and end is not None and str(attempt["started_at"]) > str(end):
            verdict.repeated.append(f"run {attempt['run_id']}: attempt {attempt['attempt']} began after its end")
    configurations = Counter((run["label"], str(run["params"])) for run in runs if run["stage"] == "search")
    verdict.repeated += [f"{key} was tried {n} times" for key, n in configurations.items() if n > 1]


def _check_open(
    verdict: Verdict,
    runs: list[dict[str, Any]],
    attempts: list[dict[str, Any]],
    trials: list[dict[str, Any]],
    expected: Expected,
) -> None:
    verdict.stuck += [f"run {run['id']} is {run['state']}" for run in runs if run["state"] not in _FINISHED]
    verdict.stuck += [
        f"attempt {attempt['attempt']} of run {attempt['run_id']} is RUNNING"
        for attempt in attempts
        if attempt["state"] == "RUNNING"
    ]
    verdict.stuck += [
        f"Optuna's trial {trial['label']}/{trial['number']} is {trial['state']}"
        for trial in trials
        if trial["state"] not in _FINISHED
    ]
    for label, n in Counter(trial["label"] for trial in trials).items():
        if n != expected.n_trials:
            verdict.repeated.append(f"Optuna has {n} trials of {label} instead of {expected.n_trials}")


def _check_curves(verdict: Verdict, engine: Engine, study: str, runs: list[dict[str, Any]], expected: Expected) -> None:
    whole = list(range(1, expected.n_epochs + 1))
    curves: dict[int, list[tuple[int, int]]] = {run["id"]: [] for run in runs if run["state"] == "COMPLETE"}
    for point in _rows(engine, _POINTS, study):
        curves.setdefault(point["run_id"], []).append((point["epoch"], point["step"]))
    for run_id, curve in curves.items():
        if curve != [(epoch, epoch * expected.steps_per_epoch) for epoch in whole]:
            verdict.curves.append(f"run {run_id} has the curve {curve}")
    steps: dict[int, list[int]] = {trial["trial_id"]: [] for trial in _rows(engine, _OPTUNA_TRIALS, study)}
    for point in _rows(engine, _OPTUNA_POINTS, study):
        steps[point["trial_id"]].append(point["step"])
    verdict.curves += [f"Optuna's trial {trial} has the steps {own}" for trial, own in steps.items() if own != whole]


def _check_resumes(verdict: Verdict, attempts: list[dict[str, Any]], snapshots: list[Snapshot]) -> None:
    by_key = {(attempt["run_id"], attempt["attempt"]): attempt for attempt in attempts}
    for snapshot in snapshots:
        for run_id, (number, checkpoint) in snapshot.interrupted.items():
            broken, following = by_key[run_id, number], by_key.get((run_id, number + 1))
            by_the_kill = snapshot.killed is None or broken["pid"] is None or broken["pid"] in snapshot.killed
            if following is None or not by_the_kill or following["resumed_from_epoch"] is None:
                continue  # it came to its end, was not hit, or was hit again before it could tell
            verdict.n_resumed += 1
            if following["resumed_from_epoch"] != checkpoint:
                verdict.resumes.append(
                    f"run {run_id}: attempt {number + 1} went on from epoch {following['resumed_from_epoch']}, "
                    f"its last checkpoint was of epoch {checkpoint}"
                )


def _folder(run: Mapping[str, Any]) -> str:
    return f"{run['label']}/{run['trial_number']:05d}/{run['stage']}-{run['seed']}"


def _newest_checkpoint(folder: Path) -> int:
    found = [_CHECKPOINT.fullmatch(path.name) for path in folder.glob("*")]
    return max((int(match[1]) for match in found if match), default=0)


def _rows(engine: Engine, query: str, study: str) -> list[dict[str, Any]]:
    with engine.connect() as connection:
        return [dict(row) for row in connection.execute(text(query), {"study": study}).mappings()]
