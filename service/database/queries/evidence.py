"""What is known of one trial: its search value, and over its confirm seeds validation and test, mean ± std.

Shared by the comparison within a study and the best over all studies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from search.analysis import spread
from search.states import FailureKind, RunState
from service.database.models import Run
from service.models import SpreadView


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """One trial and what its runs showed.

    Attributes:
        run: its run of stage search.
        counted: its confirm runs that tell something; its search run where none does.
        validation: over its confirm runs; over the search run alone where it has none.
        test: of the same runs.
        confirmed: whether at least one confirm run is complete.
        score: what the trial is ranked by: the mean over its confirm runs, or else the value that the search saw.
            None where every confirm run failed: the search was lucky once.
    """

    run: Run
    counted: Sequence[Run]
    validation: SpreadView
    test: SpreadView
    confirmed: bool
    score: float | None


def weigh(run: Run, confirm_runs: Sequence[Run], *, metric: str) -> Evidence:
    """The evidence for a trial from its search run and its confirm runs.

    Runs that go on, or were cancelled, say nothing of the settings.
    """
    counted = [row for row in confirm_runs if row.state.is_finished and row.failure != FailureKind.CANCELLED]
    validation = _spread([_value(row) for row in counted or [run]])
    return Evidence(
        run=run,
        counted=counted or [run],
        validation=validation,
        test=_spread_of_test(counted or [run], metric=test_metric(metric)),
        confirmed=bool(counted) and validation.n > 0,
        score=validation.mean if counted else run.value,
    )


def test_metric(metric: str) -> str:
    """The test set's name of a validation metric, as `tasks.registry.TaskInfo.test_name` gives it.

    Not asked there: a study may outlive the installation of its task.
    """
    return "test_" + metric.removeprefix("val_")


def _value(run: Run) -> float | None:
    return run.value if run.state == RunState.COMPLETE else None


def _spread_of_test(runs: Sequence[Run], *, metric: str) -> SpreadView:
    """Over the runs that were tested, and those that failed before they were; a search run is rarely tested."""
    tested = [run for run in runs if metric in run.test_metrics or run.state == RunState.FAIL]
    return _spread([run.test_metrics.get(metric) if run.state == RunState.COMPLETE else None for run in tested])


def _spread(values: Sequence[float | None]) -> SpreadView:
    result = spread(values)
    return SpreadView(mean=result.mean, std=result.std, n=result.n, n_failed=result.n_failed)
