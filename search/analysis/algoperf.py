"""Time-to-target scores of outside learning curves, by AlgoPerf's rules.

Owns the reading of curves and targets from files (docs/verdicts.md describes them), and AlgoPerf's scoring: a study's
time on a workload is that of the trial that reaches the target after the fewest evaluations, a workload's time is the
median over studies, and the score is the area of the performance profile by the trapezoid rule on 100 points.
"""

from __future__ import annotations

import csv
import json
import lzma
import math
import re
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from search.analysis.profiles import TAU_MAX, PerformanceProfile, performance_profiles
from search.analysis.summary import AnalysisError
from search.states import Direction

MINIMIZED = frozenset({"loss", "wer", "ppl"})
"""AlgoPerf's metrics of which less is better; of the others more is."""

COLUMNS: Mapping[str, tuple[str, ...]] = {
    "submission": ("submission", "optimizer"),
    "workload": ("workload", "task"),
    "seconds": ("score_s", "seconds", "step"),
    "value": ("value",),
    "study": ("study", "seed"),
    "trial": ("trial",),
    "target": ("target",),
    "direction": ("direction",),
    "metric": ("metric",),
}
"""The columns of a file by what they mean; of several names the first that the file has. The last five may be left out.
"""
_NEEDED = ("submission", "workload", "seconds", "value")


@dataclass(frozen=True, kw_only=True)
class Target:
    """The value that a workload's validation metric must reach."""

    value: float
    direction: Direction


@dataclass(frozen=True, kw_only=True)
class Targets:
    """A benchmark's targets.

    Attributes:
        by_workload: the target of each workload.
        base: workloads that are scored.
        variant_of: held-out variant of a base workload, by variant: one counts as missed where the other is.
    """

    by_workload: Mapping[str, Target]
    base: tuple[str, ...]
    variant_of: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """One row of a curve: a trial's validation value after `seconds` of counted time, or steps.

    `target` is the workload's where the file has it.
    """

    group: str
    submission: str
    study: str
    workload: str
    trial: str
    seconds: float
    value: float
    target: Target | None = None


@dataclass(frozen=True, kw_only=True)
class Score:
    """A submission's score, between 0 and 1, with the performance profile behind it and the times behind that.

    Attributes:
        times: by base workload, the median over studies; ∞ where it counts as missed.
        n_studies, n_reached: by base workload, how many there are and how many of them reached the target.
    """

    score: float
    profile: PerformanceProfile
    times: Mapping[str, float]
    n_studies: Mapping[str, int]
    n_reached: Mapping[str, int]


def read_targets(path: Path) -> Targets:
    """Targets from AlgoPerf's JSON: `base_workloads`, `held_out_workloads` and `workloads` with metric and target.

    Raises:
        AnalysisError: the file is not JSON of that form.
    """
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        by_workload = {
            name: Target(
                value=float(of["validation_target_value"]),
                direction=Direction.MINIMIZE if of["target_metric_name"] in MINIMIZED else Direction.MAXIMIZE,
            )
            for name, of in raw["workloads"].items()
        }
        base, held_out = tuple(raw["base_workloads"]), tuple(raw.get("held_out_workloads", ()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise AnalysisError(
            f"{path} holds no targets ({error!r}); it must be a JSON object with 'base_workloads' and 'workloads', "
            "each of these with 'target_metric_name' and 'validation_target_value'"
        ) from None
    return Targets(by_workload=by_workload, base=base, variant_of=_variants(held_out, base))


def _variants(held_out: Iterable[str], base: Iterable[str]) -> dict[str, str]:
    variants = {}
    for name in held_out:
        bases = [workload for workload in base if name.startswith(workload)]
        if not bases:
            raise AnalysisError(
                f"held-out workload {name!r} begins with no base workload's name; there are {list(base)}"
            )
        variants[name] = max(bases, key=len)
    return variants


def find_targets(curves: Path, *, group: str) -> Path:
    """The file of targets beside a file of curves: the only *targets.json there, or that with the group's version.

    Raises:
        AnalysisError: there is none, or none of several has the version in its name.
    """
    found = sorted(curves.parent.glob("*targets.json"))
    version = group.partition(" ")[0]
    fitting = [path for path in found if version and version in path.name] or (found if len(found) == 1 else [])
    if not fitting:
        of_group = f" with {version!r} in its name" if version else ""
        raise AnalysisError(
            f"{curves} has no column 'target', and beside it lies no file *targets.json{of_group}. Give --targets FILE"
        )
    return fitting[0]


def targets_of(curves: Iterable[Evaluation]) -> Targets | None:
    """The targets that the rows themselves state, all workloads being base ones; None where a row states none.

    Raises:
        AnalysisError: a workload has two targets.
    """
    by_workload: dict[str, Target] = {}
    for row in curves:
        if row.target is None:
            return None
        if by_workload.setdefault(row.workload, row.target) != row.target:
            raise AnalysisError(
                f"workload {row.workload!r} has the targets {by_workload[row.workload].value} and {row.target.value}; "
                "all rows of a workload must state the same one"
            )
    return Targets(by_workload=by_workload, base=tuple(by_workload), variant_of={})


def read_curves(path: Path) -> Iterator[Evaluation]:
    """Evaluations from a CSV file or one of JSON lines, plain or .xz; `COLUMNS` has the names of the columns.

    An empty or null value is not finite and reaches no target. `version` and `rules` columns, where there are any, part
    the file into groups that are scored by themselves.

    Raises:
        AnalysisError: the file cannot be read, or lacks a column.
    """
    is_json = ".jsonl" in path.suffixes
    try:
        with (
            lzma.open(path, "rt", encoding="utf-8", newline="")
            if path.suffix == ".xz"
            else path.open(encoding="utf-8", newline="") as file
        ):
            rows: Iterable[Any] = map(json.loads, file) if is_json else csv.DictReader(file)
            names: dict[str, str] = {}
            for number, row in enumerate(rows, start=1 if is_json else 2):
                if not isinstance(row, dict):
                    raise AnalysisError(f"line {number} of {path} is no JSON object; every line must be one")
                names = names or _names(row, path)
                yield _evaluation(row, names, path=path, line=number)
            if not names:
                raise AnalysisError(f"{path} has no rows of curves")
    except (OSError, lzma.LZMAError, ValueError, EOFError, csv.Error, RecursionError) as error:
        raise AnalysisError(f"{path} cannot be read: {error}") from None


def _names(row: Mapping[str, Any], path: Path) -> dict[str, str]:
    """The file's names of the columns."""
    names = {meaning: next((name for name in choice if name in row), "") for meaning, choice in COLUMNS.items()}
    missing = [" or ".join(repr(name) for name in COLUMNS[meaning]) for meaning in _NEEDED if not names[meaning]]
    if missing:
        raise AnalysisError(f"{path} lacks the columns {', '.join(missing)}; it has {sorted(map(str, row))}")
    return names


def _evaluation(row: Mapping[str, Any], names: Mapping[str, str], *, path: Path, line: int) -> Evaluation:
    seconds, value = row.get(names["seconds"]), row.get(names["value"])
    try:
        return Evaluation(
            group=" ".join(str(row[column]) for column in ("version", "rules") if row.get(column)),
            submission=str(row[names["submission"]]),
            study=str(row.get(names["study"], "")),
            workload=str(row[names["workload"]]),
            trial=str(row.get(names["trial"], "")),
            seconds=float(seconds),  # type: ignore[arg-type]  # what is no number is caught
            value=math.nan if value in (None, "") else float(value),
            target=_target(row, names),
        )
    except (ValueError, TypeError, KeyError):
        raise AnalysisError(
            f"line {line} of {path} has {names['seconds']} {seconds!r}, value {value!r} and target "
            f"{row.get(names['target'])!r}; they must be numbers, the first above 0, and 'direction', where the file "
            "has it, minimize or maximize"
        ) from None


def _target(row: Mapping[str, Any], names: Mapping[str, str]) -> Target | None:
    """The target that a row states; without a direction by the metric's name, or by the word loss in it."""
    value = row.get(names["target"])
    if value in (None, ""):
        return None
    words = set(re.split("[^a-z]+", str(row.get(names["metric"], "")).lower()))
    by_name = Direction.MINIMIZE if words & MINIMIZED else Direction.MAXIMIZE
    return Target(value=float(value), direction=Direction(row.get(names["direction"]) or by_name))


def scores(curves: Iterable[Evaluation], targets: Targets, *, tau_max: float = TAU_MAX) -> dict[str, Score]:
    """Score of each submission.

    Args:
        curves: of one group; the rows of a trial in order of time.
        targets: workloads without a target are left out.
        tau_max: times longer than this many times the best count as missed.

    Raises:
        AnalysisError: no curve is of a base workload.

    Source: Dahl et al., "Benchmarking Neural Network Training Algorithms", 2023; MLCommons' scoring code
    for AlgoPerf v0.5.
    """
    studies = _studies(curves, targets)
    times = {key: statistics.median(of) for key, of in studies.items()}
    submissions = sorted({submission for submission, _ in times})
    if not any(workload in targets.base for _, workload in times):
        raise AnalysisError(f"no curve is of a base workload; the targets name {list(targets.base)}")
    best = {workload: min(times.get((s, workload), math.inf) for s in submissions) for workload in targets.by_workload}

    def is_missed(submission: str, workload: str) -> bool:
        time = times.get((submission, workload), math.inf)
        return math.isinf(time) or time > tau_max * best[workload]

    def time(submission: str, workload: str) -> float:
        variants = [variant for variant, base in targets.variant_of.items() if base == workload]
        missed = any(is_missed(submission, name) for name in (workload, *variants))
        return math.inf if missed else times[submission, workload]

    counted = {name: {workload: time(name, workload) for workload in targets.base} for name in submissions}
    profiles = performance_profiles(counted, tau_max=tau_max)
    return {
        name: Score(
            score=_area(profile, tau_max),
            profile=profile,
            times=counted[name],
            n_studies={workload: len(studies.get((name, workload), [])) for workload in targets.base},
            n_reached={
                workload: sum(map(math.isfinite, studies.get((name, workload), []))) for workload in targets.base
            },
        )
        for name, profile in profiles.items()
    }


def _studies(curves: Iterable[Evaluation], targets: Targets) -> dict[tuple[str, str], list[float]]:
    """The time to the target of each study, by submission and workload; infinite for a miss."""
    n_evaluations: dict[tuple[str, str, str, str], int] = defaultdict(int)
    reached: dict[tuple[str, str], dict[str, tuple[float, float]]] = defaultdict(dict)
    for row in curves:
        target = targets.by_workload.get(row.workload)
        if target is None:
            continue
        trial = (row.submission, row.workload, row.study, row.trial)
        n_evaluations[trial] += 1
        studies = reached[row.submission, row.workload]
        first = studies.setdefault(row.study, (math.inf, math.inf))
        if target.direction.reaches(row.value, target.value):
            studies[row.study] = min(first, (n_evaluations[trial], row.seconds))
    return {key: [seconds for _, seconds in studies.values()] for key, studies in reached.items()}


def _area(profile: PerformanceProfile, tau_max: float) -> float:
    """The profile's mean over [1, tau_max] as AlgoPerf computes it."""
    tau = np.linspace(1.0, tau_max, 100)
    rho = np.array([sum(ratio <= t for ratio in profile.ratios.values()) / len(profile.ratios) for t in tau])
    return float(((rho[1:] + rho[:-1]) / 2 * np.diff(tau)).sum() / (tau_max - 1))
