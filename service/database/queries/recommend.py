"""What to use next on a task: the best results of this task, or else of alike ones, and what trainings have cost.

`search.recommendation` decides; here is what it is told, and how its answer is shown.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError
from sqlalchemy import ColumnElement, Engine, func, select
from sqlalchemy.orm import Session

import admeta.registry
import tasks.registry
from admeta.client.formatting import chance
from admeta.client.models import CandidateView, CostView, RecommendationView, RecommendRequest
from admeta.errors import AdmetaError
from admeta.registry import construction
from admeta.spaces import split_recipe
from search.definition import StudyDefinition
from search.optimizer_search import BASELINE
from search.paper import setups
from search.recipe import recipe_of
from search.recommendation import (
    KEPT,
    Candidate,
    Choice,
    Cost,
    Planned,
    Sureness,
    choose,
    in_order,
    likely,
    plan,
    sureness,
)
from search.states import Direction, RunState, Spend, Stage
from search.warm_start import LESS_ALIKE, degree, portfolio
from service.database.engine import reading
from service.database.models import Run, Search, Study
from service.database.queries.best import BestResult, best_results, earlier_trials, of_one_size
from service.database.queries.lookup import VOID_TAG, has_tag
from service.database.retry import REQUEST, retried
from tasks.config import TaskConfig

DEFAULT = "adamw"
"""The optimizer where nothing is known."""


@retried(REQUEST)
def recommendation(engine: Engine, asked: RecommendRequest) -> RecommendationView:
    """Which optimizer, settings and recipe to use, how sure that is, and what the hours are best spent on.

    Raises:
        UnknownTaskError: the task is not registered.
        ValidationError: the task has no such model.
    """
    config = config_of(asked)
    metric, direction = _objective(config)
    of_task = Study.task == config.name, Study.model == config.model
    own = _results(engine, *of_task, Study.metric == metric, Study.direction == direction)
    own = [one for one in own if _has_fields(one, config, asked.task_fields)]
    if own:
        with reading(engine) as session:
            return _of_recipe(session, own, asked, _costs(session, config))
    found = _results(engine)
    with reading(engine) as session:
        return _without_results(session, found, asked, config, _costs(session, config))


def config_of(asked: RecommendRequest) -> TaskConfig:
    """The task's configuration with its defaults and this model. Raises as `recommendation` does."""
    return tasks.registry.parse_config(asked.task_fields)


def _is_known(optimizer: str) -> bool:
    """False where the optimizer's package was installed once, and is no more."""
    try:
        admeta.registry.get(optimizer)
    except AdmetaError:
        return False
    return True


def _objective(config: TaskConfig) -> tuple[str, Direction]:
    """The task's metric and its direction; a study may have turned it round."""
    info = tasks.registry.get(config.name)
    return info.default_metric, Direction(info.metrics[info.default_metric])


def _results(engine: Engine, *where: ColumnElement[bool]) -> list[BestResult]:
    """Results that speak for an optimizer: none of an ablation, and none of a study with the tag void."""
    found = best_results(engine, ~has_tag(VOID_TAG), *where)
    return [
        one
        for one in found
        if one.variant is None and one.best.validation.mean is not None and _is_known(one.best.optimizer)
    ]


def _has_fields(one: BestResult, config: TaskConfig, fields: Collection[str]) -> bool:
    """Whether the result is of this task, with these of its fields as they are here, such as `data_dir`."""
    asked = config.model_dump(mode="json", include={"name", "model", *fields})
    return all(one.best.task_config.get(field) == value for field, value in asked.items())


@dataclass(frozen=True, kw_only=True)
class _Paid:
    """What the runs of one recipe have cost in seconds, and their epochs."""

    seconds: float
    n_epochs: int
    n_runs: int
    trial_s: float | None
    in_gpu: bool


def _costs(session: Session, config: TaskConfig) -> dict[str | None, _Paid]:
    """By recipe of this task and model, of one size. Runs that took over another one's curve trained nothing."""
    searched = Run.stage == Stage.SEARCH
    seconds = func.sum(Run.train_s + Run.eval_s)
    query = (
        select(
            Study.recipe,
            func.sum(Run.n_epochs).label("n_epochs"),
            func.count().label("n_runs"),
            seconds.label("train_s"),
            func.sum(Run.gpu_s).label("gpu_s"),
            func.avg(Run.train_s + Run.eval_s).filter(searched).label("trial_s"),
            func.avg(Run.gpu_s).filter(searched).label("trial_gpu_s"),
        )
        .join(Search, Search.study_id == Study.id)
        .join(Run, Run.search_id == Search.id)
        .where(Study.task == config.name, Study.model == config.model, of_one_size())
        .where(Run.n_epochs > 0, Run.state.in_((RunState.COMPLETE, RunState.PRUNED)))
        .group_by(Study.recipe)
    )
    paid = {}
    for row in session.execute(query):
        in_gpu = row.gpu_s > 0
        paid[row.recipe] = _Paid(
            seconds=row.gpu_s if in_gpu else row.train_s,
            n_epochs=row.n_epochs,
            n_runs=row.n_runs,
            trial_s=row.trial_gpu_s if in_gpu else row.trial_s,
            in_gpu=in_gpu,
        )
    return paid


def _cost(paid: _Paid | None, config: Mapping[str, Any], epochs: int | None) -> tuple[CostView, Cost] | None:
    if paid is None or not paid.seconds or not epochs:
        return None
    epoch_s = paid.seconds / paid.n_epochs
    training = epoch_s * epochs / 3600
    trial = training if paid.trial_s is None else min(training, paid.trial_s / 3600)
    view = CostView(
        epoch_s=epoch_s,
        training_hours=training,
        trial_hours=trial,
        in_gpu_hours=paid.in_gpu,
        n_runs=paid.n_runs,
    )
    return view, Cost(training_hours=training, trial_hours=trial)


# Results of this task and model --------------------------------------------------------------------------------------


def _of_recipe(
    session: Session, own: Sequence[BestResult], asked: RecommendRequest, costs: Mapping[str | None, _Paid]
) -> RecommendationView:
    recipe = _affordable_recipe(own, costs, asked.gpu_hours)
    by_optimizer = {one.best.optimizer: one for one in own if one.best.recipe == recipe}
    direction = Direction(own[0].best.direction)
    values = _search_values(session, by_optimizer)
    ranked = in_order([_candidate(one, values[name]) for name, one in by_optimizer.items()], direction)
    sure = sureness(ranked, direction)
    chosen = by_optimizer[ranked[0].optimizer]
    cost = _cost(costs.get(recipe), chosen.best.task_config, chosen.best.epochs)
    choice = choose(ranked, sure, direction, cost=cost and cost[1], hours=asked.gpu_hours)
    searches = {name: _listed(session, by_optimizer[name]) for name in likely(ranked, sure)}
    planned, choice = _planned(session, choice, by_optimizer, searches, asked, cost and cost[1])
    best = chosen.best
    return RecommendationView(
        task=best.task,
        model=best.model,
        metric=best.metric,
        direction=best.direction,
        source="recipe",
        recipe=best.recipe,
        epochs=best.epochs,
        optimizer=best.optimizer,
        settings=best.settings,
        task_config=best.task_config,
        code=best.code,
        probability=None if sure is None else sure.chances.get(best.optimizer),
        how_sure=_how_sure(ranked, sure),
        candidates=[_candidate_view(one, by_optimizer[one.optimizer], ranked[0], sure) for one in ranked],
        cost=cost and cost[0],
        spend=choice.spend,
        why=choice.why,
        plan=None if planned is None else planned.definition,
        plan_hours=None if planned is None else planned.hours,
    )


def _affordable_recipe(own: Sequence[BestResult], costs: Mapping[str | None, _Paid], hours: float) -> str | None:
    """The recipe with most epochs, of several the one used last; if possible one that the hours train once."""
    in_order = sorted(own, key=lambda one: (one.best.epochs or 0, one.recipe_used_at), reverse=True)
    for one in in_order:
        cost = _cost(costs.get(one.best.recipe), one.best.task_config, one.best.epochs)
        if not hours or cost is None or cost[1].training_hours <= hours:
            return one.best.recipe
    return in_order[0].best.recipe


def _candidate(one: BestResult, values: Sequence[float | None]) -> Candidate:
    return Candidate(
        optimizer=one.best.optimizer,
        values=one.values,
        n_failed=one.best.validation.n_failed,
        search_values=values,
    )


def _search_values(session: Session, found: Mapping[str, BestResult]) -> dict[str, list[float | None]]:
    """By optimizer, the values of the trials of the search that its best settings are from, in their order."""
    labels = {(one.study_id, one.best.label): name for name, one in found.items()}
    query = (
        select(Search.study_id, Search.label, Run.value, Run.state)
        .join(Run, Run.search_id == Search.id)
        .where(Search.study_id.in_({study for study, _ in labels}), Run.stage == Stage.SEARCH)
        .order_by(Run.search_id, Run.trial_number)
    )
    values: dict[str, list[float | None]] = {name: [] for name in found}
    for row in session.execute(query):
        if name := labels.get((row.study_id, row.label)):
            values[name].append(row.value if row.state == RunState.COMPLETE else None)
    return values


def _definition(session: Session, one: BestResult) -> dict[str, Any]:
    found: dict[str, Any] = session.execute(select(Study.definition).where(Study.id == one.study_id)).scalar_one()
    return found


def _listed(session: Session, one: BestResult) -> dict[str, Any]:
    """The optimizer as its study's definition lists it, without what belongs to that study alone."""
    definition = _definition(session, one)
    label = one.best.label.removesuffix(BASELINE)
    labels = (label, label.rpartition(".")[0])  # a.2 is the second search of a
    listed = next((other for name in labels for other in definition["optimizers"] if other["label"] == name), None)
    if listed is None:
        return {"name": one.best.optimizer}
    return {key: listed[key] for key in ("name", "space", "fixed", "when") if listed.get(key)}


def _planned(
    session: Session,
    choice: Choice,
    found: Mapping[str, BestResult],
    searches: Mapping[str, Mapping[str, Any]],
    asked: RecommendRequest,
    cost: Cost | None,
) -> tuple[Planned | None, Choice]:
    """The plan of the choice, and the choice: nothing where the hours do not pay for a plan."""
    task = _definition(session, found[next(iter(searches))])["task"]  # where its fields are searched, not those chosen
    first = [found[name].best.chosen for name in searches]
    studies = {found[name].study_id for name in searches}
    seeds = select(func.max(Run.seed)).join(Run.search).where(Search.study_id.in_(studies), Run.stage == Stage.CONFIRM)
    last = session.execute(seeds).scalar_one()
    optimizers, first_seed = list(searches.values()), 0 if last is None else last + 1
    return _made(choice, optimizers, asked, cost, task=task, first=first, first_seed=first_seed)


def _made(
    choice: Choice,
    optimizers: Sequence[Mapping[str, Any]],
    asked: RecommendRequest,
    cost: Cost | None,
    *,
    task: Mapping[str, Any],
    first: Sequence[Mapping[str, Any]] = (),
    first_seed: int = 0,
) -> tuple[Planned | None, Choice]:
    if choice.spend is Spend.NOTHING:
        return None, choice
    content = json.dumps([asked.model_dump(), choice.spend, optimizers, first, first_seed], sort_keys=True, default=str)
    name = f"{str(task['name'])[:60]}-{choice.spend}-{hashlib.sha256(content.encode()).hexdigest()[:8]}"
    try:
        planned = plan(
            choice.spend,
            optimizers,
            name=name,
            task=task,
            cost=cost,
            hours=asked.gpu_hours,
            first=first,
            first_seed=first_seed,
        )
    except ValidationError as error:  # a definition of an earlier release, or of a task that has changed
        why = f"{choice.why}; no plan can be made of its study's definition: {error.errors()[0]['msg']}"
        return None, Choice(spend=choice.spend, why=why)
    if planned is not None and cost is None and choice.spend is Spend.SEARCH:
        kept = f"{KEPT:.0%} of the hours are kept for seeds: ask again"
        why = f"{choice.why}; what a training costs is not known, so {kept}"
        return planned, Choice(spend=choice.spend, why=why)
    if planned is None:
        why = f"{choice.why}, but {asked.gpu_hours:.3g} hours do not pay for it: {_price(cost)}"
        return None, Choice(spend=Spend.NOTHING, why=why)
    return planned, choice


def _price(cost: Cost | None) -> str:
    return "its cost is not known" if cost is None else f"a training takes {cost.training_hours:.3g} hours"


def _how_sure(ranked: Sequence[Candidate], sure: Sureness | None) -> str:
    best = ranked[0]
    if best.n_failed:
        return f"All settings had failed runs; those of {best.optimizer} had the best mean of the others."
    if sure is None:
        return (
            f"{best.optimizer} has the best single run of {len(ranked)} optimizers. How much of that is luck is not "
            "known: none was confirmed with two seeds."
        )
    if len(sure.names) == 1:
        return f"Nothing else is known that did not fail: {best.optimizer} is the only candidate."
    next_best = max((name for name in sure.names[1:]), key=lambda name: sure.chances[name])
    pair = sure.against[next_best]
    luck = "" if best.n > 1 else " Its value is the best of a search, which is partly luck."
    own, others = sure.chances[best.optimizer], sure.chances[next_best]
    undecided = (
        " The interval holds 0: the results do not decide between the two." if pair.low <= 0 <= pair.high else ""
    )
    return (
        f"{best.optimizer} is the best of {len(sure.names)} with a probability of {chance(own)}, by the spread between "
        f"seeds; next is {next_best} with {chance(others)}, which differs by {pair.difference:+.4g} (95 % interval "
        f"{pair.low:.4g} to {pair.high:.4g}).{undecided}{luck}"
    )


def _candidate_view(one: Candidate, known: BestResult, best: Candidate, sure: Sureness | None) -> CandidateView:
    pair = None if sure is None else sure.against.get(one.optimizer)
    return CandidateView(
        optimizer=one.optimizer,
        validation=known.best.validation,
        evidence=known.best.evidence,
        probability=None if sure is None else sure.chances.get(one.optimizer),
        difference=one.mean - best.mean,
        low=None if pair is None else pair.low,
        high=None if pair is None else pair.high,
        settings=known.best.settings or {},
        study=known.best.study,
    )


# Without results of this task and model ------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _Place:
    """How an optimizer did in other recipes: how often it was the best, and its weighted mean place, 1 for the best."""

    optimizer: str
    mean: float
    n_best: int
    n: int
    nearest: BestResult

    @property
    def evidence(self) -> str:
        return f"best in {self.n_best} of {self.n} other recipes"


def _places(found: Sequence[BestResult], like: StudyDefinition) -> list[_Place]:
    """Best first. An optimizer's place in a recipe is the share of the others that it beat there.

    Optimizers that are in fewer than half as many recipes as the most frequent one say little, and come last.
    """
    recipes: dict[tuple[Any, ...], list[BestResult]] = defaultdict(list)
    for one in found:
        recipes[one.best.task, one.best.model, one.best.recipe, one.best.metric].append(one)
    shares: dict[str, list[tuple[int, float, BestResult]]] = defaultdict(list)
    for of_recipe in recipes.values():
        direction = Direction(of_recipe[0].best.direction)
        ranked = sorted(
            of_recipe, key=lambda one: (one.best.validation.n_failed > 0, direction.cost(one.best.validation.mean or 0))
        )
        names = list(dict.fromkeys(one.best.optimizer for one in ranked))
        if len(names) < 2:
            continue
        for one in ranked:
            place = names.index(one.best.optimizer)
            if all(known[2].best.recipe != one.best.recipe for known in shares[one.best.optimizer]):
                far = degree(one.best.task, one.best.model, like)
                shares[one.best.optimizer].append((far, 1 - place / (len(names) - 1), one))
    most = max(map(len, shares.values()), default=0)
    places = []
    for name, of in shares.items():
        weights = [LESS_ALIKE**far for far, _, _ in of]
        places.append(
            _Place(
                optimizer=name,
                mean=sum(w * share for w, (_, share, _) in zip(weights, of, strict=True)) / sum(weights),
                n_best=sum(share == 1 for _, share, _ in of),
                n=len(of),
                nearest=min(of, key=lambda each: each[0])[2],
            )
        )
    return sorted(places, key=lambda one: (2 * one.n < most, -one.mean, one.optimizer))


def _without_results(
    session: Session,
    found: Sequence[BestResult],
    asked: RecommendRequest,
    config: TaskConfig,
    costs: Mapping[str | None, _Paid],
) -> RecommendationView:
    metric, direction = _objective(config)
    like = _defined(config, DEFAULT)
    places = _places(found, like)
    name = places[0].optimizer if places else DEFAULT
    settings, source, taken_from = _settings(session, name, config, is_known=bool(places))
    cost = _cost(_paid_for_alike(found, config, asked, costs), config.model_dump(mode="json"), config.epochs)
    choice = choose([], None, direction, cost=cost and cost[1], hours=asked.gpu_hours)
    task = {**config.model_dump(mode="json", exclude_defaults=True), "name": config.name}
    names = list(dict.fromkeys([name, *(one.optimizer for one in places[1:2]), DEFAULT]))
    planned, choice = _made(choice, [{"name": one} for one in names], asked, cost and cost[1], task=task)
    whole = config.model_dump(mode="json")
    return RecommendationView(
        task=config.name,
        model=config.model,
        metric=metric,
        direction=direction,
        source=source,
        recipe=None,
        epochs=config.epochs,
        optimizer=name,
        settings=settings,
        task_config=whole,
        code=construction(name, settings, weight_decay_on=whole.get("weight_decay_on", "all")),
        probability=None,
        how_sure=_how_sure_of_places(places, source, taken_from=taken_from),
        candidates=[
            CandidateView(
                optimizer=one.optimizer,
                validation=None,
                evidence=one.evidence,
                probability=None,
                difference=None,
                low=None,
                high=None,
                settings=settings if one is places[0] else one.nearest.best.settings or {},
                study=taken_from if one is places[0] else one.nearest.best.study,
            )
            for one in places
        ],
        cost=cost and cost[0],
        spend=choice.spend,
        why=choice.why,
        plan=None if planned is None else planned.definition,
        plan_hours=None if planned is None else planned.hours,
    )


def _paid_for_alike(
    found: Sequence[BestResult], config: TaskConfig, asked: RecommendRequest, costs: Mapping[str | None, _Paid]
) -> _Paid | None:
    """What runs of the recipe that was used last have cost, of those with the same fields, whatever their epochs."""
    fields = asked.task_fields.keys() - {"epochs"}
    alike = [one for one in found if one.best.recipe in costs and _has_fields(one, config, fields)]
    last = max(alike, key=lambda one: one.recipe_used_at, default=None)
    return None if last is None else costs[last.best.recipe]


def _defined(config: TaskConfig, optimizer: str) -> StudyDefinition:
    task = config.model_dump(mode="json", exclude_defaults=True) | {"name": config.name}
    return StudyDefinition.model_validate({"name": "a", "task": task, "optimizers": [optimizer]})


def _settings(
    session: Session, name: str, config: TaskConfig, *, is_known: bool
) -> tuple[dict[str, Any], str, str | None]:
    """The optimizer's settings, where they are from, and the study that they are a trial's of."""
    like = _defined(config, name)
    spec = like.optimizers[0]
    if is_known:
        earlier = earlier_trials(session, name, like=like, recipes={recipe_of(like)}, studies=None)
        if taken := portfolio(earlier, spec, like=like, n=1):
            drawn = split_recipe({**spec.fixed, **taken[0].params})[0]
            return _decoded(drawn), "alike", taken[0].sources[0]["study"]
    printed = setups.best_settings(task=config.name, model=str(config.model), optimizer=name)
    if printed is not None:
        return dict(printed.arguments), "paper", None
    return _decoded(dict(spec.at_defaults().fixed)), "alike" if is_known else "defaults", None


def _decoded(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as the constructor takes them; Optuna stores lists as JSON text."""
    return {
        name: json.loads(value) if isinstance(value, str) and value.startswith("[") else value
        for name, value in settings.items()
    }


def _how_sure_of_places(places: Sequence[_Place], source: str, *, taken_from: str | None) -> str:
    if not places:
        what = "the settings that the paper prints" if source == "paper" else "the registry's defaults"
        return f"No study says which optimizer is better here; {DEFAULT} is what most begin with, at {what}."
    first = places[0]
    text = (
        f"No result is of this task, model and fields: {first.optimizer} was {first.evidence}, and beat "
        f"{first.mean:.0%} of the others there, alike ones counting most."
    )
    if source == "paper":
        return text + " Its settings are the paper's, as no earlier ones fit the space here."
    if taken_from is None:
        return text + " Its settings are the defaults, as no earlier ones fit the space here."
    return text + f" Its settings are those of a trial of study '{taken_from}' that the best of them lie around."
