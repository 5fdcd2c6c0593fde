"""What a study and each of its searches have spent of their budget, from the runs that were made."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence, Set

from search.definition import StudyDefinition
from search.records import RunRecord
from search.sections import N_TRIALS, Budget
from search.states import FailureKind, RunState, Stage

FIRST_FAILURES = 5
"""This many trials that raised exceptions end a search, if no other trial trained further."""
FIRST_FAILED = "no other trial was started after the first ones failed"
"""The limit of such a search, in words."""


def spent_by_study(budget: Budget, runs: Iterable[RunRecord], *, elapsed_s: Callable[[], float]) -> str | None:
    """The limit of the whole study that is spent, in words; None if none is.

    Args:
        runs: of all searches.
        elapsed_s: returns the seconds since the study first ran.
    """
    return _first_spent(budget, max_hours=lambda: elapsed_s() / 3600, gpu_hours=lambda: _gpu_hours(runs))


def spent_by_search(definition: StudyDefinition, runs: Sequence[RunRecord]) -> str | None:
    """The limit of a search that is met, in words; None if none is.

    Args:
        runs: of the search, all stages.
    """
    budget, direction = definition.budget, definition.objective.direction
    trained = _trained(runs)
    values = (run.value for run in trained if run.state is RunState.COMPLETE and run.value is not None)
    if budget.target is not None and any(direction.reaches(value, budget.target) for value in values):
        return f"budget.target ({budget.target:.12g}) was reached"
    ended = [run for run in trained if run.state.is_finished]
    counts_cost = budget.trials_per_optimizer is None
    if counts_cost and len(ended) >= N_TRIALS and not any(run.n_epochs for run in ended):
        return f"none of its first {N_TRIALS} trials trained an epoch"
    return _first_spent(
        budget,
        epochs_per_optimizer=lambda: sum(run.n_epochs for run in trained),
        gpu_hours_per_optimizer=lambda: _gpu_hours(trained),
    )


def may_be_spent(definition: StudyDefinition, runs: Sequence[RunRecord]) -> bool:
    """Whether the search's open trials may spend its whole budget, each being trained to its last epoch.

    No further trial starts until one of them is stopped early. So a search spends at most one training too many,
    however many trials run at once, and every optimizer spends as much.

    Args:
        runs: of the search, all stages.
    """
    max_epochs, max_hours = definition.budget.epochs_per_optimizer, definition.budget.gpu_hours_per_optimizer
    if max_epochs is None and max_hours is None:
        return False
    is_open = (run for run in runs if run.stage is Stage.SEARCH and not run.state.is_finished)
    n_open = sum(definition.task.epochs - run.epoch for run in is_open)
    trained = _trained(runs)
    n_epochs, gpu_hours = sum(run.n_epochs for run in trained), _gpu_hours(trained)
    if max_epochs is not None and n_epochs + n_open >= max_epochs:
        return True
    an_epoch = gpu_hours / n_epochs if n_epochs else 0.0
    return max_hours is not None and gpu_hours + n_open * an_epoch >= max_hours


def fail_from_the_start(trials: Iterable[RunRecord], *, forgiven: Set[int]) -> bool:
    """Whether FIRST_FAILURES trials raised exceptions, each as often as it was tried, and no other trained further.

    Then the code or the data are at fault, and would fail with all other settings.

    Args:
        trials: the runs of stage search.
        forgiven: ids of runs that failed before the study was extended; their failures do not count.
    """
    failed: list[RunRecord] = []
    others: list[RunRecord] = []
    for run in trials:
        raised = run.failure is FailureKind.ERROR and run.id not in forgiven
        (failed if raised else others).append(run)
    if len(failed) < FIRST_FAILURES:
        return False
    furthest = max(run.epoch for run in failed)
    return not any(
        run.epoch > furthest or (run.state.is_finished and not (run.failure and run.failure.is_accident))
        for run in others
    )


def _trained(runs: Iterable[RunRecord]) -> list[RunRecord]:
    """The trials without duplicates: these copy a result, have no attempt and cost nothing."""
    return [run for run in runs if run.stage is Stage.SEARCH and run.attempt > 0]


def _gpu_hours(runs: Iterable[RunRecord]) -> float:
    return sum(run.cost.gpu_s for run in runs) / 3600


def _first_spent(budget: Budget, **amounts: Callable[[], float]) -> str | None:
    """The first of these limits of the budget that its amount reaches, in words; None if none does."""
    for name, amount in amounts.items():
        limit = getattr(budget, name)
        if limit is not None and amount() >= limit:
            return f"budget.{name} ({limit:.12g}) was spent"
    return None
