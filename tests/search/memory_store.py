"""The store in memory: what the driver's tests run on where no database is their subject."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from statistics import mean
from typing import Any

import optuna

from search.definition import StudyDefinition
from search.errors import LeaseLostError, StudyNotFoundError
from search.optimizer_search import OptimizerSearch
from search.recipe import recipe_of
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
    changed_points,
    with_points,
)
from search.states import FailureKind, RunState, Stage, StudyState
from search.warm_start import BEST_OF_EACH, EarlierTrial


class MemoryStore:
    """`search.store.Store` on dictionaries; one process, no threads racing."""

    def __init__(self) -> None:
        self.studies: dict[str, StudyRecord] = {}
        self.owners: dict[str, str] = {}
        self.all_runs: dict[int, RunRecord] = {}
        self.curves: dict[int, dict[int, Point]] = {}
        self.starts: dict[int, list[AttemptStart]] = {}
        self.facts: dict[tuple[str, str], CardFacts] = {}
        self.sizes: dict[str, Capacity] = {}
        self._searches: dict[str, list[SearchRecord]] = {}
        self._optuna = optuna.storages.InMemoryStorage()

    def add_study(self, definition: StudyDefinition) -> StudyRecord:
        study = StudyRecord(
            id=f"study{len(self.studies)}",
            name=definition.name,
            definition=definition,
            state=StudyState.QUEUED,
            created_at=datetime.now(UTC),
        )
        self.studies[study.id] = study
        self._searches[study.id] = []
        for search in definition.planned_searches():
            self._add_search(study.id, search.optimizer)
        return study

    def extend(self, study_id: str, definition: StudyDefinition, *, n_seen: int = 1) -> StudyRecord:
        """Let a study that has ended go on, as `service.database.extending.extend_study` does."""
        old = self.studies[study_id]
        counts = {"n_extensions": old.n_extensions + 1, "n_seen": n_seen}
        self.studies[study_id] = replace(old, definition=definition, state=StudyState.QUEUED, **counts)
        known = {search.label for search in self._searches[study_id]}
        for search in definition.planned_searches():
            if search.optimizer.label not in known:
                self._add_search(study_id, search.optimizer)
        for run in self.runs(study_id):
            if run.failure is FailureKind.CANCELLED:
                self.all_runs[run.id] = replace(run, failure=FailureKind.REPLACED)
        return self.studies[study_id]

    def _add_search(self, study_id: str, spec: OptimizerSearch) -> None:
        self._searches[study_id].append(
            SearchRecord(
                id=100 * (1 + list(self.studies).index(study_id)) + len(self._searches[study_id]),
                study_id=study_id,
                label=spec.label,
                optimizer=spec.name,
                optuna_name=f"{self.studies[study_id].name}/{spec.label}",
            )
        )

    def optuna_storage(self) -> optuna.storages.BaseStorage:
        return self._optuna

    def acquire_lease(self, study_id: str, *, owner: str, ttl_s: float) -> Lease | None:
        if self.studies[study_id].state.is_terminal or self.owners.get(study_id, owner) != owner:
            return None
        self.owners[study_id] = owner
        return Lease(study_id=study_id, owner=owner, ttl_s=ttl_s)

    def renew_lease(self, lease: Lease) -> StudyState:
        self._check(lease)
        return self.studies[lease.study_id].state

    def release_lease(self, lease: Lease) -> None:
        if self.owners.get(lease.study_id) == lease.owner:
            del self.owners[lease.study_id]

    def get_study(self, study_id: str) -> StudyRecord:
        if study_id not in self.studies:
            raise StudyNotFoundError(study_id)
        return self.studies[study_id]

    def set_study_state(self, lease: Lease, state: StudyState, *, reason: str | None = None) -> StudyState:
        self._check(lease)
        study = self.studies[lease.study_id]
        if not study.state.is_terminal:
            self.studies[study.id] = replace(study, state=state, reason=reason, started_at=datetime.now(UTC))
        return self.studies[study.id].state

    def set_data_fingerprint(self, lease: Lease, fingerprint: str) -> None:
        self._check(lease)
        study = self.studies[lease.study_id]
        if study.data_fingerprint is None:
            self.studies[study.id] = replace(study, data_fingerprint=fingerprint)

    def best_settings(
        self,
        optimizer: str,
        *,
        like: StudyDefinition,
        data_fingerprint: str | None = None,
        studies: Sequence[str] | None,
        limit: int,
    ) -> list[EarlierTrial]:
        known = self._earlier(optimizer, like, data_fingerprint, studies)
        found: list[EarlierTrial] = []
        for _, one in sorted((pair for pair in known if pair[1].same_recipe), key=lambda pair: pair[0]):
            if all(one.settings != other.settings for other in found):
                found.append(one)
        return found[:limit]

    def earlier_trials(
        self,
        optimizer: str,
        *,
        like: StudyDefinition,
        data_fingerprint: str | None = None,
        studies: Sequence[str] | None,
    ) -> list[EarlierTrial]:
        known = self._earlier(optimizer, like, data_fingerprint, studies)
        return [one for _, one in known if one.place <= BEST_OF_EACH]

    def _earlier(
        self, optimizer: str, like: StudyDefinition, data_fingerprint: str | None, studies: Sequence[str] | None
    ) -> list[tuple[tuple[bool, float], EarlierTrial]]:
        """The complete trials of ended studies, those of each search in their order."""
        found = []
        recipes = {recipe_of(like), recipe_of(like, data_fingerprint=data_fingerprint)}
        for study in self.studies.values():
            if not study.state.is_terminal or (studies is not None and study.name not in studies):
                continue
            recipe = recipe_of(study.definition, data_fingerprint=study.data_fingerprint)
            for search in self._searches[study.id]:
                spec = study.definition.planned_search(search.label).optimizer
                runs = [run for run in self.runs(study.id) if run.search_id == search.id and spec.name == optimizer]
                ranked = sorted(self._complete(runs, study.definition), key=lambda pair: pair[0])
                for place, (rank, run) in enumerate(ranked, start=1):
                    one = EarlierTrial(
                        study=study.name,
                        label=search.label,
                        trial=run.trial_number,
                        task=study.definition.task.name,
                        model=study.definition.task.model,
                        metric=study.definition.objective.metric,
                        settings={**spec.fixed, **run.params},
                        same_recipe=recipe in recipes,
                        place=place,
                    )
                    found.append((rank, one))
        return found

    def _complete(
        self, runs: Sequence[RunRecord], definition: StudyDefinition
    ) -> Iterator[tuple[tuple[bool, float], RunRecord]]:
        for run in runs:
            if run.stage is not Stage.SEARCH or run.state is not RunState.COMPLETE:
                continue
            confirm = [r for r in runs if r.stage is Stage.CONFIRM and r.trial_number == run.trial_number]
            confirm = [r for r in confirm if not (r.failure and r.failure.is_withdrawn)]
            if any(r.state is not RunState.COMPLETE for r in confirm):
                continue
            value = mean(r.value or 0.0 for r in confirm) if confirm else run.value or 0.0
            yield (not confirm, definition.objective.direction.cost(value)), run

    def card_facts(self, task_shape: str) -> dict[str, CardFacts]:
        return {card: facts for (shape, card), facts in self.facts.items() if shape == task_shape}

    def keep_card_facts(self, lease: Lease, task_shape: str, card: str, facts: CardFacts) -> None:
        self._check(lease)
        self.facts[task_shape, card] = facts

    def set_run_size(self, lease: Lease, each: Capacity) -> None:
        self._check(lease)
        self.sizes[lease.study_id] = each

    def competing_studies(self, study_id: str) -> list[CompetingStudy]:
        others = [s for s in self.studies.values() if s.id != study_id and s.id in self.owners]
        nothing = Capacity(cpus=0.0, gpus=0.0)
        return [
            CompetingStudy(
                priority=other.definition.priority,
                n_runs=sum(not run.state.is_finished for run in self.runs(other.id)),
                **vars(self.sizes.get(other.id, nothing)),
            )
            for other in others
        ]

    def searches(self, study_id: str) -> list[SearchRecord]:
        return self._searches[study_id]

    def runs(self, study_id: str) -> list[RunRecord]:
        ids = {search.id for search in self._searches[study_id]}
        return [run for run in self.all_runs.values() if run.search_id in ids]

    def find_runs(self, study: str, *, label: str, trial_number: int) -> tuple[str, list[RunRecord]] | None:
        for record in self.studies.values():
            ids = {search.id for search in self._searches[record.id] if search.label == label}
            runs = [r for r in self.all_runs.values() if r.search_id in ids and r.trial_number == trial_number]
            if study in (record.id, record.name) and runs:
                return record.id, runs
        return None

    def points(self, run_id: int) -> list[Point]:
        return [point for _, point in sorted(self.curves.get(run_id, {}).items())]

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
        self._check(lease)
        for run in self.all_runs.values():
            if (run.search_id, run.trial_number, run.stage, run.seed) == (search_id, trial_number, stage, seed):
                if run.failure is FailureKind.REPLACED:
                    return self._update(lease, run.id, state=RunState.WAITING, failure=None, error=None)
                return run
        run = RunRecord(
            id=len(self.all_runs) + 1,
            search_id=search_id,
            trial_number=trial_number,
            stage=stage,
            seed=seed,
            params=dict(params),
            taken_from=[dict(one) for one in taken_from],
            state=RunState.WAITING,
        )
        self.all_runs[run.id] = run
        return run

    def start_attempt(self, lease: Lease, run_id: int) -> RunRecord:
        return self._update(lease, run_id, state=RunState.RUNNING, attempt=self.all_runs[run_id].attempt + 1)

    def add_points(
        self, lease: Lease, run_id: int, points: Sequence[Point], *, start: AttemptStart | None = None
    ) -> None:
        self._check(lease)
        if start is not None:
            self.starts.setdefault(run_id, []).append(start)
        new = changed_points(points, stored=self.points(run_id))
        if new:
            self.curves.setdefault(run_id, {}).update({point.epoch: point for point in new})
            self.all_runs[run_id] = with_points(self.all_runs[run_id], new)

    def fail_attempt(self, lease: Lease, run_id: int, *, outcome: RunOutcome) -> RunRecord:
        return self._update(
            lease,
            run_id,
            state=RunState.WAITING,
            n_failures=self.all_runs[run_id].n_failures + 1,
            failure=outcome.failure,
            error=outcome.error,
        )

    def interrupt_attempt(self, lease: Lease, run_id: int, *, reason: str) -> RunRecord:
        self._check(lease)
        if self.all_runs[run_id].state is not RunState.RUNNING:
            return self.all_runs[run_id]
        return self._update(lease, run_id, state=RunState.WAITING)

    def cancelled_runs(self, study_id: str) -> set[int]:
        return {run.id for run in self.runs(study_id) if run.failure is FailureKind.CANCELLED}

    def finish_run(
        self,
        lease: Lease,
        run_id: int,
        outcome: RunOutcome,
        *,
        points: Sequence[Point] = (),
        start: AttemptStart | None = None,
    ) -> RunRecord:
        if self.all_runs[run_id].state.is_finished:
            return self.all_runs[run_id]
        self.add_points(lease, run_id, points, start=start)
        return self._update(
            lease,
            run_id,
            state=outcome.state,
            value=self.all_runs[run_id].value if outcome.value is None else outcome.value,
            failure=outcome.failure,
            error=outcome.error,
            test_metrics=outcome.test_metrics,
        )

    def _update(self, lease: Lease, run_id: int, **changes: Any) -> RunRecord:
        self._check(lease)
        self.all_runs[run_id] = replace(self.all_runs[run_id], **changes)
        return self.all_runs[run_id]

    def _check(self, lease: Lease) -> None:
        if self.owners.get(lease.study_id) != lease.owner:
            raise LeaseLostError(lease.study_id)
