"""The study definition: one model for the REST body, the YAML file and the client.

Parsing fills in defaults (an optimizer's default space, the task's metric), so that the stored definition has
everything a trial needs. Then every rule is checked: those of a section by its model (`search.sections` and others),
those of the whole definition by `search.checks`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, ConfigDict, Field, SerializeAsAny, model_validator

import tasks.registry
from admeta.imports import is_path
from search import pruners, samplers
from search.checks import check_definition
from search.errors import field_error, nearest_hint
from search.named_spaces import begin_at_papers_best, lift_conditions, with_space
from search.objectives import MOST, Further, Objective, with_further
from search.optimizer_search import Name, OptimizerSearch
from search.recipe import RECIPE_SCHEMA, share_recipe
from search.scale import Scale, at_size
from search.sections import Budget, Confirm, Contrasts, Resources, WarmStart
from search.sensitivity import Sensitivity, n_values
from search.space import Strict
from tasks.config import Count, Number, TaskConfig
from tasks.errors import TaskError


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


@dataclass(frozen=True, kw_only=True)
class PlannedSearch:
    """One search that a study makes.

    Attributes:
        optimizer: as the definition has it, under the label of this search.
        of: the optimizer's label in the definition.
        repeat: how many searches of the same optimizer come before it.
        is_baseline: whether it is one trial of the optimizer's default settings and no search.
        size: in a study with `scale`, that of the model.
        is_predicted: whether its trials are those that verify a prediction (search.scale).
    """

    optimizer: OptimizerSearch
    of: str
    repeat: int
    is_baseline: bool = False
    size: float | None = None
    is_predicted: bool = False


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
        description="Retries of a run whose worker died or raised an exception; not after an exception before the "
        "first epoch that repeats itself. A diverged run is not retried.",
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
        check_definition(self)
        return self

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
        if self.sensitivity is None or not (n_varied := n_values(optimizer, self.sensitivity)):
            return 0
        return (n_varied - (self.confirm.top_k > 0)) * self.sensitivity.seeds

    @property
    def n_runs(self) -> int:
        """Trainings that the study asks for at most: the trials, confirm and sensitivity runs of all optimizers."""
        counts = self.n_trials_of, self.n_confirm_runs_of, self.n_sensitivity_runs_of
        return sum(n_of(search.optimizer) for search in self.planned_searches() for n_of in counts)

    def to_json(self) -> dict[str, Any]:
        """The resolved definition as plain JSON values; parsing it again gives an equal definition."""
        return self.model_dump(mode="json")
