"""One trial and what its runs showed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from admeta.client.models import SpreadView
from search.analysis import spread
from search.states import FailureKind, RunState
from service.database.models import Run

WITHDRAWN = tuple(kind for kind in FailureKind if kind.is_withdrawn)


@dataclass(frozen=True, kw_only=True)
class TrialSummary:
    """One trial and what its runs showed. Fields but the first three are those of the views that it is part of.

    Attributes:
        run: its run of stage search.
        counted: its confirm runs that were not cancelled; its search run if there are none.
        score: what the trial is ranked by: the mean over its confirm runs, or else the value of the search run. None
            where every confirm run failed.
        validation: over its confirm runs; over the search run alone where it has none.
        test: of the same runs.
        confirmed: whether confirm runs count, failed ones included.
    """

    run: Run
    counted: Sequence[Run]
    score: float | None
    validation: SpreadView
    test: SpreadView
    confirmed: bool

    @property
    def failed_share(self) -> float:
        """Share of the counted runs that failed. A failed run is the worst result."""
        return self.validation.n_failed / len(self.counted)

    @property
    def evidence(self) -> str:
        """How sure the result is: "confirmed", "2 of 3 confirm runs failed" or "single run"."""
        if not self.confirmed:
            return "single run"
        n_failed = self.validation.n_failed
        return f"{n_failed} of {len(self.counted)} confirm runs failed" if n_failed else "confirmed"

    @property
    def shown(self) -> dict[str, Any]:
        """What a comparison and `best` show of the trial."""
        return {
            "trial": self.run.trial_number,
            "settings": self.run.settings,
            "training": self.run.training,
            "taken_from": self.run.taken_from,
            "search_value": self.run.value,
            "validation": self.validation,
            "test": self.test,
        }


def summarize(run: Run, confirm_runs: Sequence[Run], *, metric: str) -> TrialSummary:
    """A trial's summary from its search run and its confirm runs.

    Runs that are not finished, or were cancelled, are not results of the settings.
    """
    finished = [one for one in confirm_runs if is_result(one)]
    counted = finished or [run]
    validation = spread([one.value if one.state == RunState.COMPLETE else None for one in counted])
    name = test_metric(metric)
    tested = [one for one in counted if name in one.test_metrics or one.state == RunState.FAIL]
    return TrialSummary(
        run=run,
        counted=counted,
        score=validation.mean if finished else run.value,
        validation=validation,
        test=spread([one.test_metrics.get(name) if one.state == RunState.COMPLETE else None for one in tested]),
        confirmed=bool(finished),
    )


def is_result(confirm_run: Run) -> bool:
    """Whether the run is finished and was not cancelled."""
    return confirm_run.state.is_finished and not (confirm_run.failure and confirm_run.failure.is_withdrawn)


def test_metric(metric: str) -> str:
    """The test set's name of a validation metric, as `tasks.registry.TaskInfo.test_name` gives it.

    Not asked there: a study may outlive the installation of its task.
    """
    return "test_" + metric.removeprefix("val_")
