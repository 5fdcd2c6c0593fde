"""The words that the whole product shares: states, stages, kinds of failure, directions, choices of a request.

Imports nothing of the project, so that the command line and the client may use it without loading a server or numpy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import TypeVar

T = TypeVar("T")


class StudyState(StrEnum):
    """State of a study. QUEUED → RUNNING ⇄ PAUSED → COMPLETED, FAILED or CANCELLED."""

    QUEUED = "QUEUED"
    RUNNING = "RUNNING"
    PAUSED = "PAUSED"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"

    @property
    def is_terminal(self) -> bool:
        """Whether the study has ended and cannot be resumed."""
        return self in (StudyState.COMPLETED, StudyState.FAILED, StudyState.CANCELLED)


class RunState(StrEnum):
    """State of a run; for a run of the search stage also that of its Optuna trial."""

    WAITING = "WAITING"
    RUNNING = "RUNNING"
    COMPLETE = "COMPLETE"
    PRUNED = "PRUNED"
    FAIL = "FAIL"

    @property
    def is_finished(self) -> bool:
        """Whether the run has ended."""
        return self in (RunState.COMPLETE, RunState.PRUNED, RunState.FAIL)


TERMINAL_STATES = frozenset(state for state in StudyState if state.is_terminal)
"""States of a study that has ended."""
FINISHED_STATES = frozenset(state for state in RunState if state.is_finished)
"""States of a run that has ended."""


class AttemptState(StrEnum):
    """State of one attempt of a run.

    LOST: its driver died before it could record how the attempt ended. INTERRUPTED: stopped by a pause or because its
    node went away; the run itself did not fail.
    """

    RUNNING = "RUNNING"
    COMPLETE = "COMPLETE"
    PRUNED = "PRUNED"
    FAIL = "FAIL"
    LOST = "LOST"
    INTERRUPTED = "INTERRUPTED"


class Stage(StrEnum):
    """SEARCH: the sampler proposes settings, one seed, early stopping. CONFIRM: the best ones with several seeds.

    SENSITIVITY: the chosen settings with other values of one parameter. These runs belong to no trial: their trial
    numbers count the values.
    """

    SEARCH = "search"
    CONFIRM = "confirm"
    SENSITIVITY = "sensitivity"


class FailureKind(StrEnum):
    """Why a run ended as FAIL."""

    DIVERGED = "diverged"
    """The loss became NaN or infinite: a result about the settings, never retried."""

    OUT_OF_MEMORY = "out_of_memory"
    """The card had no room; tried once more with a card of its own."""

    NO_METRIC = "no_metric"
    """Training ended without the objective's metric, or it was not finite; never retried."""

    ERROR = "error"
    """An exception in the training code; retried."""

    LOST = "lost"
    """The worker died, or its disk was full; retried."""

    PREEMPTED = "preempted"
    """The worker's node died, was taken away or lost its connection; retried."""

    CANCELLED = "cancelled"
    """A request cancelled the trial or the study."""

    REPLACED = "replaced"
    """Cancelled before the study was extended: then another trial, or the same confirm run, takes its place."""

    @property
    def is_accident(self) -> bool:
        """Whether the failure says nothing about the settings: the same configuration may train well another time."""
        return self.is_withdrawn or self in (FailureKind.ERROR, FailureKind.LOST, FailureKind.PREEMPTED)

    @property
    def is_lost(self) -> bool:
        """Whether another trial takes the place of one that ended so: its machine failed, not its training."""
        return self in (FailureKind.LOST, FailureKind.PREEMPTED)

    @property
    def is_withdrawn(self) -> bool:
        """Whether the run was cancelled, which is no result."""
        return self in (FailureKind.CANCELLED, FailureKind.REPLACED)


SETTINGS_FAILURES = frozenset({FailureKind.DIVERGED, FailureKind.NO_METRIC})
"""Failures that are results about the settings, which would fail again."""


class Direction(StrEnum):
    """Whether larger or smaller values of a metric are better."""

    MAXIMIZE = "maximize"
    MINIMIZE = "minimize"

    @property
    def is_maximize(self) -> bool:
        """Whether larger values are better."""
        return self is Direction.MAXIMIZE

    @property
    def sign(self) -> float:
        """1 where larger values are better, −1 where smaller ones are: `sign * value` is always better when larger."""
        return 1.0 if self.is_maximize else -1.0

    def cost(self, value: float) -> float:
        """The value with its sign set so that smaller is better, as a sort key: `sorted(values, key=d.cost)`."""
        return -self.sign * value

    def is_better(self, value: float, than: float) -> bool:
        """Whether `value` is strictly better; False where either is NaN."""
        return value > than if self.is_maximize else value < than

    def reaches(self, value: float, target: float) -> bool:
        """Whether `value` is at least as good as the target."""
        return value >= target if self.is_maximize else value <= target

    def best(self, values: Iterable[float]) -> float:
        """The best value. Raises ValueError where there is none."""
        return max(values) if self.is_maximize else min(values)

    def worst(self, values: Iterable[float]) -> float:
        """The worst value. Raises ValueError where there is none."""
        return min(values) if self.is_maximize else max(values)

    def best_first(self, items: Iterable[T], value: Callable[[T], float]) -> list[T]:
        """The items sorted by value, best first; items of equal value keep their order."""
        return sorted(items, key=lambda item: self.cost(value(item)))


class Spend(StrEnum):
    """What hours are spent on before an optimizer's settings are used."""

    SEARCH = "search"
    SEEDS = "seeds"
    NOTHING = "nothing"


class SignificanceTest(StrEnum):
    """How two samples are compared."""

    MODERATED = "moderated"
    """t with a variance moderated by the study's other optimizers, simultaneous for all pairs (Smyth, 2004)."""

    WELCH = "welch"
    """Welch's t: independent samples, unequal variances."""

    WILCOXON = "wilcoxon"
    """Wilcoxon's signed ranks: pairs that share a seed (or a task and a seed)."""


class Verdict(StrEnum):
    """What a comparison of two optimizers says."""

    BETTER = "better"
    EQUIVALENT = "equivalent"
    """The difference is smaller than the margin that the study names."""

    UNDECIDED = "undecided"


class ImportanceMethod(StrEnum):
    """FANOVA: share of the variance explained by each parameter alone, by a random forest (Hutter et al., 2014).

    PED_ANOVA: how far the best tenth's distribution of a parameter is from that of all (Watanabe et al., 2023). It
    also supports conditional parameters.
    """

    FANOVA = "fanova"
    PED_ANOVA = "ped-anova"


class TimeUnit(StrEnum):
    """What the time to a target is counted in; seconds are of training, without evaluation."""

    SECONDS = "seconds"
    STEPS = "steps"


class ExportFormat(StrEnum):
    """File format of exported results."""

    CSV = "csv"
    JSON = "json"
    PARQUET = "parquet"
    LATEX = "latex"
    MARKDOWN = "markdown"

    @property
    def media_type(self) -> str:
        """The Content-Type of the file."""
        return {
            ExportFormat.CSV: "text/csv; charset=utf-8",
            ExportFormat.JSON: "application/json",
            ExportFormat.PARQUET: "application/vnd.apache.parquet",
            ExportFormat.LATEX: "text/x-latex; charset=utf-8",
            ExportFormat.MARKDOWN: "text/markdown; charset=utf-8",
        }[self]

    @property
    def suffix(self) -> str:
        """The file name's ending, without the dot."""
        return {ExportFormat.LATEX: "tex", ExportFormat.MARKDOWN: "md"}.get(self, self.value)


class Scope(StrEnum):
    """What a token may do; each scope includes those before it."""

    READ = "read"
    WRITE = "write"
    ADMIN = "admin"

    def includes(self, other: Scope) -> bool:
        """Whether this scope is enough where `other` is asked for."""
        order = list(Scope)
        return order.index(self) >= order.index(other)
