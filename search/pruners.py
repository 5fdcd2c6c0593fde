"""The pruners a study can name, and Optuna's object for each. They compare trials of one search only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from search.space import Strict
from tasks.config import Count

if TYPE_CHECKING:
    import optuna


class AshaPruner(Strict):
    """Asynchronous successive halving (Li et al., 2020)."""

    name: Literal["asha"] = "asha"
    min_epochs: Annotated[Count, Field(ge=1)] | None = Field(
        default=None,
        description="No trial is stopped earlier. Default: a third of the training, since the first epochs mislead: "
        "high learning rates look poor until the schedule lowers them.",
    )
    reduction_factor: Annotated[Count, Field(ge=2)] = Field(default=3, description="The best 1/n go on at each rung.")


class HyperbandPruner(Strict):
    """Several brackets of successive halving with different first rungs (Li et al., 2018)."""

    name: Literal["hyperband"]
    min_epochs: Annotated[Count, Field(ge=1)] = 1
    reduction_factor: Annotated[Count, Field(ge=2)] = 3


class MedianPruner(Strict):
    """Stops a trial below the median of the earlier ones at the same epoch."""

    name: Literal["median"]
    min_epochs: Annotated[Count, Field(ge=1)] = 1
    n_startup_trials: Annotated[Count, Field(ge=1)] = 4


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


def build(pruner: Pruner, *, max_epochs: int) -> optuna.pruners.BasePruner:
    """Optuna's pruner; its resource is the epoch, counted from 1."""
    import optuna

    match pruner:
        case AshaPruner():
            return optuna.pruners.SuccessiveHalvingPruner(
                min_resource=first_epoch(pruner, max_epochs=max_epochs), reduction_factor=pruner.reduction_factor
            )
        case HyperbandPruner():
            return optuna.pruners.HyperbandPruner(
                min_resource=pruner.min_epochs,
                max_resource=max_epochs,
                reduction_factor=pruner.reduction_factor,
            )
        case MedianPruner():
            return optuna.pruners.MedianPruner(
                n_startup_trials=pruner.n_startup_trials, n_warmup_steps=pruner.min_epochs
            )
        case NoPruner():
            return optuna.pruners.NopPruner()
