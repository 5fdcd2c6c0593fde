"""A recommendation from results of the task and model themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from admeta.client.formatting import chance
from admeta.client.models import CandidateView, RecommendationView, RecommendRequest
from search.optimizer_search import BASELINE
from search.recommendation import (
    SAME_WITH_EACH_SEED,
    Candidate,
    Choice,
    Cost,
    Planned,
    Sureness,
    choose,
    in_order,
    likely,
    sureness,
)
from search.states import Direction, RunState, Stage
from service.database.models import Run, Search, Study
from service.database.queries.best import BestResult
from service.database.queries.recommend.known import Paid, cost_of
from service.database.queries.recommend.plans import make_plan


def from_results(
    session: Session, own: Sequence[BestResult], asked: RecommendRequest, costs: Mapping[str | None, Paid]
) -> RecommendationView:
    """The best result of one recipe, how sure it is, and what the hours add to that."""
    recipe = _affordable_recipe(own, costs, asked.gpu_hours)
    by_optimizer = {one.best.optimizer: one for one in own if one.best.recipe == recipe}
    direction = Direction(own[0].best.direction)
    values = _search_values(session, by_optimizer)
    ranked = in_order([_candidate(one, values[name]) for name, one in by_optimizer.items()], direction)
    sure = sureness(ranked, direction)
    chosen = by_optimizer[ranked[0].optimizer]
    cost = cost_of(costs.get(recipe), chosen.best.task_config, chosen.best.epochs)
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


def _affordable_recipe(own: Sequence[BestResult], costs: Mapping[str | None, Paid], hours: float) -> str | None:
    """The recipe with most epochs, of several the one used last; if possible one that the hours train once."""
    in_order = sorted(own, key=lambda one: (one.best.epochs or 0, one.recipe_used_at), reverse=True)
    for one in in_order:
        cost = cost_of(costs.get(one.best.recipe), one.best.task_config, one.best.epochs)
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
    """The plan of the choice for these searches, from the best settings of each and seeds that none has had."""
    task = _definition(session, found[next(iter(searches))])["task"]  # where its fields are searched, not those chosen
    first = [found[name].best.chosen for name in searches]
    studies = {found[name].study_id for name in searches}
    seeds = select(func.max(Run.seed)).join(Run.search).where(Search.study_id.in_(studies), Run.stage == Stage.CONFIRM)
    last = session.execute(seeds).scalar_one()
    optimizers, first_seed = list(searches.values()), 0 if last is None else last + 1
    return make_plan(choice, optimizers, asked, cost, task=task, first=first, first_seed=first_seed)


def _how_sure(ranked: Sequence[Candidate], sure: Sureness | None) -> str:
    best = ranked[0]
    if best.n_failed:
        return f"All settings had failed runs; those of {best.optimizer} had the best mean of the others."
    if sure is None:
        return _without_spread(ranked)
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


def _without_spread(ranked: Sequence[Candidate]) -> str:
    """How sure a choice is where nothing says how much seeds differ; the first of `ranked` has no failed runs."""
    best = ranked[0]
    equal = [one.optimizer for one in ranked[1:] if one.mean == best.mean and not one.n_failed]
    if len(ranked) == 1:
        place = f"{best.optimizer} is the only optimizer with a result"
    elif equal:
        place = (
            f"{best.optimizer} has the best value of {len(ranked)} optimizers, and so has {', '.join(equal)}: the "
            "results do not decide between them"
        )
    else:
        place = f"{best.optimizer} has the best value of {len(ranked)} optimizers"
    why = SAME_WITH_EACH_SEED if any(one.n > 1 for one in ranked) else "none was confirmed with two seeds"
    return f"{place}. How much of that is luck is not known: {why}."


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
