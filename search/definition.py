"""The study definition: one model for the REST body, the YAML file and the client.

Every rule that a definition must meet is checked here. Parsing fills in defaults (an optimizer's default space, the
task's metric), so that the stored definition has everything a trial needs.
"""

from __future__ import annotations

import math
import re
from collections.abc import Container, Mapping, Sequence
from functools import partial
from itertools import count, islice
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    SerializeAsAny,
    ValidationError,
    field_validator,
    model_validator,
)

import admeta.registry
import tasks.registry
from admeta.imports import is_path
from admeta.spaces import RECIPE, split_recipe
from search import pruners, samplers
from search.errors import field_error, nearest_hint
from search.named_spaces import begin_at_papers_best, lift_conditions, with_space
from search.objectives import MOST, Further, Objective, check_further, with_further
from search.optimizer_search import NAME_PATTERN, Name, OptimizerSearch, PlannedSearch, Sensitivity
from search.recipe import MAX_CHECKED, RECIPE_SCHEMA, batch_sizes, check_recipe, share_recipe, why_not_searched
from search.scale import Scale, at_size, fitted
from search.space import Strict
from tasks.config import Count, Number, TaskConfig, with_recipe
from tasks.errors import TaskError
from tasks.registry import ENGINE_RUN, OWN_FIELDS, TaskInfo, why_not_together


def expand_names(raw: Any) -> Any:
    """A raw definition with names written as objects: `task: digits` means `task: {name: digits}`.

    The same holds for each of `optimizers`, for `sampler` and for `pruner`.
    """
    if not isinstance(raw, dict):
        return raw
    named = {field: _as_object(raw[field]) for field in ("task", "sampler", "pruner") if field in raw}
    if isinstance(raw.get("optimizers"), list):
        named["optimizers"] = [_as_search(one) for one in raw["optimizers"]]
    return {**raw, **named}


def _as_object(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


def _as_search(value: Any) -> Any:
    return lift_conditions(value) if isinstance(value, dict) else _as_object(value)


def _parse_task(value: Any) -> Any:
    if isinstance(value, TaskConfig):
        return value
    if not isinstance(value, dict):
        raise ValueError("must be a task's name, or an object with at least a 'name'; GET /v1/tasks lists the tasks")
    try:
        return tasks.registry.parse_config(value)
    except TaskError as error:
        raise field_error("unknown_task", str(error), at="name", value=value.get("name")) from None


def _valid_task(task: Any) -> TaskConfig | None:
    """The configuration of a raw task; None if it is not valid."""
    try:
        config: TaskConfig = _parse_task(task)
    except ValueError:  # pydantic's is one too
        return None
    return config


def _space_of(config: TaskConfig, own: str, optimizer: Mapping[str, Any]) -> str:
    """The space that a raw optimizer has where it names none."""
    recipe = optimizer.get("recipe")
    return config.space(own, recipe=map(str, recipe) if isinstance(recipe, dict) else ())


def _show_recipe(schema: dict[str, Any]) -> None:
    """Add the input field that `share_recipe` replaces."""
    description = (
        "What is searched of the training recipe, besides each optimizer's own space: parameters by a field of `task`, "
        "such as `batch_size` or `schedule.warmup`. A stored definition has them in the `space` of each optimizer, as "
        "`recipe.batch_size`."
    )
    schema["properties"]["recipe"] = {"description": description, **RECIPE_SCHEMA}


Task = Annotated[SerializeAsAny[TaskConfig], BeforeValidator(_parse_task, json_schema_input_type=dict[str, Any] | str)]


def _known_kind(kind: str, names: tuple[str, ...], kinds: Any) -> BeforeValidator:
    """A validator whose error names the nearest known kind; a tagged union would only list its tags."""

    def check(value: Any) -> Any:
        if isinstance(value, dict) and value.get("name") not in names:
            hint = nearest_hint(str(value.get("name")), names)
            message = f"unknown {kind} {value.get('name')!r}; {hint}"
            raise field_error(f"unknown_{kind}", message, at="name", value=value.get("name"))
        return value

    return BeforeValidator(check, json_schema_input_type=Annotated[kinds, Field(discriminator="name")] | str)


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


class StudyDefinition(Strict):
    """A study: a task, optimizers with their search spaces, and how they are compared."""

    model_config = ConfigDict(json_schema_extra=_show_recipe)

    name: Name
    description: Annotated[str, Field(max_length=10_000)] = Field(default="", description="Free text.")
    task: Task = Field(description="What each trial trains. A name alone: that task with its defaults.")
    optimizers: list[
        Annotated[OptimizerSearch, BeforeValidator(_as_object, json_schema_input_type=OptimizerSearch | str)]
    ] = Field(
        min_length=1, max_length=100, description="Each has a search of its own. A name alone: with its default space."
    )
    objective: Objective = Field(description="Default: the task's own.")
    objectives: list[Further] = Field(
        default=[],
        max_length=MOST,
        description="What else trials are searched for, by name: a cost of a run, such as train_s or "
        "peak_memory_bytes, or another metric of the task, with its direction where the task does not know it. The "
        "sampler then looks for the Pareto front, and no trial is stopped early. Trials are confirmed, and optimizers "
        "compared, by `objective` alone.",
    )
    sampler: Annotated[
        samplers.Sampler,
        _known_kind("sampler", samplers.NAMES, samplers.Sampler),
        Field(discriminator="name", description="How settings are proposed."),
    ] = samplers.TpeSampler()
    pruner: Annotated[
        pruners.Pruner,
        _known_kind("pruner", pruners.NAMES, pruners.Pruner),
        Field(discriminator="name", description="Which trials are stopped early."),
    ] = pruners.AshaPruner()
    searches: Annotated[Count, Field(ge=1, le=100)] = Field(
        default=1,
        description="Searches of each optimizer, each with sampler and training seeds of its own and the whole budget. "
        "With 2 or more, optimizers are compared by what their searches reached, so that a lucky search decides "
        "nothing; with 1, the settings that one search found are compared.",
    )
    budget: Budget = Field(default=Budget(), description="When a search ends.")
    scale: Scale | None = Field(
        default=None,
        description="Search every optimizer at several sizes of the model, and predict its settings at another one.",
    )
    baseline: Annotated[list[Name], Field(min_length=1, max_length=100)] | Literal["defaults"] | None = Field(
        default=None,
        description="defaults: in addition to each optimizer's search, a trial of its default settings, confirmed with "
        "the same seeds, to see what the search gained. A list of labels: of these only. 'fixed' holds for it too.",
    )
    confirm: Confirm = Field(default=Confirm(), description="Which trials run again, with several seeds.")
    sensitivity: Sensitivity | None = Field(
        default=None, description="Further runs that show how much the results depend on one parameter. Default: none."
    )
    contrasts: Contrasts | None = Field(default=None, description="Which optimizers are compared. Default: all pairs.")
    warm_start: WarmStart | None = Field(default=None, description="Begin with the best of earlier studies.")
    resources: Resources = Field(default=Resources(), description="What one trial reserves while it runs.")
    training_seed: samplers.Seed = Field(
        default=100, description="Seed of every run of the search stage; kept apart from the confirm seeds."
    )
    max_concurrent_trials: Annotated[Count, Field(ge=1, le=10_000)] | None = Field(
        default=None, description="Default: as many as fit on the cluster."
    )
    max_failures: Annotated[Count, Field(ge=0, le=100)] = Field(
        default=2,
        description="Retries of a run whose worker died or raised an exception. A diverged run is not retried.",
    )
    priority: Annotated[Count, Field(ge=-100, le=100)] = Field(
        default=0, description="Studies with a higher value run first."
    )
    checkpoint_every_s: Annotated[Number, Field(ge=0)] = Field(
        default=10, description="Minimum seconds between two checkpoints of a run; 0: one at every evaluation."
    )
    keep_checkpoints: Annotated[Count, Field(ge=0, le=100_000)] = Field(
        default=5,
        description="Number of each optimizer's best trials whose weights are kept after they end. The weights of "
        "confirm runs are always kept.",
    )

    @model_validator(mode="before")
    @classmethod
    def _defaults_of_the_task(cls, raw: Any) -> Any:
        if not isinstance(raw, dict):
            return raw
        raw = expand_names(raw)
        if raw.get("objectives") and "pruner" not in raw:
            raw = {**raw, "pruner": {"name": "none"}}
        task = raw.get("task")
        name = task.get("name") if isinstance(task, dict) else getattr(task, "name", None)
        try:
            info = tasks.registry.get(str(name))
        except TaskError:  # the validator of `task` reports it
            raw = share_recipe(begin_at_papers_best(with_further(raw, None), None, model=None), None)
            return {**raw, "objective": raw.get("objective") or {"metric": "unknown", "direction": "maximize"}}
        config = _valid_task(task)
        raw = with_further(raw, info)
        raw = share_recipe(begin_at_papers_best(raw, info, model=None if config is None else config.model), config)
        raw = with_space(raw, info.space if config is None else partial(_space_of, config, info.space))
        objective = raw.get("objective")
        objective = {} if objective is None else objective
        if not isinstance(objective, dict):
            return raw
        metric = objective.get("metric", info.default_metric)
        direction = objective.get("direction", info.metrics.get(metric) if isinstance(metric, str) else None)
        if direction is None and info.open_metrics:  # then `direction` is missing
            return {**raw, "objective": {**objective, "metric": metric}}
        return {**raw, "objective": {**objective, "metric": metric, "direction": direction or "maximize"}}

    @model_validator(mode="after")
    def _check(self) -> Self:
        info = tasks.registry.get(self.task.name)
        metric = self.objective.metric
        if not info.has_metric(metric):
            message = f"task '{info.name}' has no metric '{metric}'; {nearest_hint(metric, tuple(info.metrics))}"
            if info.open_metrics:
                message = "must be letters, digits, '_', '.' or '-', and not begin with 'test_': validation selects"
            raise field_error("unknown_metric", message, at=("objective", "metric"), value=metric)
        self._check_objectives(info)
        self._check_baseline()
        self._check_widths()
        self._check_scale()
        self._check_labels()
        self._check_comparison()
        if self.confirm.top_k and (both := [seed for seed in self.confirm.seeds if seed in self.training_seeds]):
            message = (
                f"training_seed {both[0]} is also a confirm seed; the confirm stage must use seeds that have "
                "selected nothing"
            )
            raise field_error("seed_used_twice", message, at="training_seed", value=self.training_seed)
        for i, optimizer in enumerate(self.optimizers):
            at_most = max(100, MAX_CHECKED // len(self.optimizers))
            check_recipe(self.task, optimizer.space, optimizer.fixed, at=("optimizers", i), at_most=at_most)
        self._check_cards(info)
        self._check_cohort()
        self._check_gpu_hours()
        self._check_sensitivity()
        if isinstance(self.sampler, samplers.GridSampler):
            for i, optimizer in enumerate(self.optimizers):
                self._check_grid(i, optimizer)
        return self

    def _check_objectives(self, info: TaskInfo) -> None:
        if not self.objectives:
            return
        check_further(self.objectives, first=self.objective, info=info)
        if not isinstance(self.pruner, pruners.NoPruner):
            message = (
                f"must be none with 'objectives', or be left out: '{self.pruner.name}' stops trials by "
                f"{self.objective.metric} alone, and a trial that was stopped has no seconds to compare"
            )
            raise field_error("pruner", message, at=("pruner", "name"), value=self.pruner.name)
        if isinstance(self.sampler, samplers.CmaEsSampler):
            message = "searches for one objective only; with 'objectives' use tpe or gp, or qmc, random or grid"
            raise field_error("sampler", message, at=("sampler", "name"), value="cmaes")

    def _check_widths(self) -> None:
        """µP needs to know how an optimizer's learning rate depends on the width."""
        if getattr(self.task, "parametrization", "standard") != "mup":
            return
        for i, optimizer in enumerate(self.optimizers):
            if reason := admeta.registry.why_no_width_rule(optimizer.name):
                raise field_error("no_width_rule", reason, at=("optimizers", i, "name"), value=optimizer.name)

    def _check_scale(self) -> None:
        scale = self.scale
        if scale is None:
            return
        if reason := why_not_searched(scale.field, type(self.task)):
            raise field_error("scale", reason, at=("scale", "field"), value=scale.field)
        for other, given in (
            ("searches", self.searches > 1),
            ("objectives", bool(self.objectives)),
            ("baseline", self.baseline is not None),
            ("warm_start", self.warm_start is not None),
            ("confirm.until", self.confirm.until is not None),
        ):
            if given:
                message = f"cannot be combined with '{other}'; leave one of the two out"
                raise field_error("scale", message, at="scale", value=scale.field)
        whole = self.task.model_dump(mode="json")
        for at, size in [*((("values", i), one) for i, one in enumerate(scale.values)), (("predict",), scale.predict)]:
            try:
                tasks.registry.parse_config(with_recipe(whole, {scale.field: size}))
            except ValidationError as error:
                rule = error.errors(include_url=False)[0]["msg"].removeprefix("Value error, ")
                message = f"{scale.field} = {size:g}: {rule.replace('Input should ', 'must ')}"
                raise field_error("scale", message, at=("scale", *at), value=size) from None
        for i, optimizer in enumerate(self.optimizers):
            if f"{RECIPE}{scale.field}" in {**optimizer.space, **optimizer.fixed}:
                message = (
                    f"sets {scale.field} for itself, which 'scale' has at its sizes; remove it from one of the two"
                )
                raise field_error("scale", message, at=("optimizers", i), value=optimizer.label)
            if not fitted(optimizer):
                message = "searches no parameter that is a real number, so 'scale' has none to predict; search lr"
                raise field_error("scale", message, at=("optimizers", i, "space"), value=list(optimizer.space))

    def _check_comparison(self) -> None:
        labels = [optimizer.label for optimizer in self.optimizers]
        if self.contrasts is not None and self.contrasts.against not in labels:
            message = f"is not a label of this study; {nearest_hint(self.contrasts.against, tuple(labels))}"
            raise field_error("unknown_label", message, at=("contrasts", "against"), value=self.contrasts.against)
        if self.confirm.until is not None and self.searches > 1:
            message = f"cannot be combined with 'searches' = {self.searches}; repeat searches, or confirm until decided"
            raise field_error("until", message, at=("confirm", "until"), value=self.confirm.until)

    def _check_baseline(self) -> None:
        labels = [optimizer.label for optimizer in self.optimizers]
        for i, label in enumerate(self.baseline if isinstance(self.baseline, list) else ()):
            if label not in labels:
                message = f"is not a label of this study; {nearest_hint(label, tuple(labels))}"
                raise field_error("unknown_label", message, at=("baseline", i), value=label)
        try:
            self.baselines()
        except ValidationError as error:
            message = f"the default settings cannot be used: {error.errors()[0]['msg']}"
            raise field_error("baseline", message, at="baseline", value=self.baseline) from None

    def _check_labels(self) -> None:
        labels = [search.optimizer.label for search in self.planned_searches()]
        for i, label in enumerate(labels):
            of_each = self.searches * len(self._sizes)
            at = ("optimizers", i // of_each) if i < of_each * len(self.optimizers) else ("baseline",)
            if label in labels[:i]:
                message = f"optimizer '{label}' is listed twice; give each its own 'label'"
                raise field_error("listed_twice", message, at=at, value=label)
            if not re.fullmatch(NAME_PATTERN, label):
                message = f"the label of its last search, '{label}', has more than 100 characters; shorten 'label'"
                raise field_error("label_too_long", message, at=at, value=label)

    def _check_sensitivity(self) -> None:
        asked, seeds = self.sensitivity, self.confirm.seeds
        if asked is None:
            return
        if asked.seeds > len(seeds):
            message = f"must be at most the number of confirm seeds, {len(seeds)}; they are its seeds"
            raise field_error("too_few_seeds", message, at=("sensitivity", "seeds"), value=asked.seeds)
        if not any(optimizer.n_values(asked) for optimizer in self.optimizers):
            names = tuple(dict.fromkeys(name for one in self.optimizers for name in (*one.space, *one.fixed)))
            message = f"is no parameter with numbers of any optimizer here; {nearest_hint(asked.parameter, names)}"
            raise field_error("unknown_parameter", message, at=("sensitivity", "parameter"), value=asked.parameter)

    def _check_cards(self, info: TaskInfo) -> None:
        cards = self.resources.gpus
        if cards == "auto" or cards <= 1 or info.run != ENGINE_RUN:
            return
        searches = (search.optimizer for search in self.planned_searches())
        for batch_size in (size for one in searches for size in batch_sizes(one, self.task)):
            if batch_size % cards:
                message = (
                    f"a batch of {batch_size} cannot be split evenly over {cards:g} cards; make batch_size a multiple "
                    f"of {cards:g}"
                )
                raise field_error("uneven_batches", message, at=("resources", "gpus"), value=cards)

    def _check_cohort(self) -> None:
        if self.resources.cohort == 1:
            return
        message = why_not_together(self.task)
        if self.resources.gpus != "auto" and self.resources.gpus > 1:
            message = f"it trains on one card, and gpus is {self.resources.gpus:g}"
        if self.scale is not None:
            message = "'scale' trains models of several sizes"
        for optimizer in self.optimizers:
            _, recipe = split_recipe({**optimizer.space, **optimizer.fixed})
            if other := [name for name in recipe if name.partition(".")[0] not in OWN_FIELDS]:
                message = f"its runs must be equal in {other[0]!r}, which '{optimizer.label}' sets or searches"
        if message:
            raise field_error(
                "no_cohort",
                f"no cohort of {self.resources.cohort} can be trained: {message}. Set it to 1",
                at=("resources", "cohort"),
                value=self.resources.cohort,
            )

    def _check_gpu_hours(self) -> None:
        if self.budget.only_gpu_hours and self.resources.gpus == 0:
            at, hours = ("budget", "gpu_hours_per_optimizer"), self.budget.gpu_hours_per_optimizer
            raise field_error("gpu_hours", f"{NO_CARD}; 'resources.gpus' is 0", at=at, value=hours)

    def _check_grid(self, i: int, optimizer: OptimizerSearch) -> None:
        try:
            size = samplers.grid_size(optimizer.space)
            if optimizer.when and size > samplers.MAX_LISTED:
                raise ValueError(
                    f"the grid has {size:,} combinations; with 'when' at most {samplers.MAX_LISTED:,} can be listed. "
                    "Use larger steps or fewer choices."
                )
        except ValueError as error:
            raise field_error("no_grid", str(error), at=("optimizers", i, "space"), value=None) from None

    @property
    def n_slots(self) -> int:
        """Slots of a cohort, no more than runs at once: an idle one takes as long as one that trains. 1: no cohort."""
        return min(self.resources.cohort, self.max_concurrent_trials or self.resources.cohort)

    @property
    def all_objectives(self) -> list[Objective]:
        """What a trial is searched for: the metric by which trials are confirmed and compared, then the others."""
        return [self.objective, *self.objectives]

    @property
    def training_seeds(self) -> range:
        """Seeds of the search stage's runs: one of each of an optimizer's searches."""
        return range(self.training_seed, self.training_seed + self.searches)

    def imports(self) -> dict[str, str]:
        """The import paths ("module:name") in the definition, by the field's place: what an operator must allow."""
        found = {f"task.{field}": path for field, path in self.task.imports().items()}
        for i, optimizer in enumerate(self.optimizers):
            for role, part in zip(("name", "roles.others.name"), optimizer.name.split("+"), strict=False):
                if is_path(part):
                    found[f"optimizers.{i}.{role}"] = part
        return found

    def planned_searches(self) -> list[PlannedSearch]:
        """The searches that the study makes: those of an optimizer one after another, labelled a, a.2, a.3, …

        With `scale` there is one at each size, labelled a.width64, …. Baselines come last.
        """
        if (scale := self.scale) is not None:
            return [
                PlannedSearch(
                    optimizer=at_size(one, scale, size),
                    of=one.label,
                    repeat=0,
                    size=size,
                    is_predicted=size == scale.predict,
                )
                for one in self.optimizers
                for size in scale.sizes
            ]
        searches = [
            PlannedSearch(
                optimizer=one.model_copy(update={"label": f"{one.label}.{i + 1}" if i else one.label}),
                of=one.label,
                repeat=i,
            )
            for one in self.optimizers
            for i in range(self.searches)
        ]
        return [*searches, *self.baselines()]

    @property
    def _sizes(self) -> Sequence[float | None]:
        return [None] if self.scale is None else self.scale.sizes

    def baselines(self) -> list[PlannedSearch]:
        """The baselines that the study asks for, one of each optimizer, labelled a.defaults, …"""
        asked = [one for one in self.optimizers if self.baseline == "defaults" or one.label in (self.baseline or ())]
        return [PlannedSearch(optimizer=one.at_defaults(), of=one.label, repeat=0, is_baseline=True) for one in asked]

    def planned_search(self, label: str) -> PlannedSearch:
        """The search of this label."""
        return next(search for search in self.planned_searches() if search.optimizer.label == label)

    def n_trials_of(self, optimizer: OptimizerSearch) -> int:
        """Trials that this optimizer's search will run: the budget, or the whole grid where that is smaller.

        One of a baseline, which searches nothing. Where the budget is in epochs or GPU hours, the most that it can be:
        not more than the space has configurations, since a repeated one costs nothing.
        """
        if not optimizer.space:
            return 1
        limit = optimizer.n_trials or self.budget.most_trials
        if isinstance(self.sampler, samplers.GridSampler) or self.budget.trials_per_optimizer is None:
            return int(min(limit, optimizer.n_configurations))
        return limit

    @property
    def pruner_of_budget(self) -> pruners.Pruner:
        """The pruner, with the first rung that suits the budget where the definition names none."""
        unset = isinstance(self.pruner, pruners.AshaPruner) and self.pruner.min_epochs is None
        if unset and self.budget.trials_per_optimizer is None:
            return self.pruner.model_copy(update={"min_epochs": pruners.early_rung(self.task.epochs)})
        return self.pruner

    def n_confirm_runs_of(self, optimizer: OptimizerSearch) -> int:
        """Confirm runs of this optimizer: its best `top_k` trials, or all where it has fewer, with every seed."""
        once = self.confirm.until is None or not optimizer.space
        n_seeds = len(self.confirm.seeds) if once else self.confirm.max_seeds
        return min(self.confirm.top_k, self.n_trials_of(optimizer)) * n_seeds

    def n_sensitivity_runs_of(self, optimizer: OptimizerSearch) -> int:
        """Sensitivity runs of this optimizer at most; the confirm runs are those at the chosen value."""
        if self.sensitivity is None or not (n_values := optimizer.n_values(self.sensitivity)):
            return 0
        return (n_values - (self.confirm.top_k > 0)) * self.sensitivity.seeds

    @property
    def n_runs(self) -> int:
        """Trainings that the study asks for at most: the trials, confirm and sensitivity runs of all optimizers."""
        counts = self.n_trials_of, self.n_confirm_runs_of, self.n_sensitivity_runs_of
        return sum(n_of(search.optimizer) for search in self.planned_searches() for n_of in counts)

    def to_json(self) -> dict[str, Any]:
        """The resolved definition as plain JSON values; parsing it again gives an equal definition."""
        return self.model_dump(mode="json")
