"""Current activity: runs that train, studies that wait or have a driver, the time they will take, and sums over all."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from statistics import fmean

from sqlalchemy import ColumnElement, Engine, Select, func, select

from admeta.client.models import ActiveRunView, QueuedStudyView, SearchView, StudyView
from search.optimizer_search import BASELINE
from search.states import AttemptState, RunState, Stage, StudyState
from service.database.engine import reading
from service.database.lease import lease_is_free
from service.database.models import RUN_IS_UNFINISHED, Attempt, Run, Search, Study
from service.database.queries.plots import AttemptSpan, attempt_spans

LATEST = 500
"""Attempts from which the remaining time is computed: the latest, as the pace changes with what is pruned."""
ENOUGH = 3
"""Ended runs of a study from which alone the remaining time is computed."""


def active_runs(engine: Engine, *, study_id: str | None = None, limit: int = 500) -> list[ActiveRunView]:
    """Runs that train, with the node and device of their attempt; the latest first.

    Args:
        study_id: only those of this study.
    """
    query = (
        select(
            *(Run.id.label("run"), Study.name.label("study"), Search.label, Run.trial_number.label("trial")),
            *(Run.stage, Run.seed, Run.epoch, Attempt.node, Attempt.device, Attempt.started_at),
        )
        .join(Attempt, (Attempt.run_id == Run.id) & (Attempt.attempt == Run.attempt))
        .join(Run.search)
        .join(Search.study)
        .where(RUN_IS_UNFINISHED, Attempt.state == AttemptState.RUNNING)
        .order_by(Attempt.started_at.desc(), Run.id)
        .limit(limit)
    )
    if study_id is not None:
        query = query.where(Study.id == study_id)
    with reading(engine) as session:
        return [ActiveRunView.model_validate(row) for row in session.execute(query)]


def queued_studies(engine: Engine, *, limit: int = 100) -> list[QueuedStudyView]:
    """QUEUED studies in the order in which they will start."""
    query = (
        select(Study.id, Study.name, Study.priority, Study.created_at)
        .where(Study.state == StudyState.QUEUED)
        .order_by(Study.priority.desc(), Study.created_at, Study.id)
        .limit(limit)
    )
    with reading(engine) as session:
        return [QueuedStudyView.model_validate(row) for row in session.execute(query)]


def driven_studies(study_id: str, lease_is_free: ColumnElement[bool]) -> Select[int, int, float, float]:
    """The other studies that a driver works on, by the names of `CompetingStudy`."""
    unfinished = func.count(Run.id).filter(Run.state.in_((RunState.WAITING, RunState.RUNNING)))
    size = func.coalesce(Study.run_cpus, 0.0).label("cpus"), func.coalesce(Study.run_gpus, 0.0).label("gpus")
    return (
        select(Study.priority, unfinished.label("n_runs"), *size)
        .join(Search, Search.study_id == Study.id)
        .outerjoin(Run, Run.search_id == Search.id)
        .where(Study.id != study_id, Study.state == StudyState.RUNNING, ~lease_is_free)
        .group_by(Study.id)
    )


@dataclass(frozen=True, kw_only=True)
class Totals:
    """How much there is of everything; seconds are of all runs together."""

    studies: Mapping[StudyState, int]
    oldest_queued_s: float
    n_leases_held: int
    n_leases_expired: int
    runs: Mapping[tuple[Stage, RunState], int]
    train_s: Mapping[Stage, float]
    gpu_s: Mapping[Stage, float]


def totals(engine: Engine) -> Totals:
    """The totals as they are now; two passes, one over the studies and one over the runs."""
    is_free = lease_is_free(engine)
    has_lease = Study.lease_owner.is_not(None)
    by_state = select(
        Study.state,
        func.count(),
        func.min(Study.created_at),
        func.count().filter(has_lease, ~is_free),
        func.count().filter(has_lease, is_free),
    ).group_by(Study.state)
    by_run = select(Run.stage, Run.state, func.count(), func.sum(Run.train_s), func.sum(Run.gpu_s))
    with reading(engine) as session:
        studies = session.execute(by_state).all()
        runs = session.execute(by_run.group_by(Run.stage, Run.state)).all()
    train_s, gpu_s = dict.fromkeys(Stage, 0.0), dict.fromkeys(Stage, 0.0)
    for stage, _, _, train, gpu in runs:
        train_s[stage] += train
        gpu_s[stage] += gpu
    queued = [oldest for state, _, oldest, _, _ in studies if state == StudyState.QUEUED]
    return Totals(
        studies={state: n for state, n, *_ in studies},
        oldest_queued_s=max(0.0, (datetime.now(UTC) - queued[0]).total_seconds()) if queued else 0.0,
        n_leases_held=sum(held for *_, held, _ in studies),
        n_leases_expired=sum(expired for *_, expired in studies),
        runs={(stage, state): n for stage, state, n, _, _ in runs},
        train_s=train_s,
        gpu_s=gpu_s,
    )


@dataclass(frozen=True, kw_only=True)
class Remaining:
    """How long a RUNNING study will still take, and from what that is computed."""

    seconds: float
    n_trials: int
    n_confirm_runs: int
    n_sensitivity_runs: int
    n_at_once: int


def time_left(engine: Engine, study: StudyView) -> Remaining | None:
    """How long a study will still take, as far as its runs or those of earlier studies tell; see `remaining`."""
    if study.state != StudyState.RUNNING:
        return None
    spans = attempt_spans(engine, study.id, limit=LATEST)
    known = sum(span.state in _ENDS for span in spans) >= ENOUGH
    earlier = [] if known else _earlier_spans(engine, study)
    return remaining(study, spans, earlier=earlier, now=datetime.now(UTC))


def _earlier_spans(engine: Engine, study: StudyView) -> list[AttemptSpan]:
    """The attempts of the study of the same recipe that was completed last."""
    if study.recipe is None:
        return []
    query = (
        select(Study.id)
        .where(Study.recipe == study.recipe, Study.state == StudyState.COMPLETED)
        .order_by(Study.finished_at.desc())
        .limit(1)
    )
    with reading(engine) as session:
        found = session.execute(query).scalar_one_or_none()
    return [] if found is None else attempt_spans(engine, found, limit=LATEST)


def remaining(
    study: StudyView, spans: Sequence[AttemptSpan], *, earlier: Sequence[AttemptSpan] = (), now: datetime
) -> Remaining | None:
    """The time left: what is left of each search takes as long a run as its latest runs, on the slots in use now.

    Pruned and failed runs are in that mean as they are, so it falls as more is pruned; a run that trains takes as much
    more as those that took longer than it has. A confirm run is never pruned: before the first has ended, it takes as
    long as the search's complete trials. At the end the slots do not all stop at once, which costs half a run.
    `max_hours` limits the result.

    The median error between 20 and 70 % of simulated studies is 2 % without pruning, 9 % where 60 % of the trials are
    pruned and 14 % where pruning begins late; of elapsed time × runs left / runs ended it is 8, 20 and 27 %.

    Until ENOUGH runs have ended, runs of an earlier study count too: the median error is then 1 to 7 % in simulations.
    Without one, each run that trains counts as one that goes on at its pace to its last epoch, which is 1.7 times too
    long where 60 % of the trials will be pruned.

    Args:
        spans: the latest attempts of the study.
        earlier: those of an earlier study of its recipe.
        now: the present time.

    Returns:
        None for a study that is not RUNNING, and before the first epoch where there is no earlier study.
    """
    ended = [span for span in spans if span.state in _ENDS]
    active = [_from_its_first_step(span, now) for span in spans if span.state is AttemptState.RUNNING]
    n_at_once = max(1, len(active))
    if len(ended) < ENOUGH:
        others = [span for span in earlier if span.state in _ENDS]
        if others and not active:
            n_at_once = _n_at_once(others)
        ended = [*(others or _as_if_ended(active, study)), *ended]
    if study.state != StudyState.RUNNING or not ended:
        return None
    seconds: dict[tuple[str | None, Stage | AttemptState], list[float]] = defaultdict(list)
    for span in ended:
        for label in (span.label, None):
            seconds[label, span.stage].append(_seconds(span, now))
            if span.stage is Stage.SEARCH:
                seconds[label, span.state].append(_seconds(span, now))
    kinds: dict[Stage, tuple[Stage | AttemptState, ...]] = {
        Stage.SEARCH: (Stage.SEARCH, Stage.CONFIRM),
        Stage.CONFIRM: (Stage.CONFIRM, AttemptState.COMPLETE, Stage.SEARCH),
        Stage.SENSITIVITY: (Stage.CONFIRM, Stage.SENSITIVITY, AttemptState.COMPLETE, Stage.SEARCH),
    }

    def times(label: str, stage: Stage) -> list[float]:
        known = (seconds[of, kind] for of in (label, None) for kind in kinds[stage] if (of, kind) in seconds)
        found = next(known)
        return found[-max(8, len(found) // 2) :]  # the latest: pruning begins when there is something to compare with

    n_trials = {s.label: max(0, s.n_trials - s.n_finished) for s in study.searches}
    n_confirms = {s.label: max(0, s.n_confirm_runs - s.n_confirm_finished) for s in study.searches}
    n_varied = {s.label: _n_to_vary(study, s) for s in study.searches}
    n_active = Counter((span.label, span.stage) for span in active)
    work = sum(
        max(0, n - n_active[label, stage]) * fmean(times(label, stage))
        for stage, left in ((Stage.SEARCH, n_trials), (Stage.CONFIRM, n_confirms), (Stage.SENSITIVITY, n_varied))
        for label, n in left.items()
        if n
    )
    for span in active:
        age = _seconds(span, now)
        work += fmean([t - age for t in times(span.label, span.stage) if t > age] or [0.0])
    last = Stage.CONFIRM if any(n_confirms.values()) else Stage.SEARCH
    at_the_end = 0.5 * (1 - 1 / n_at_once) * max(fmean(times(s.label, last)) for s in study.searches)
    left = work / n_at_once + at_the_end
    max_hours = ((study.definition or {}).get("budget") or {}).get("max_hours")
    if max_hours is not None:
        left = min(left, max(0.0, 3600 * max_hours - study.elapsed_s(now)))
    return Remaining(
        seconds=left,
        n_trials=sum(n_trials.values()),
        n_confirm_runs=sum(n_confirms.values()),
        n_sensitivity_runs=sum(n_varied.values()),
        n_at_once=n_at_once,
    )


def _n_to_vary(study: StudyView, search: SearchView) -> int:
    """Sensitivity runs that are left; before a trial is chosen and they are made, the most there can be."""
    definition = study.definition or {}
    asked = definition.get("sensitivity")
    if not asked or search.n_sensitivity_runs or search.stage in ("done", "stopped") or search.label.endswith(BASELINE):
        return search.n_sensitivity_runs - search.n_sensitivity_finished
    confirmed = (definition.get("confirm") or {}).get("top_k", 1) > 0  # the confirm runs are those at the chosen value
    return int((asked["points"] - confirmed) * asked["seeds"])


def _from_its_first_step(span: AttemptSpan, now: datetime) -> AttemptSpan:
    """Without the start of its worker, the data and the capture, which the next runs on the worker do not wait for."""
    if not span.epoch or span.attempt > 1:
        return span
    return replace(span, started_at=max(span.started_at, now - span.epoch * timedelta(seconds=span.epoch_s)))


def _as_if_ended(active: Iterable[AttemptSpan], study: StudyView) -> list[AttemptSpan]:
    """The runs with an epoch, ended after all their epochs at the pace of the last one."""
    n_epochs = ((study.definition or {}).get("task") or {}).get("epochs") or 0
    return [
        replace(
            span,
            state=AttemptState.COMPLETE,
            finished_at=span.started_at + max(n_epochs, span.epoch) * timedelta(seconds=span.epoch_s),
        )
        for span in active
        if span.epoch and span.attempt == 1
    ]


def _n_at_once(ended: Sequence[AttemptSpan]) -> int:
    """How many of these ran at the same time, on average."""
    busy_s = sum((span.finished_at - span.started_at).total_seconds() for span in ended if span.finished_at)
    first = min(span.started_at for span in ended)
    whole_s = (max(span.finished_at for span in ended if span.finished_at) - first).total_seconds()
    return max(1, round(busy_s / max(whole_s, 1e-9)))


_ENDS = (AttemptState.COMPLETE, AttemptState.PRUNED, AttemptState.FAIL)


def _seconds(span: AttemptSpan, now: datetime) -> float:
    return max(0.0, ((span.finished_at or now) - span.started_at).total_seconds())
