"""Optimizers across tasks: which studies are compared, and what their optimizers reached.

A task is a recipe, since results of different recipes cannot be compared. An optimizer counts in it by all its searches
there, each by the trial that represents it in its study's comparison; the statistics are those of
`search.analysis.across`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from sqlalchemy import ColumnElement, Engine, or_, select
from sqlalchemy.orm import Session

from admeta.client.models import (
    LeftOutView,
    ProfileOptimizerView,
    ProfileResultView,
    ProfilesView,
    ProfileTaskView,
    RankTestView,
)
from admeta.client.models.base import finite_or_none
from search.analysis import TargetTimes, spread, time_to_target
from search.analysis.across import Across, Outcome, Task, across, largest_comparison, sentence
from search.analysis.profiles import full_ranks
from search.recipe import LADDER
from search.states import Direction, RunState, StudyState, TimeUnit
from service.database.engine import reading
from service.database.errors import NoProfileError
from service.database.models import Search, Study
from service.database.queries.best import best_run_id, of_one_size, preset_name, variant_name
from service.database.queries.chosen import chosen_trials, curves_of, target_of
from service.database.queries.comparison import place_in_definition
from service.database.queries.lookup import VOID_TAG, find_study, has_tag
from service.database.queries.summaries import TrialSummary
from service.database.retry import REQUEST, retried

MAX_STUDIES = 500
"""The newest ones are compared; a comparison of more takes longer than a request should."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Which studies are compared; an empty field leaves the choice open.

    Attributes:
        studies: ids or names. Studies that are named but cannot be compared are told with the reason.
        recipes: hashes, or their beginnings.
        tasks: names of tasks.
        tag: a tag of the studies.
        optimizers: names as `ProfileOptimizerView` has them; only recipes with results of all of them are compared.
    """

    studies: Sequence[str] = ()
    recipes: Sequence[str] = ()
    tasks: Sequence[str] = ()
    tag: str | None = None
    optimizers: Sequence[str] = ()


@dataclass(kw_only=True)
class _Member:
    """An optimizer's search in a study, with the trial that represents it; None where no trial is complete."""

    study: Study
    search: Search
    best: int | None
    name: str
    is_baseline: bool
    chosen: TrialSummary | None = None


@dataclass(kw_only=True)
class _Recipe:
    """A recipe with the searches that count, by optimizer."""

    studies: list[Study] = field(default_factory=list)
    members: dict[str, list[_Member]] = field(default_factory=lambda: defaultdict(list))
    note: str | None = None

    @property
    def title(self) -> str:
        one = self.studies[0]
        epochs = "" if one.epochs is None else f", {one.epochs} epochs"
        return f"{one.task} {one.model or ''}".strip() + f"{epochs} ({(one.recipe or '')[:8]})"


@retried(REQUEST)
def profiles(engine: Engine, choice: Choice, *, time: TimeUnit = TimeUnit.SECONDS) -> ProfilesView:
    """Optimizers compared across the recipes of completed studies.

    Without a choice of optimizers they are those with the most results on two recipes or more. In a recipe with a study
    of all of them only such studies count, since their budgets are equal; otherwise results of several studies do.

    Raises:
        StudyNotFoundError: no study has a chosen id or name.
        NoProfileError: a chosen optimizer has no result in the studies, or no study has a chosen recipe.
    """
    with reading(engine) as session:
        left_out: list[LeftOutView] = []
        studies = _studies(session, choice, left_out)
        recipes = _by_recipe(session, studies, left_out)
        names, keys = _compared(recipes, choice.optimizers, left_out)
        for key in keys:
            _keep_complete_studies(recipes[key], names, left_out)
            _choose_trials(session, recipes[key])
        times = {key: _times(session, recipes[key], names) for key in keys}
        tasks = {key: _task(recipes[key], names, times[key], unit=time) for key in keys}
        void = [key for key, task in tasks.items() if task.is_void]
        left_out += [_left(recipes[key], "void: all optimizers failed, or all have the same result") for key in void]
        tasks = {key: task for key, task in tasks.items() if key not in void}
        found = across(tasks)
        views = [_task_view(recipes[key], found, key, target=_target(recipes[key])) for key in tasks]
        results = [
            _result_view(recipes[key], name, task, found, key, times[key])
            for key, task in tasks.items()
            for name in found.test.mean_ranks
        ]
        return ProfilesView(
            sentence=sentence(found.test, found.groups),
            time=time,
            optimizers=_optimizer_views(found),
            tasks=views,
            results=results,
            ranks=RankTestView(**vars(found.test), groups=found.groups),
            left_out=left_out,
        )


def _studies(session: Session, choice: Choice, left_out: list[LeftOutView]) -> list[Study]:
    """The completed studies chosen, newest first, but for those with the tag void and those without a recipe."""
    for study in (named := [find_study(session, name) for name in choice.studies]):
        if study.state != StudyState.COMPLETED:
            left_out.append(_left_study(study, f"is {study.state}; only completed studies are compared"))
        elif study.recipe is None:
            left_out.append(_left_study(study, "has no recipe: this version cannot read its definition"))
        elif study.recipe.startswith(LADDER):
            left_out.append(_left_study(study, "is of several sizes of the model; see its scale"))
    where = [
        Study.state == StudyState.COMPLETED,
        Study.recipe.is_not(None),
        of_one_size(),
        *_conditions(session, choice),
    ]
    if named:
        where.append(Study.id.in_([study.id for study in named]))
    query = select(Study).where(*where).order_by(Study.created_at.desc(), Study.id).limit(MAX_STUDIES + 1)
    found = list(session.execute(query).scalars())
    for study in found[MAX_STUDIES:]:
        left_out.append(_left_study(study, f"and all older ones: the newest {MAX_STUDIES} are compared; choose fewer"))
    void = [study for study in found[:MAX_STUDIES] if VOID_TAG in study.tags]
    left_out += [_left_study(study, f"has the tag {VOID_TAG}") for study in void]
    return [study for study in found[:MAX_STUDIES] if study not in void]


def _conditions(session: Session, choice: Choice) -> list[ColumnElement[bool]]:
    conditions = []
    begins = [Study.recipe.startswith(begin, autoescape=True) for begin in choice.recipes]
    for begin, condition in zip(choice.recipes, begins, strict=True):
        if session.execute(select(Study.id).where(condition).limit(1)).first() is None:
            raise NoProfileError(
                f"no study has a recipe that begins with {begin!r}.",
                hint="The answer without this filter lists the recipes.",
            )
    if begins:
        conditions.append(or_(*begins))
    if choice.tasks:
        conditions.append(Study.task.in_(choice.tasks))
    if choice.tag is not None:
        conditions.append(has_tag(choice.tag))
    return conditions


def _by_recipe(session: Session, studies: Sequence[Study], left_out: list[LeftOutView]) -> dict[str, _Recipe]:
    """Recipes with their searches. Where some studies confirm their best trials, those that don't are left out."""
    by_id = {study.id: study for study in studies}
    query = select(Search, best_run_id()).join(Search.study).where(Search.study_id.in_(by_id))
    members: dict[str, list[_Member]] = defaultdict(list)
    for search, best in session.execute(query.order_by(Search.id)):
        study = by_id[search.study_id]
        place = place_in_definition(study, search)
        name = _name(study, search, place["listed_as"])
        member = _Member(study=study, search=search, best=best, name=name, is_baseline="baseline_of" in place)
        members[study.id].append(member)
    confirming = {study.recipe for study in studies if any(one.search.n_confirm_runs for one in members[study.id])}
    recipes: dict[str, _Recipe] = defaultdict(_Recipe)
    for study in studies:
        if study.recipe in confirming and not any(one.search.n_confirm_runs for one in members[study.id]):
            left_out.append(_left_study(study, "has single runs; other studies of its recipe have confirmed results"))
            continue
        recipe = recipes[str(study.recipe)]
        recipe.studies.append(study)
        for one in members[study.id]:
            recipe.members[one.name].append(one)
    return dict(recipes)


def _name(study: Study, search: Search, label: str) -> str:
    """What tells the optimizer from the others: its name; its label, ablation or preset where it has one."""
    if label != search.optimizer:
        parts = [f"{label} ({search.optimizer})", preset_name(search.fixed)]
    else:
        variant = variant_name(task=study.task, model=study.model, optimizer=search.optimizer, settings=search.fixed)
        parts = [label, variant]
    return ", ".join(part for part in parts if part)


def _compared(
    recipes: Mapping[str, _Recipe], wanted: Sequence[str], left_out: list[LeftOutView]
) -> tuple[list[str], list[str]]:
    """The optimizers and the recipes that are compared."""
    known = sorted({name for recipe in recipes.values() for name in recipe.members})
    unknown = [name for name in wanted if name not in known]
    if unknown:
        raise NoProfileError(
            f"no completed study of those chosen has an optimizer {unknown[0][:200]!r}.",
            hint=f"They have {', '.join(known[:50])}." if known else "No study of those chosen can be compared.",
        )
    baselines = {
        name for recipe in recipes.values() for name, of in recipe.members.items() if any(one.is_baseline for one in of)
    }
    names, keys = largest_comparison({key: recipe.members.keys() - baselines for key, recipe in recipes.items()})
    if wanted:
        names = list(dict.fromkeys(wanted))
        keys = [key for key, recipe in recipes.items() if recipe.members.keys() >= set(names)] if len(names) > 1 else []
    for key, recipe in recipes.items():
        missing = [name for name in names if name not in recipe.members]
        if key not in keys:
            why = f"has no result of {', '.join(missing)}" if missing else "has one optimizer"
            left_out.append(_left(recipe, why))
    for name in known:
        if name not in names:
            n = sum(name in recipes[key].members for key in keys)
            reason = f"has results on {n} of the {len(keys)} recipes"
            if wanted:
                reason = "was not chosen"
            elif name in baselines:
                reason = "is a baseline, which is compared where it is chosen"
            left_out.append(LeftOutView(kind="optimizer", name=name, reason=reason))
    return names, sorted(keys, key=lambda key: (recipes[key].title, key))


def _keep_complete_studies(recipe: _Recipe, names: Sequence[str], left_out: list[LeftOutView]) -> None:
    """Keep the studies of all optimizers, where there are; else note that budgets may differ."""
    of_study: dict[str, set[str]] = defaultdict(set)
    for name in names:
        for one in recipe.members[name]:
            of_study[one.study.id].add(name)
    whole = {study_id for study_id, there in of_study.items() if len(there) == len(names)}
    kept = whole or set(of_study)
    if not whole:
        recipe.note = "no study has all optimizers: results of several studies, whose budgets may differ"
    for study in recipe.studies:
        if study.id not in kept:
            lacking = [name for name in names if name not in of_study[study.id]]
            left_out.append(_left_study(study, f"lacks {', '.join(lacking)}; another study of its recipe has all"))
    recipe.studies = [study for study in recipe.studies if study.id in kept]
    recipe.members = {name: [one for one in recipe.members[name] if one.study.id in kept] for name in names}


def _choose_trials(session: Session, recipe: _Recipe) -> None:
    members = [one for of in recipe.members.values() for one in of]
    chosen = chosen_trials(session, recipe.studies[0], [(one.search, one.best) for one in members])
    for one in members:
        one.chosen = chosen.get(one.search.id)


def _target(recipe: _Recipe) -> float | None:
    """The hardest of the targets that the studies state, or else the task's."""
    targets = [target for study in recipe.studies if (target := target_of(study)) is not None]
    return recipe.studies[0].direction.best(targets) if targets else None


def _times(session: Session, recipe: _Recipe, names: Sequence[str]) -> dict[str, TargetTimes]:
    """When the runs first reached the target, by optimizer; none without a target."""
    target = _target(recipe)
    if target is None:
        return {}
    runs = {
        name: [run.id for one in recipe.members[name] if one.chosen for run in one.chosen.counted] for name in names
    }
    curves = curves_of(session, [run_id for ids in runs.values() for run_id in ids])
    direction = recipe.studies[0].direction
    return {
        name: time_to_target(
            [
                *(curves[run_id] for run_id in ids),
                *([] for one in recipe.members[name] for _ in range(_n_lost(one))),
            ],
            target=target,
            direction=direction,
        )
        for name, ids in runs.items()
    }


def _n_lost(member: _Member) -> int:
    """Runs of a search that ended without a complete trial: all that it was to confirm."""
    return 0 if member.chosen else max(1, member.search.n_confirm_runs)


def _task(recipe: _Recipe, names: Sequence[str], times: Mapping[str, TargetTimes], *, unit: TimeUnit) -> Task:
    outcomes = {}
    for name in names:
        values, n_failed = _values(recipe.members[name])
        of = times.get(name)
        time = None if of is None else of.median_steps if unit is TimeUnit.STEPS else of.median_train_s
        outcomes[name] = Outcome(values=values, n_failed=n_failed, time=time)
    return Task(direction=recipe.studies[0].direction, outcomes=outcomes)


def _values(members: Iterable[_Member]) -> tuple[tuple[float, ...], int]:
    """Final values of the runs that ended well, and the number of the others."""
    values: list[float] = []
    n_failed = 0
    for one in members:
        counted = one.chosen.counted if one.chosen else ()
        good = [run.value for run in counted if run.state == RunState.COMPLETE and run.value is not None]
        values += good
        n_failed += len(counted) - len(good) + _n_lost(one)
    return tuple(values), n_failed


def _task_view(recipe: _Recipe, found: Across, key: str, *, target: float | None) -> ProfileTaskView:
    one = recipe.studies[0]
    return ProfileTaskView(
        **one.columns(),
        data=(one.definition.get("task") or {}).get("data_dir"),
        init_from=one.origin,
        studies=sorted(study.name for study in recipe.studies),
        target=target,
        std=found.stds.get(key),
        without_time=found.without_time.get(key),
        without_value=found.without_value.get(key),
        note=recipe.note,
    )


def _result_view(
    recipe: _Recipe, name: str, task: Task, found: Across, key: str, times: Mapping[str, TargetTimes]
) -> ProfileResultView:
    members, outcome = recipe.members[name], task.outcomes[name]
    reached = spread([*outcome.values, *[None] * outcome.n_failed])
    one = recipe.studies[0]
    budgets = [study.definition.get("budget") or {} for study in recipe.studies]
    counted = all(budget.get("trials_per_optimizer") is not None for budget in budgets)
    return ProfileResultView(
        **reached.model_dump(),
        task=one.task,
        model=one.model,
        recipe=one.recipe,
        optimizer=name,
        rank=full_ranks(task.positions(), direction=Direction.MINIMIZE)[name],
        n_searches=len(members),
        n_trials=sum(member.search.n_trials for member in members) if counted else None,
        time=finite_or_none(outcome.time),
        ratio=found.by_time[name].ratios.get(key) if found.by_time else None,
        distance=found.by_value[name].ratios.get(key) if found.by_value else None,
        n_reached=times[name].n_reached if name in times else None,
    )


def _optimizer_views(found: Across) -> list[ProfileOptimizerView]:
    means = found.test.mean_ranks
    return [
        ProfileOptimizerView(
            name=name, mean_rank=means[name], by_time=found.by_time.get(name), by_value=found.by_value.get(name)
        )
        for name in sorted(means, key=lambda name: means[name])
    ]


def _left(recipe: _Recipe, reason: str) -> LeftOutView:
    return LeftOutView(kind="recipe", name=recipe.title, reason=reason)


def _left_study(study: Study, reason: str) -> LeftOutView:
    return LeftOutView(kind="study", name=study.name, reason=reason)
