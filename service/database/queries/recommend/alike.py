"""A recommendation where the task and model have no results: from those of alike tasks, the paper or the defaults."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy.orm import Session

from admeta.client.models import CandidateView, RecommendationView, RecommendRequest
from admeta.registry import construction
from admeta.spaces import split_recipe
from search.definition import StudyDefinition
from search.paper import setups
from search.recipe import recipe_of
from search.recommendation import choose
from search.states import Direction
from search.warm_start import LESS_ALIKE, degree, portfolio
from service.database.queries.best import BestResult
from service.database.queries.earlier import earlier_trials
from service.database.queries.recommend.known import Paid, cost_of, has_fields, objective
from service.database.queries.recommend.plans import make_plan
from tasks.config import TaskConfig

DEFAULT = "adamw"
"""The optimizer where nothing is known."""


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


def from_alike(
    session: Session,
    found: Sequence[BestResult],
    asked: RecommendRequest,
    config: TaskConfig,
    costs: Mapping[str | None, Paid],
) -> RecommendationView:
    """The optimizer that did best elsewhere, alike recipes counting most, and settings from its best trials there."""
    metric, direction = objective(config)
    like = _defined(config, DEFAULT)
    places = _places(found, like)
    name = places[0].optimizer if places else DEFAULT
    settings, source, taken_from = _settings(session, name, config, is_known=bool(places))
    cost = cost_of(_paid_for_alike(found, config, asked, costs), config.model_dump(mode="json"), config.epochs)
    choice = choose([], None, direction, cost=cost and cost[1], hours=asked.gpu_hours)
    task = {**config.model_dump(mode="json", exclude_defaults=True), "name": config.name}
    names = list(dict.fromkeys([name, *(one.optimizer for one in places[1:2]), DEFAULT]))
    planned, choice = make_plan(choice, [{"name": one} for one in names], asked, cost and cost[1], task=task)
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
    found: Sequence[BestResult], config: TaskConfig, asked: RecommendRequest, costs: Mapping[str | None, Paid]
) -> Paid | None:
    """What runs of the recipe that was used last have cost, of those with the same fields, whatever their epochs."""
    fields = asked.task_fields.keys() - {"epochs"}
    alike = [one for one in found if one.best.recipe in costs and has_fields(one, config, fields)]
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
