"""The pruners a study can name, and when each stops a trial. They compare trials of one search only.

Decided here and not by Optuna's pruners, which put a rung at the last epoch, draw a trial's bracket from the search's
name, and take a trial by its best value so far. All of it follows from the curves: nothing else is stored.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from search.space import Strict
from search.states import Direction
from tasks.config import Count


class AshaPruner(Strict):
    """Asynchronous successive halving (Li et al., 2020)."""

    name: Literal["asha"] = "asha"
    min_epochs: Annotated[Count, Field(ge=1)] | None = Field(
        default=None,
        description="The first rung: no trial is stopped earlier. Default: a third of the training, since the first "
        "epochs mislead: high learning rates look poor until the schedule lowers them; a ninth where the budget is in "
        "epochs or GPU hours without a number of trials, since what is saved trains further ones. The later rungs end "
        "at half of the training.",
    )
    reduction_factor: Annotated[Count, Field(ge=2)] = Field(default=3, description="The best 1/n continue at a rung.")


class HyperbandPruner(Strict):
    """Several brackets of successive halving with different first rungs (Li et al., 2018); the last stops nothing.

    Trials take turns in the brackets by their number, so every optimizer has as many in each.
    """

    name: Literal["hyperband"]
    min_epochs: Annotated[Count, Field(ge=1)] = Field(default=1, description="The first bracket's first rung.")
    reduction_factor: Annotated[Count, Field(ge=2)] = Field(default=3, description="The best 1/n continue at a rung.")


class MedianPruner(Strict):
    """Stops a trial whose value is worse than the median of the completed ones at the same epoch."""

    name: Literal["median"]
    min_epochs: Annotated[Count, Field(ge=1)] = Field(default=1, description="No trial is stopped earlier.")
    n_startup_trials: Annotated[Count, Field(ge=1)] = Field(
        default=4, description="Complete trials before any is stopped."
    )


class NoPruner(Strict):
    """Every trial trains to its end."""

    name: Literal["none"]


Pruner = AshaPruner | HyperbandPruner | MedianPruner | NoPruner

NAMES = ("asha", "hyperband", "median", "none")


def first_epoch(pruner: Pruner, *, max_epochs: int) -> int:
    """The first epoch after which a trial may be stopped; the last one where none is."""
    match pruner:
        case AshaPruner(min_epochs=None):
            return max(1, max_epochs // 3)
        case AshaPruner() | HyperbandPruner() | MedianPruner():
            return pruner.min_epochs or 1
        case NoPruner():
            return max_epochs


def early_rung(max_epochs: int) -> int:
    """The first rung where the budget is in epochs or GPU hours: a ninth of the training; a third is the second.

    What is saved there trains further trials, which gain more than is lost with a good trial that begins slowly. Where
    the number of trials is given, nothing makes up for such a loss. `python -m benchmarks.rungs` has the figures.
    """
    return max(1, max_epochs // 9)


def rungs(first: int, *, reduction_factor: int, max_epochs: int) -> list[int]:
    """Epochs after which successive halving compares: `first`, and times the factor while that is within half of all.

    A rung near the end would stop the best of the survivors and save next to nothing: at epochs 53 and 159 of 160, the
    second stopped 2.8 of 6.8 survivors and saved 0.4 % of the epochs. The first rung is where it was asked for.
    """
    found = [first]
    while 2 * found[-1] * reduction_factor <= max_epochs:
        found.append(found[-1] * reduction_factor)
    return [rung for rung in found if rung < max_epochs]


def bracket(trial_number: int, pruner: HyperbandPruner, *, max_epochs: int) -> int:
    """The hyperband bracket of a trial, from 0: its first rung is `min_epochs` times the factor to this power.

    A fixed sequence of turns, weighted by hyperband's number of trials in each bracket (smooth weighted round robin).
    """
    factor = pruner.reduction_factor
    last = 0
    while pruner.min_epochs * factor ** (last + 1) <= max_epochs:
        last += 1
    weights = [math.ceil((last + 1) * factor**s / (s + 1)) for s in range(last, -1, -1)]
    credit = [0] * len(weights)
    turn = 0
    for _ in range(trial_number % sum(weights) + 1):
        credit = [have + weight for have, weight in zip(credit, weights, strict=True)]
        turn = credit.index(max(credit))
        credit[turn] -= sum(weights)
    return turn


@dataclass(frozen=True, kw_only=True)
class OtherTrial:
    """Another trial of the search, as a pruner sees it: its values by epoch, and whether it is complete."""

    curve: Mapping[int, float]
    is_complete: bool


def stops(
    pruner: Pruner,
    *,
    trial_number: int,
    curve: Mapping[int, float],
    others: Callable[[], Iterable[OtherTrial]],
    direction: Direction,
    max_epochs: int,
) -> bool:
    """Whether to stop a trial after its last evaluation.

    Args:
        curve: the trial's values by epoch, from 1.
        others: gives the search's other trials; only called where they are compared, at rungs.
    """
    if not curve or isinstance(pruner, NoPruner):
        return False
    if isinstance(pruner, MedianPruner):
        return _is_below_median(pruner, curve, others, direction)
    first = first_epoch(pruner, max_epochs=max_epochs)
    if isinstance(pruner, HyperbandPruner):
        first *= pruner.reduction_factor ** bracket(trial_number, pruner, max_epochs=max_epochs)
    places = rungs(first, reduction_factor=pruner.reduction_factor, max_epochs=max_epochs)
    epoch = max(curve)
    reached = [rung for rung in places if rung <= epoch and _at(curve, rung) == epoch]
    if not reached:
        return False
    value, rung = curve[epoch], reached[-1]
    curves = [other.curve for other in others()]
    rivals = [theirs[at] for theirs in curves if (at := _at(theirs, rung)) is not None]
    n_promoted = max(1, (len(rivals) + 1) // pruner.reduction_factor)
    return sum(direction.is_better(rival, value) for rival in rivals) >= n_promoted


def _at(curve: Mapping[int, float], rung: int) -> int | None:
    """The first evaluated epoch that is at the rung or beyond it."""
    return min((epoch for epoch in curve if epoch >= rung), default=None)


def _is_below_median(
    pruner: MedianPruner,
    curve: Mapping[int, float],
    others: Callable[[], Iterable[OtherTrial]],
    direction: Direction,
) -> bool:
    epoch = max(curve)
    if epoch < pruner.min_epochs:
        return False
    complete = [other.curve for other in others() if other.is_complete]
    if len(complete) < pruner.n_startup_trials:
        return False
    there: Sequence[float] = [values[epoch] for values in complete if epoch in values]
    return bool(there) and direction.is_better(statistics.median(there), curve[epoch])
