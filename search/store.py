"""The driver's interface to the database; `search` accesses it in no other way.

`service.database` implements it with SQLAlchemy, and the tests in memory; one suite of tests runs on both. Every call
that writes takes the lease and raises `LeaseLostError` if another driver holds it. All calls are idempotent, so that a
caller may repeat one whose answer was lost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from search.definition import StudyDefinition
from search.records import (
    AttemptStart,
    Capacity,
    CardFacts,
    CompetingStudy,
    Lease,
    Point,
    RunOutcome,
    RunRecord,
    SearchRecord,
    StudyRecord,
)
from search.states import Stage, StudyState
from search.warm_start import EarlierTrial

if TYPE_CHECKING:
    import optuna


class Store(Protocol):
    """What a driver reads from the database and writes to it."""

    def optuna_storage(self) -> optuna.storages.BaseStorage:
        """Optuna's storage in the same database; its tables exist already."""
        ...

    def acquire_lease(self, study_id: str, *, owner: str, ttl_s: float) -> Lease | None:
        """Lease the study if nobody has a lease, it has expired, or `owner` has it; otherwise None.

        Only studies in state QUEUED, RUNNING or PAUSED can be leased.
        """
        ...

    def renew_lease(self, lease: Lease) -> StudyState:
        """Extend the lease by its ttl, even if it has expired, unless another driver has taken it.

        Returns:
            The study's state, so that the driver notices a cancellation or a pause.

        Raises:
            LeaseLostError: another driver has taken the study.
        """
        ...

    def release_lease(self, lease: Lease) -> None:
        """End the lease; does nothing if another driver has taken the study."""
        ...

    def get_study(self, study_id: str) -> StudyRecord:
        """The study. Raises StudyNotFoundError."""
        ...

    def set_study_state(self, lease: Lease, state: StudyState, *, reason: str | None = None) -> StudyState:
        """Set the state and its reason, unless the study has ended. Returns the state afterwards."""
        ...

    def set_data_fingerprint(self, lease: Lease, fingerprint: str) -> None:
        """Store the fingerprint of the study's data, which its recipe then has; one that is stored stays."""
        ...

    def best_settings(
        self,
        optimizer: str,
        *,
        like: StudyDefinition,
        data_fingerprint: str | None = None,
        studies: Sequence[str] | None,
        limit: int,
    ) -> list[EarlierTrial]:
        """This optimizer's best complete trials in ended studies of one recipe, best first, all of other settings.

        Trials all of whose confirm runs are complete come first, by the mean over these; then those that were not
        confirmed, by their value. A trial with a failed confirm run is left out; cancelled ones do not count.

        Args:
            data_fingerprint: of the definition's data. Studies that knew no fingerprint may be of its recipe, too.
            like: only studies whose recipe is this definition's (`search.recipe`).
            studies: only studies of these names; None: any.
        """
        ...

    def card_facts(self, task_shape: str) -> dict[str, CardFacts]:
        """By kind of card, what runs of such a task found out about it (`search.packing`)."""
        ...

    def keep_card_facts(self, lease: Lease, task_shape: str, card: str, facts: CardFacts) -> None:
        """Store what runs found out about a kind of card, in place of what was known before."""
        ...

    def earlier_trials(
        self,
        optimizer: str,
        *,
        like: StudyDefinition,
        data_fingerprint: str | None = None,
        studies: Sequence[str] | None,
    ) -> list[EarlierTrial]:
        """This optimizer's best complete trials in each of its searches of ended studies, whatever their recipe.

        Ordered as in `best_settings` within a search, `search.warm_start.BEST_OF_EACH` of each. Of more than
        `search.warm_start.MAX_SEARCHES` searches, those of the same recipe, task and model first, then the newest.
        Studies with the tag void are left out.
        """
        ...

    def set_run_size(self, lease: Lease, each: Capacity) -> None:
        """Store what each of the study's runs holds now, which other studies count by (`competing_studies`)."""
        ...

    def competing_studies(self, study_id: str) -> list[CompetingStudy]:
        """The other studies that a driver works on now. Their definitions are not read: a later rule may refuse one."""
        ...

    def searches(self, study_id: str) -> list[SearchRecord]:
        """The study's searches, in the definition's order (they are created with the study)."""
        ...

    def runs(self, study_id: str) -> list[RunRecord]:
        """All runs of the study, by id."""
        ...

    def find_runs(self, study: str, *, label: str, trial_number: int) -> tuple[str, list[RunRecord]] | None:
        """The id of a study given by name or id, and the runs of one of its trials; None if there is no such trial."""
        ...

    def points(self, run_id: int) -> list[Point]:
        """The run's curve, by epoch."""
        ...

    def create_run(
        self,
        lease: Lease,
        search_id: int,
        *,
        trial_number: int,
        stage: Stage,
        seed: int,
        params: Mapping[str, Any],
        taken_from: Sequence[Mapping[str, Any]] = (),
    ) -> RunRecord:
        """The run with this key, created WAITING where there is none.

        One that had been cancelled before the study was extended (failure REPLACED) is WAITING again.
        """
        ...

    def start_attempt(self, lease: Lease, run_id: int) -> RunRecord:
        """Start a new attempt and set the run RUNNING; open attempts of a dead driver are closed as LOST."""
        ...

    def add_points(
        self, lease: Lease, run_id: int, points: Sequence[Point], *, start: AttemptStart | None = None
    ) -> None:
        """Add points to the run's curve; a point of an epoch that was trained again replaces the stored one.

        A point that is stored already changes nothing. Every other one adds to the run's cost.

        Args:
            start: where the current attempt runs.
        """
        ...

    def fail_attempt(self, lease: Lease, run_id: int, *, outcome: RunOutcome) -> RunRecord:
        """Close the current attempt as failed and set the run WAITING again; counts against max_failures."""
        ...

    def interrupt_attempt(self, lease: Lease, run_id: int, *, reason: str) -> RunRecord:
        """Close the current attempt as interrupted and set the run WAITING again; not counted as a failure."""
        ...

    def cancelled_runs(self, study_id: str) -> set[int]:
        """Ids of the study's runs that a request cancelled while the study continues."""
        ...

    def finish_run(
        self,
        lease: Lease,
        run_id: int,
        outcome: RunOutcome,
        *,
        points: Sequence[Point] = (),
        start: AttemptStart | None = None,
    ) -> RunRecord:
        """End the run and its attempt, with the last points. Returns the run afterwards.

        A run that has ended is not changed.
        """
        ...
