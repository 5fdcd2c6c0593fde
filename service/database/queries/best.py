"""The best results over all studies: of one task and optimizer, and of all of them.

A trial competes by its confirm runs; a search without confirmed trials by its best COMPLETE run. Confirmed trials
come before all single runs, because the best of many single runs is partly luck. Among the confirmed, those with
the smallest share of failed seeds come first, then the mean over the seeds decides, and of equal means that of more.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from itertools import product
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Engine, ScalarSelect, Select, asc, case, desc, func, literal, select
from sqlalchemy.orm import Session, aliased, contains_eager, selectinload

import tasks.registry
from admeta.client.models import BestView, OurNumberView, RecipeView, SpreadView
from search.analysis import spread
from search.paper.comparison import FINETUNED, Measured, number_text, variant_of
from search.recipe import LADDER
from search.states import Direction, RunState, Stage
from service.database.engine import reading
from service.database.models import CONFIRM, Run, Search, Study
from service.database.queries.summaries import WITHDRAWN, TrialSummary, summarize, test_metric
from service.database.retry import REQUEST, retried
from tasks.config import with_recipe


@cache  # an expression never changes, and making this one costs more than the query
def best_run_id() -> ColumnElement[int | None]:
    """SQL: id of the best COMPLETE run of stage search; NULL if there is none.

    Correlated to `Study` and `Search` of the enclosing query; one look into an index for each search. The first of
    equals wins.
    """
    best = {direction: _first_run_id(direction) for direction in Direction}
    return case((Study.direction == Direction.MAXIMIZE, best[Direction.MAXIMIZE]), else_=best[Direction.MINIMIZE])


def _first_run_id(direction: Direction) -> ScalarSelect[Any]:
    run = aliased(Run)
    return (
        select(run.id)
        .where(
            run.search_id == Search.id,
            run.stage == Stage.SEARCH,
            run.state == RunState.COMPLETE,
            run.value.is_not(None),
        )
        .order_by(run.value.desc() if direction.is_maximize else run.value.asc(), run.trial_number)
        .limit(1)
        .correlate(Search)
        .scalar_subquery()
    )


@retried(REQUEST)
def best(
    engine: Engine,
    *,
    task: str,
    optimizer: str,
    model: str | None = None,
    metric: str | None = None,
    recipe: str | None = None,
) -> BestView | None:
    """The settings with the best validation result within one recipe; None where no trial is complete.

    The recipe is that with most epochs, of several the one used last: results of different recipes cannot be compared.
    Studies that train fresh weights come before those that start from trained ones. A preset other than the default, or
    a variant that the paper calls an ablation, is only given if there is nothing else.

    Args:
        task: a registered task.
        optimizer: the optimizer's name, whatever label a study gave it.
        model: only studies of this model.
        metric: only studies with this objective; the task's default where None.
        recipe: only studies whose recipe begins so.

    Raises:
        UnknownTaskError: the task is not registered.
    """
    info = tasks.registry.get(task)
    metric = metric or info.default_metric
    wanted = [
        Study.task == task,
        Study.metric == metric,
        Search.optimizer == optimizer,
        of_one_size(),
        *([] if model is None else [Study.model == model]),
        *([] if recipe is None else [Study.recipe.startswith(recipe, autoescape=True)]),
    ]
    with reading(engine) as session:
        direction = info.metrics.get(metric) or _last_direction(session, wanted)
        wanted.append(Study.direction == direction)
        in_order = asc if direction == Direction.MINIMIZE else desc
        recipes = _recipes(session, wanted)
        for origin, chosen in product(([Study.origin.is_(None)], []), [one.recipe for one in recipes]):
            where = [*wanted, *origin, Study.recipe.is_(None) if chosen is None else Study.recipe == chosen]
            for candidates in (_confirmed(*where), _single(*where)):
                found = _first(session, candidates.order_by("failed_share", in_order("value"), desc("n"), "first_id"))
                if found is not None:
                    (run,) = _load(session, [found.run_id])
                    others = [
                        RecipeView(recipe=other.recipe, model=other.model, epochs=other.epochs, study=other.study)
                        for other in recipes
                        if other.recipe not in (None, chosen)
                    ]
                    view = _best_view(run, _summary(run), task=_tasks(session, [run])[run.search.study_id])
                    return view.model_copy(update={"other_recipes": others})
    return None


def of_one_size() -> ColumnElement[bool]:
    """SQL: whether the study is none with `scale`, whose searches are of several sizes."""
    return Study.recipe.is_(None) | Study.recipe.not_like(f"{LADDER}%")


def _last_direction(session: Session, where: Sequence[ColumnElement[bool]]) -> Direction | None:
    """The direction that the last of the studies declared; None where there is none."""
    query = select(Study.direction).join(Search, Search.study_id == Study.id).where(*where)
    return session.scalar(query.order_by(Study.created_at.desc()).limit(1))


def _first(session: Session, candidates: Select[*tuple[Any, ...]]) -> Any:
    """The first main result, or else the first of all; None where there is none."""
    first = None
    for row in session.execute(candidates).yield_per(100):
        if _variant(row) is None:
            return row
        first = first or row
    return first


def _recipes(session: Session, where: Sequence[ColumnElement[bool]]) -> list[Any]:
    """The recipes with a result, each with its last study: those with most epochs first, then those used last."""
    query = (
        select(Study.recipe, Study.model, Study.epochs, Study.name.label("study"))
        .join(Search, Search.study_id == Study.id)
        .where(*where, best_run_id().is_not(None))
        .order_by(func.coalesce(Study.epochs, 0).desc(), Study.created_at.desc())
    )
    last: dict[str | None, Any] = {}
    for row in session.execute(query):
        last.setdefault(row.recipe, row)
    return list(last.values())


@dataclass(frozen=True, kw_only=True)
class BestResult:
    """An optimizer's best result on a task.

    Attributes:
        best: as `GET /v1/best` gives it.
        study_id: of the study that it comes from.
        variant: the paper's name of the ablation that its settings are, or `FINETUNED` where training started from
            trained weights; None for a main result.
        tested: every test metric over the confirm runs, without `test_`; empty where nothing was tested.
        train_s: seconds of training over the confirm runs.
        values: what `best.validation` is of, by study and seed.
        recipe_used_at: when the last study of its recipe was submitted.
    """

    best: BestView
    study_id: str
    variant: str | None
    tested: Mapping[str, SpreadView]
    train_s: SpreadView
    values: Mapping[Hashable, float]
    recipe_used_at: datetime


class _Key(NamedTuple):
    task: str
    model: str | None
    metric: str
    direction: Direction
    optimizer: str
    variant: str | None
    epochs: int | None
    recipe: str | None


@retried(REQUEST)
def best_results(engine: Engine, *where: ColumnElement[bool]) -> list[BestResult]:
    """The best of every (task, model, recipe, metric, optimizer, variant); in order of the key.

    Args:
        where: of the studies that are read; all where it is empty.
    """
    studies = of_one_size(), *where
    with reading(engine) as session:
        chosen: dict[_Key, Any] = {}
        for row in [*session.execute(_confirmed(*studies)), *session.execute(_single(*studies))]:
            key = _key(row)
            if key not in chosen or _order(row) < _order(chosen[key]):
                chosen[key] = row
        runs = {run.id: run for run in _load(session, [row.run_id for row in chosen.values()])}
        task_of = _tasks(session, runs.values())
        last_of_recipe = select(Study.recipe, func.max(Study.created_at)).group_by(Study.recipe)
        used_at = {recipe: at for recipe, at in session.execute(last_of_recipe)}
        in_order = sorted(chosen, key=lambda key: tuple((part is not None, part or 0) for part in key))
        return [
            _result(
                run,
                task=task_of[run.search.study_id],
                variant=key.variant,
                recipe_used_at=used_at[key.recipe],
            )
            for key in in_order
            for run in [runs[chosen[key].run_id]]
        ]


def _order(row: Any) -> tuple[bool, float, float, int, int]:
    return not row.confirmed, row.failed_share, row.direction.cost(row.value), -row.n, row.first_id


def _key(row: Any) -> _Key:
    variant = _variant(row) if row.origin is None else FINETUNED
    return _Key(row.task, row.model, row.metric, row.direction, row.optimizer, variant, row.epochs, row.recipe)


def _variant(row: Any) -> str | None:
    return variant_name(task=row.task, model=row.model, optimizer=row.optimizer, settings={**row.fixed, **row.params})


def variant_name(*, task: str, model: str | None, optimizer: str, settings: Mapping[str, Any]) -> str | None:
    """The paper's name of an ablation, or the preset where it is not the default one; None for a main result."""
    found = variant_of(task=task, model=model, optimizer=optimizer, settings=settings)
    return found or preset_name(settings)


def preset_name(settings: Mapping[str, Any]) -> str | None:
    """The preset, where it is not the default one."""
    preset = settings.get("preset", "default")
    return None if preset == "default" else f"preset {preset}"


def _confirmed(*where: ColumnElement[bool]) -> Select[*tuple[Any, ...]]:
    """Trials all of whose confirm runs have ended and one is complete, with their mean."""
    complete: ColumnElement[Any] = case((Run.state == RunState.COMPLETE, Run.value))
    failed: ColumnElement[Any] = case(
        (Run.failure.in_(WITHDRAWN), None),
        ((Run.state == RunState.COMPLETE) & Run.value.is_not(None), 0.0),
        else_=1.0,
    )
    unfinished = case((Run.state.in_((RunState.WAITING, RunState.RUNNING)), 1), else_=0)
    trials = (
        select(
            Run.search_id,
            Run.trial_number,
            func.avg(failed).label("failed_share"),
            func.avg(complete).label("value"),
            func.count(complete).label("n"),
            func.min(Run.id).label("first_id"),
        )
        .join(Run.search)
        .join(Search.study)
        .where(Run.stage == CONFIRM, *where)
        .group_by(Run.search_id, Run.trial_number)
        .having(func.count(complete) > 0, func.sum(unfinished) == 0)
        .subquery()
    )
    of_trial = (Run.search_id == trials.c.search_id) & (Run.trial_number == trials.c.trial_number)
    found = trials.c.failed_share, trials.c.value, trials.c.n, trials.c.first_id
    return _candidates(True, *found).join(trials, of_trial & (Run.stage == Stage.SEARCH))  # noqa: FBT003  (a column)


def _single(*where: ColumnElement[bool]) -> Select[*tuple[Any, ...]]:
    """The best run of each search."""
    winners = select(best_run_id().label("run_id")).select_from(Search).join(Search.study).where(*where).subquery()
    found = literal(0.0).label("failed_share"), Run.value, literal(1).label("n"), Run.id.label("first_id")
    return _candidates(False, *found).join(winners, winners.c.run_id == Run.id)  # noqa: FBT003  (a column)


def _candidates(confirmed: Any, *columns: Any) -> Select[*tuple[Any, ...]]:
    of_study = Study.task, Study.model, Study.epochs, Study.recipe, Study.metric, Study.direction, Study.origin
    of_trial = Search.optimizer, Search.fixed, Run.params, Run.id.label("run_id")
    query = select(*of_study, *of_trial, literal(confirmed).label("confirmed"), *columns)
    return query.select_from(Run).join(Run.search).join(Search.study)


def _load(session: Session, run_ids: Iterable[int]) -> Sequence[Run]:
    """Search runs with their study and the confirm runs of their trial."""
    query = select(Run).join(Run.search).join(Search.study).where(Run.id.in_(list(run_ids)))
    with_study = contains_eager(Run.search).contains_eager(Search.study).defer(Study.definition, raiseload=True)
    return session.execute(query.options(with_study, selectinload(Run.confirm_runs))).scalars().all()


def _summary(run: Run) -> TrialSummary:
    return summarize(run, run.confirm_runs, metric=run.search.study.metric)


def _tasks(session: Session, runs: Iterable[Run]) -> dict[str, dict[str, Any]]:
    """By study, the task in its definition."""
    query = select(Study.id, Study.definition).where(Study.id.in_({run.search.study_id for run in runs}))
    return {study: definition.get("task", {}) for study, definition in session.execute(query)}


def _best_view(run: Run, summary: TrialSummary, *, task: Mapping[str, Any]) -> BestView:
    study, whole = run.search.study, with_recipe(task, run.training)
    return BestView(
        **{**study.columns(), **run.search.columns(), **summary.shown},
        study=study.name,
        test_metric=test_metric(study.metric),
        evidence=summary.evidence,
        init_from=study.origin,
        task_config=whole,
        weight_decay_on=whole.get("weight_decay_on", "all"),
    )


def _result(run: Run, *, task: Mapping[str, Any], variant: str | None, recipe_used_at: datetime) -> BestResult:
    summary = _summary(run)
    complete = [one for one in summary.counted if one.state == RunState.COMPLETE] if summary.confirmed else []
    failed = [None] * (len(summary.counted) - len(complete))
    names = sorted({name for one in complete for name in one.test_metrics})
    return BestResult(
        best=_best_view(run, summary, task=task),
        study_id=run.search.study_id,
        variant=variant,
        tested={
            name.removeprefix("test_"): spread([*(one.test_metrics.get(name) for one in complete), *failed])
            for name in names
        },
        train_s=spread([one.train_s for one in complete]),
        values={
            (run.search.study_id, one.seed): one.value
            for one in summary.counted
            if one.state == RunState.COMPLETE and one.value is not None
        },
        recipe_used_at=recipe_used_at,
    )


def longest_recipes(found: Sequence[BestResult]) -> list[BestResult]:
    """Of each task, model and metric, the results of the recipe with most epochs, of several that used last.

    For tables that name neither epochs nor data: they must not mix recipes.
    """
    longest: dict[tuple[str, str | None, str], tuple[int, datetime, str]] = {}
    for one in found:
        key, place = _of_recipe(one)
        longest[key] = max(longest.get(key, place), place)
    return [one for one in found if longest[(of := _of_recipe(one))[0]] == of[1]]


def _of_recipe(one: BestResult) -> tuple[tuple[str, str | None, str], tuple[int, datetime, str]]:
    """Task, model and metric, and the place of the recipe among theirs."""
    best = one.best
    return (best.task, best.model, best.metric), (best.epochs or 0, one.recipe_used_at, best.recipe or "")


def measured(found: Sequence[BestResult]) -> list[Measured]:
    """Our test results as the paper's tables take them."""
    return [
        Measured(
            task=one.best.task,
            optimizer=one.best.optimizer,
            metric=metric,
            number=OurNumberView(
                **{**dict(one.best), **dict(spread)},
                text=number_text(metric, mean=spread.mean, std=spread.std, n=spread.n),
            ),
            variant=one.variant,
        )
        for one in longest_recipes(found)
        if one.best.model is not None
        for metric, spread in {**one.tested, "training_time": one.train_s}.items()
        if spread.mean is not None
    ]
