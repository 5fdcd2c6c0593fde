"""Sections of a study definition: how much is trained, compared and reserved, and the rules of each section's fields.

What they ask of one another and of the rest of the definition is in `search.checks`.
"""

from __future__ import annotations

import math
from collections.abc import Container
from itertools import count, islice
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, field_validator, model_validator

from search import samplers
from search.errors import field_error
from search.optimizer_search import Name
from search.space import Strict
from tasks.config import Count, Number

N_TRIALS = 20
"""Trials of a search where the budget says nothing of what it may cost."""

MAX_TRIALS = 1000
"""Most trials of a search whose budget is in epochs or GPU hours: trials that fail at once cost neither."""

NO_CARD = (
    "is the only limit of a search, and trials without a card spend nothing of it; set 'epochs_per_optimizer' or "
    "'trials_per_optimizer'"
)


class Budget(Strict):
    """Limits, the same for every optimizer. A search ends at the first limit that it reaches."""

    trials_per_optimizer: Annotated[Count, Field(ge=1, le=100_000)] | None = Field(
        default=None,
        description=f"Trials of each search, repeated configurations included. Default: {N_TRIALS}; where "
        "'epochs_per_optimizer' or 'gpu_hours_per_optimizer' is given, as many as it pays for, at most "
        f"{MAX_TRIALS:,}.",
    )
    epochs_per_optimizer: Annotated[Count, Field(ge=1)] | None = Field(
        default=None,
        description="Epochs trained in all trials of an optimizer's search stage, those trained again too.",
    )
    gpu_hours_per_optimizer: Annotated[Number, Field(gt=0)] | None = Field(
        default=None, description="GPU hours of a search; a share of a card counts as a share."
    )
    max_hours: Annotated[Number, Field(gt=0)] | None = Field(
        default=None,
        description="Wall hours of the search stage; its running trials then end with their epoch.",
    )
    gpu_hours: Annotated[Number, Field(gt=0)] | None = Field(default=None, description="GPU hours of the whole study.")
    target: Number | None = Field(default=None, description="A search ends once validation reaches this.")

    @model_validator(mode="before")
    @classmethod
    def _count_trials(cls, raw: Any) -> Any:
        costs = ("epochs_per_optimizer", "gpu_hours_per_optimizer")
        if not isinstance(raw, dict) or any(raw.get(name) is not None for name in ("trials_per_optimizer", *costs)):
            return raw
        return {**raw, "trials_per_optimizer": N_TRIALS}

    @property
    def only_gpu_hours(self) -> bool:
        """Whether nothing else limits the trials of a search."""
        return self.trials_per_optimizer is None and self.epochs_per_optimizer is None

    @property
    def most_trials(self) -> int:
        """Trials that a search has at most, whatever they cost."""
        return self.trials_per_optimizer or min(MAX_TRIALS, self.epochs_per_optimizer or MAX_TRIALS)


class Confirm(Strict):
    """Which trials are trained again with several seeds, in full and without early stopping."""

    top_k: Annotated[Count, Field(ge=0, le=100)] = Field(default=1, description="Trials of each optimizer; 0: none.")
    seeds: list[samplers.Seed] = Field(
        default=[0, 1, 2], min_length=1, max_length=100, description="Each of these trials runs once with each seed."
    )
    until: Literal["decided"] | None = Field(
        default=None,
        description="decided: 'seeds' are the first look; those that may still be the best get "
        "more seeds, up to 'max_seeds'.",
    )
    max_seeds: Annotated[Count, Field(ge=2, le=100)] = Field(
        default=20, description="Most seeds of an optimizer, with 'until: decided'."
    )
    min_effect: Annotated[Number, Field(gt=0)] | None = Field(
        default=None,
        description="Difference of the metric below which optimizers count as equivalent. Default: none does.",
    )
    confidence: Annotated[Number, Field(ge=0.5, le=0.999)] = Field(
        default=0.95, description="Probability that all verdicts of the study are right."
    )

    @field_validator("seeds")
    @classmethod
    def _unique(cls, seeds: list[int]) -> list[int]:
        if len(set(seeds)) != len(seeds):
            raise ValueError(f"seeds {seeds} are not all different; list each seed once")
        return seeds

    @model_validator(mode="after")
    def _first_look(self) -> Self:
        if self.until is None:
            return self
        if self.top_k != 1:
            message = (
                f"must be 1 with 'until: decided', since one trial of each optimizer is compared; it is {self.top_k}"
            )
            raise field_error("until", message, at="top_k", value=self.top_k)
        if not 2 <= len(self.seeds) <= self.max_seeds:
            message = (
                f"with 'until: decided' there must be 2 seeds for the first look and not more than max_seeds = "
                f"{self.max_seeds}; there are {len(self.seeds)}"
            )
            raise field_error("until", message, at="seeds", value=self.seeds)
        return self

    def all_seeds(self, training_seed: int) -> list[int]:
        """Seeds in the order in which they are trained: those named, then further ones up to `max_seeds`."""
        if self.until is None:
            return self.seeds
        return self.with_further_seeds(self.max_seeds, training_seeds=(training_seed,))

    def with_further_seeds(self, n: int, *, training_seeds: Container[int]) -> list[int]:
        """`seeds`, and the next ones above them that no trial was trained with, so that there are n."""
        others = (seed for seed in count(max(self.seeds) + 1) if seed not in training_seeds)
        return [*self.seeds, *islice(others, n - len(self.seeds))]


class Contrasts(Strict):
    """Which optimizers are compared. Fewer pairs are decided with fewer seeds."""

    against: Name = Field(description="Label of the optimizer with which every other one is compared.")


N_TAKEN = {"recipe": 1, "everything": 4}
"""Trials of a warm start where the definition does not say how many."""


class WarmStart(Strict):
    """First trials taken from what earlier studies found best for the same optimizer.

    From studies of the same recipe, whose results are comparable: the best of all, confirmed ones first. Or from
    everything: a portfolio that covers the best settings of all earlier studies, of alike ones first.
    """

    model_config = ConfigDict(serialize_by_alias=True)

    scope: Literal["recipe", "everything"] = Field(
        default="recipe",
        alias="from",
        description="recipe: from studies of the same recipe only. everything: from all ended studies that searched "
        "the optimizer, but those with the tag void: of the same recipe first, then of the same task and model, the "
        "same task, alike tasks, others.",
    )
    task: str | None = Field(
        default=None,
        description="Without effect: earlier studies are those of the same recipe.",
        json_schema_extra={"deprecated": True},
    )
    studies: list[Name] | None = Field(default=None, min_length=1, max_length=100, description="Only these studies.")
    n_trials: Annotated[Count, Field(ge=1, le=100)] = Field(
        description="Trials of each optimizer, at least one and at most a tenth of the budget's; from everything a "
        f"fifth. Default: {N_TAKEN['recipe']}; from everything {N_TAKEN['everything']}.",
    )

    @model_validator(mode="before")
    @classmethod
    def _default_of_the_scope(cls, raw: Any) -> Any:
        if not isinstance(raw, dict) or "n_trials" in raw:
            return raw
        scope = raw.get("from", "recipe")
        return {**raw, "n_trials": N_TAKEN.get(scope, 1) if isinstance(scope, str) else 1}

    def n_trials_within(self, budget: Budget) -> int:
        """Trials that are taken over: settings that turn out wrong must not cost a small search its trials.

        A portfolio's differ from one another, as the first trials of a search do that it takes the place of.
        """
        share = 10 if self.scope == "recipe" else 5
        return min(self.n_trials, max(1, (budget.trials_per_optimizer or 0) // share))


class Resources(Strict):
    """What one trial reserves while it runs."""

    cpus: Annotated[Number, Field(gt=0, le=1024)] = Field(default=1, description="CPU cores.")
    gpus: Annotated[Number, Field(ge=0, le=64)] | Literal["auto"] = Field(
        default="auto",
        description="A fraction runs several trials on one card. 2 or more split each step over that many cards of one "
        "host. auto: as many trials on a card as increase the throughput.",
    )

    cohort: Annotated[Count, Field(ge=1, le=64)] = Field(
        default=1,
        description="Runs that one process trains as one stacked model, in its cpus and gpus; auto is a whole card. 1: "
        "each run has a process of its own, and cpus and gpus for itself.",
    )

    @field_validator("gpus")
    @classmethod
    def _whole(cls, gpus: float | str) -> float | str:
        if isinstance(gpus, float) and gpus > 1 and not math.isclose(gpus, round(gpus)):
            raise ValueError(f"gpus = {gpus} must be at most 1 or a whole number")
        return gpus
