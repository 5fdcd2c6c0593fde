"""What the driver needs of the database: the only way `search` reaches it.

Implemented by `service.database` on SQLAlchemy, and in memory for tests; one conformance suite runs on both.
Every writing call names the lease it is made under and raises `LeaseLostError` when another driver holds it.
All calls are idempotent, so that a caller may repeat one whose answer was lost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from search.definition import StudyDefinition
from search.records import AttemptStart, CompetingStudy, Lease, Point, RunOutcome, RunRecord, SearchRecord, StudyRecord
from search.states import Stage, StudyState

if TYPE_CHECKING:
    import optuna


class Store(Protocol):
    """The driver's view of the database."""

    def optuna_storage(self) -> optuna.storages.BaseStorage:
        """Optuna's storage in the same database; its tables exist already."""
        ...

    def acquire_lease(self, study_id: str, *, owner: str, ttl_s: float) -> Lease | None:
        """Take the study if nobody holds it, its lease has expired, or `owner` holds it; None otherwise.

        Only studies in state QUEUED, RUNNING or PAUSED can be leased.
        """
        ...

    def renew_lease(self, lease: Lease) -> StudyState:
        """Extend the lease by its ttl, also when it has expired but nobody took it; the study's state now.

        This is how a driver learns that its study was cancelled or paused. Raises LeaseLostError.
        """
        ...

    def release_lease(self, lease: Lease) -> None:
        """Give the study back; nothing happens when another driver holds it."""
        ...

    def get_study(self, study_id: str) -> StudyRecord:
        """The study. Raises StudyNotFoundError."""
        ...

    def set_study_state(self, lease: Lease, state: StudyState, *, reason: str | None = None) -> StudyState:
        """Move the study on, or say why it stands, unless it is terminal already. Returns its state afterwards."""
        ...

    def best_settings(
        self, optimizer: str, *, like: StudyDefinition, studies: Sequence[str] | None, limit: int
    ) -> list[dict[str, Any]]:
        """Settings of the best complete trials of this optimizer in ended studies of one recipe, best first, each once.

        Trials all of whose confirm runs are complete come first, by the mean over these; then those that were not
        confirmed, by their value. One whose confirm runs failed, any of them, is left out.

        Args:
            like: only studies whose recipe is this definition's (`search.recipe`).
            studies: only studies of these names; None: any.
        """
        ...

    def competing_studies(self, study_id: str) -> list[CompetingStudy]:
        """The other studies that a driver works on now."""
        ...

    def searches(self, study_id: str) -> list[SearchRecord]:
        """The study's searches, in the definition's order (they are created with the study)."""
        ...

    def runs(self, study_id: str) -> list[RunRecord]:
        """All runs of the study, by id."""
        ...

    def find_runs(self, study: str, *, label: str, trial_number: int) -> tuple[str, list[RunRecord]] | None:
        """Id of the study of this name or id, and the runs of one of its trials; None where there is no such trial."""
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
    ) -> RunRecord:
        """The run with this key, created WAITING where there is none."""
        ...

    def start_attempt(self, lease: Lease, run_id: int) -> RunRecord:
        """Count a new attempt and set the run RUNNING; attempts left open by a dead driver are closed as LOST."""
        ...

    def add_points(
        self, lease: Lease, run_id: int, points: Sequence[Point], *, start: AttemptStart | None = None
    ) -> None:
        """Put points on the run's curve; one of an epoch that was trained again takes the place of the stored one.

        A point that is stored already changes nothing; every other one adds to what the run has cost.

        Args:
            start: where the current attempt runs, to be recorded with it.
        """
        ...

    def fail_attempt(self, lease: Lease, run_id: int, *, outcome: RunOutcome) -> RunRecord:
        """Close the current attempt as failed and set the run WAITING again; counts against max_failures."""
        ...

    def interrupt_attempt(self, lease: Lease, run_id: int, *, reason: str) -> RunRecord:
        """Close the current attempt as interrupted and set the run WAITING again; not counted as a failure."""
        ...

    def cancelled_runs(self, study_id: str) -> set[int]:
        """Ids of the study's runs that ended as cancelled: by a request for one trial, while the study goes on."""
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
        """Close the run and its attempt, with what was reported last. The run as it is afterwards.

        A run that is finished stays as it is.
        """
        ...
