"""Stand-ins for Ray Tune in the coordinator's tests: workers that train by formula, some of which fail on cue."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from search.assignment import Assignment, Report
from search.coordinator import Coordinator, Idle
from search.definition import StudyDefinition
from search.packing import Packing
from search.places import Workplace
from search.records import Capacity, Lease, Point, RunOutcome, StudyRecord
from search.states import FailureKind, RunState, Stage
from tests.search.memory_store import MemoryStore

Score = Callable[[Assignment, int], float | None]


def define(**changes: Any) -> StudyDefinition:
    """A small study on the idle task, with some fields changed."""
    base: dict[str, Any] = {
        "name": "small",
        "task": {"name": "synthetic", "model": "idle", "epochs": 3},
        "optimizers": [{"name": "adamw"}, {"name": "sgdm"}],
        "pruner": {"name": "none"},
        "budget": {"trials_per_optimizer": 4},
        "confirm": {"top_k": 1, "seeds": [0, 1]},
    }
    return StudyDefinition.model_validate({**base, **changes})


def by_learning_rate(assignment: Assignment, epoch: int) -> float:
    """Higher for learning rates near 0.01, rising over the epochs."""
    import math

    return epoch - abs(math.log10(assignment.settings["lr"]) + 2)


def coordinator_for(
    store: MemoryStore,
    study: StudyRecord,
    *,
    owner: str = "first",
    slots: int = 2,
    elapsed_s: Callable[[], float] = lambda: 0.0,
    gpus: float = 0.0,
    packing: Packing | None = None,
    crowded: bool = False,
    shared: bool = False,
    cohort: int = 1,
) -> Coordinator:
    """A coordinator under a lease of its own, as after a driver's start."""
    store.owners[study.id] = owner
    each = Capacity(cpus=study.definition.resources.cpus, gpus=gpus)
    workplace = Workplace(
        storage="checkpoints",
        data_dir=None,
        each=each,
        slots=lambda: slots,
        packing=packing,
        task_shape="shape",
        is_crowded=lambda: crowded,
        is_shared=lambda: shared,
    )
    if cohort > 1:
        workplace = replace(workplace, cohort=cohort, packing=None, without_cohort=partial(replace, workplace))
    lease = Lease(study_id=study.id, owner=owner, ttl_s=10)
    return Coordinator(store=store, lease=lease, study=study, workplace=workplace, elapsed_s=elapsed_s)


@dataclass
class Cluster:
    """Runs what the coordinator hands out, one epoch of every live run in turn.

    Attributes:
        failures: by (label, trial, stage, seed): exceptions still to raise, one an epoch; None: an epoch without one.
        finished: assignments that ended, in order.
    """

    coordinator: Coordinator
    score: Score = by_learning_rate
    failures: dict[tuple[str, int, Stage, int], list[tuple[FailureKind, str] | None]] = field(default_factory=dict)
    live: dict[str, tuple[Assignment, int]] = field(default_factory=dict)
    finished: list[Assignment] = field(default_factory=list)
    started: list[Assignment] = field(default_factory=list)

    def run(self) -> None:
        """To the study's end."""
        for _ in self.rounds():
            pass

    def rounds(self) -> Iterator[int]:
        """One epoch of every live run at a time; stop iterating to kill the driver."""
        number = 0
        while True:
            idle = self._fill()
            if not self.live:
                assert idle is Idle.DONE
                return
            for ticket in list(self.live):
                self._epoch(ticket)
            number += 1
            yield number

    def _fill(self) -> Idle:
        while True:
            ticket = f"t{len(self.started)}"
            assignment = self.coordinator.next(ticket)
            if isinstance(assignment, Idle):
                return assignment
            self.coordinator.begin(ticket)
            self.started.append(assignment)
            self.live[ticket] = (assignment, 0)

    def _epoch(self, ticket: str) -> None:
        assignment, epoch = self.live.pop(ticket)
        key = (assignment.label, assignment.trial_number, assignment.stage, assignment.seed)
        failure = self.failures[key].pop(0) if self.failures.get(key) else None
        if failure is not None:
            self.coordinator.fail(ticket, kind=failure[0], error=failure[1])
            return
        point, end = self._train(assignment, epoch + 1)
        if self.coordinator.report(ticket, Report(points=[point], end=end)):
            self.finished.append(assignment)
        else:
            self.live[ticket] = (assignment, epoch + 1)

    def _train(self, assignment: Assignment, epoch: int) -> tuple[Point, RunOutcome | None]:
        value = self.score(assignment, epoch)
        point = Point(epoch=epoch, step=epoch, value=value, metrics={} if value is None else {"val_score": value})
        n_epochs: int = assignment.task["epochs"]
        if value is None:
            return point, RunOutcome(
                state=RunState.FAIL, failure=FailureKind.DIVERGED, error=f"diverged at step {epoch}"
            )
        if epoch < n_epochs:
            return point, None
        test: Mapping[str, float] = {"test_score": value} if assignment.stage is Stage.CONFIRM else {}
        return point, RunOutcome(state=RunState.COMPLETE, value=value, test_metrics=test)
