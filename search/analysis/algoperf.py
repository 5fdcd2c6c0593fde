"""Time-to-target scores of outside learning curves, by AlgoPerf's rules.

Owns the reading of curves and targets from files, and AlgoPerf's scoring: a study's time on a workload is that of the
trial that reaches the target after the fewest evaluations, a workload's time is the median over studies, and the score
is the area of the performance profile by the trapezoid rule on 100 points.
"""

from __future__ import annotations

import csv
import json
import lzma
import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from search.analysis.checks import AnalysisError
from search.analysis.profiles import TAU_MAX, PerformanceProfile, performance_profiles
from search.states import Direction

MINIMIZED = frozenset({"loss", "wer", "ppl"})
"""AlgoPerf's metrics of which less is better; of the others more is."""

COLUMNS = ("submission", "study", "workload", "trial", "score_s", "value")


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
    """One row of a curve: a trial's validation value after `seconds` of counted time."""

    group: str
    submission: str
    study: str
    workload: str
    trial: str
    seconds: float
    value: float


@dataclass(frozen=True, kw_only=True)
class Score:
    """A submission's score, between 0 and 1, and the performance profile behind it."""

    score: float
    profile: PerformanceProfile


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


def read_curves(path: Path) -> Iterator[Evaluation]:
    """Evaluations from a CSV file, plain or .xz, with the columns submission, study, workload, trial, score_s, value.

    An empty value is not finite and reaches no target. `version` and `rules` columns, where there are any, part the
    file into groups that are scored by themselves.

    Raises:
        AnalysisError: the file cannot be read, or lacks a column.
    """
    try:
        with (
            lzma.open(path, "rt", encoding="utf-8", newline="")
            if path.suffix == ".xz"
            else path.open(encoding="utf-8", newline="") as file
        ):
            rows = csv.DictReader(file)
            missing = [column for column in COLUMNS if column not in (rows.fieldnames or ())]
            if missing:
                raise AnalysisError(f"{path} lacks the columns {missing}; it has {rows.fieldnames}")
            for row in rows:
                yield _evaluation(row, path=path, line=rows.line_num)
    except (OSError, lzma.LZMAError, UnicodeDecodeError, EOFError) as error:
        raise AnalysisError(f"{path} cannot be read: {error}") from None


def _evaluation(row: Mapping[str, str], *, path: Path, line: int) -> Evaluation:
    try:
        return Evaluation(
            group=" ".join(row[column] for column in ("version", "rules") if row.get(column)),
            submission=row["submission"],
            study=row["study"],
            workload=row["workload"],
            trial=row["trial"],
            seconds=float(row["score_s"]),
            value=float(row["value"]) if row["value"] else math.nan,
        )
    except (ValueError, TypeError):
        raise AnalysisError(
            f"line {line} of {path} has score_s {row['score_s']!r} and value {row['value']!r}; both must be numbers"
        ) from None


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
    times = _times(curves, targets)
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

    profiles = performance_profiles(
        {submission: {workload: time(submission, workload) for workload in targets.base} for submission in submissions},
        tau_max=tau_max,
    )
    return {name: Score(score=_area(profile, tau_max), profile=profile) for name, profile in profiles.items()}


def _times(curves: Iterable[Evaluation], targets: Targets) -> dict[tuple[str, str], float]:
    """Median over studies of the time to the target, by submission and workload; infinite for a miss."""
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
    return {key: statistics.median(seconds for _, seconds in studies.values()) for key, studies in reached.items()}


def _area(profile: PerformanceProfile, tau_max: float) -> float:
    """The profile's mean over [1, tau_max] as AlgoPerf computes it."""
    tau = np.linspace(1.0, tau_max, 100)
    rho = np.array([sum(ratio <= t for ratio in profile.ratios.values()) / len(profile.ratios) for t in tau])
    return float(((rho[1:] + rho[:-1]) / 2 * np.diff(tau)).sum() / (tau_max - 1))
