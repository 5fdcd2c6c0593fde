"""The study that the hours are best spent on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from admeta.client.models import RecommendRequest
from search.recommendation import KEPT, Choice, Cost, Planned, plan
from search.states import Spend


def make_plan(
    choice: Choice,
    optimizers: Sequence[Mapping[str, Any]],
    asked: RecommendRequest,
    cost: Cost | None,
    *,
    task: Mapping[str, Any],
    first: Sequence[Mapping[str, Any]] = (),
    first_seed: int = 0,
) -> tuple[Planned | None, Choice]:
    """The plan of the choice, and the choice: nothing where the hours do not pay for a plan."""
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
