"""Checks a study on a worker before its first run, and says which cards it may use and how many runs it may have.

A Ray task calls the engine (`tasks.runs.check`), so that the driver needs neither torch nor the data set.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import random
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import OutOfMemoryError, RayTaskError, WorkerCrashedError

import admeta.registry
import tasks.registry
from admeta.builtin import BUILTIN
from admeta.spaces import RECIPE, split_recipe
from search.assignment import CARD_KIND
from search.definition import StudyDefinition
from search.optimizer_search import MAX_UNIFORM, OptimizerSearch
from search.packing import MOST, CardKind, Packing
from search.recipe import batch_sizes
from search.records import Capacity, CardFacts, CompetingStudy
from search.sections import Resources
from search.space import CategoricalParameter, FloatParameter, IntParameter
from tasks.config import with_recipe
from tasks.engine import sharing
from tasks.errors import ConfigError, TaskError

logger = logging.getLogger(__name__)

WITHOUT_WEIGHT = frozenset({"epochs", "schedule", "split_seed", "init_from", "label_smoothing"})
"""Fields of a task that change neither the memory nor the speed of its training."""


@dataclass(frozen=True, kw_only=True)
class Placement:
    """CPUs and GPUs of each run of a study, and the reason. Where runs share cards (`packing`) `each` is the least.

    A process trains up to `cohort` runs, each of which holds `each`.
    """

    each: Capacity
    reason: str
    cohort: int = 1
    packing: Packing | None = None


def cluster_capacity() -> Capacity:
    """All CPUs and GPUs of the Ray cluster, in use or not."""
    resources = ray.cluster_resources()
    return Capacity(cpus=resources.get("CPU", 0.0), gpus=resources.get("GPU", 0.0))


def why_none_fits(each: Capacity) -> str | None:
    """A message if no machine of the cluster is large enough for one run; otherwise None.

    Args:
        each: what one run needs on one machine.
    """
    machines = [
        Capacity(cpus=node["Resources"].get("CPU", 0.0), gpus=node["Resources"].get("GPU", 0.0))
        for node in ray.nodes()
        if node["Alive"]
    ]
    if any(machine.slots(each) for machine in machines):
        return None
    largest = max(machines, key=lambda machine: (machine.gpus, machine.cpus), default=Capacity(cpus=0.0, gpus=0.0))
    return (
        f"waits for a machine with {each.cpus:g} CPUs and {each.gpus:g} GPUs for a run; the largest in the cluster has "
        f"{largest.cpus:g} and {largest.gpus:g}. Add one (admeta worker), or clone the study with fewer resources"
    )


def check(
    definition: StudyDefinition,
    *,
    data_dir: str | None,
    origins: Sequence[str],
    is_stopping: Callable[[], bool],
    tell: Callable[[str], None],
    meanwhile: Callable[[], object],
) -> str | None:
    """Check that a study can be trained: its data, its initial weights, its optimizers that are not our own or torch's.

    Those are constructed over the task's model at the ends of their spaces, and make one step. Built-in optimizers were
    checked as the study was submitted, from what the registry knows of their parameters. The data must fit the recipes
    at the ends of their spaces too: a batch may be larger than the training set.

    Args:
        origins: checkpoint folders of the trial that the study starts from.
        tell: is given what happens now, in words, before what takes time.
        meanwhile: is called while a worker checks; not where there is nothing to check.

    Returns:
        The fingerprint of the data that the task names, as the worker sees them; None where it names none.

    Raises:
        TaskError: the data are missing, broken, or do not fit the model or the batch size; the initial weights are
            missing or of another model; or an optimizer refuses settings of its space or cannot train the model.
    """
    searches = [*definition.optimizers, *(baseline.optimizer for baseline in definition.baselines())]
    foreign = [(one.label, one.name, corners(one)) for one in searches if one.name not in BUILTIN]
    trains = tasks.registry.get(definition.task.name).target is not None or bool(definition.task.imports())
    if not trains and not foreign:
        return None  # there is nothing to check
    tell("reads the task's data on a worker, and checks them, the model and the optimizers")
    # A process that held another package's code runs nothing else: it could have changed what it imports.
    ask = ray.remote(num_cpus=0, max_calls=1 if foreign or definition.imports() else 0)(_check)
    task = definition.task.model_dump(mode="json") if trains else None
    recipes = _recipes([search.optimizer for search in definition.planned_searches()])
    asked = ask.remote(task, foreign, data_dir, origins, definition.objective.metric, recipes)
    meanwhile()
    found: str | None = _answer(asked, is_stopping=is_stopping)
    return found


def place(
    definition: StudyDefinition,
    *,
    known: Mapping[str, CardFacts],
    clock: Callable[[], float] = time.monotonic,
) -> Placement:
    """The study's resources; for `gpus: auto` the cards whose number of runs its own runs find.

    Args:
        known: by kind of card, what earlier studies of such a task found (`task_shape`).
    """
    resources = definition.resources
    if definition.n_slots > 1:
        return _place_cohort(resources, definition.n_slots)
    if resources.gpus != "auto":
        return Placement(each=Capacity(cpus=resources.cpus, gpus=resources.gpus), reason="set in the definition")
    if cluster_capacity().gpus == 0:
        return Placement(each=Capacity(cpus=resources.cpus, gpus=0), reason="the cluster has no GPU")
    if tasks.registry.get(definition.task.name).target is None:
        if definition.task.imports():
            reason = "one run a card: own code is not measured; resources.gpus sets another share"
            return Placement(each=Capacity(cpus=resources.cpus, gpus=1), reason=reason)
        return Placement(each=Capacity(cpus=resources.cpus, gpus=0), reason="the task trains no network")
    packing = Packing(card_kinds(definition), known=known, release=release(), clock=clock)
    return Placement(each=Capacity(cpus=resources.cpus, gpus=packing.least_reserved), packing=packing, reason="")


def _place_cohort(resources: Resources, n_slots: int) -> Placement:
    """An equal part of what the cohort's process works with; `gpus: auto` is a whole card where there is one."""
    gpus = resources.gpus if resources.gpus != "auto" else min(1.0, cluster_capacity().gpus)
    each = Capacity(cpus=_part(resources.cpus, n_slots), gpus=_part(gpus, n_slots))
    reason = f"{n_slots} runs are trained as one stacked model by one process"
    return Placement(each=each, reason=reason, cohort=n_slots)


def _part(amount: float, n: int) -> float:
    """One of n equal parts, as fine as Ray counts."""
    return math.floor(amount / n * 1e4 + 1e-6) / 1e4


def task_shape(definition: StudyDefinition) -> str:
    """A digest of what decides a run's memory and speed on a card: 64 hexadecimal digits."""
    task = {key: value for key, value in with_largest_batch(definition).items() if key not in WITHOUT_WEIGHT}
    text = json.dumps({"task": task, "cpus": definition.resources.cpus}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def release() -> str:
    """What decides memory and speed beside the task and the card, as text: versions, and how trials share a card."""
    words = [f"{package} {version(package)}" for package in ("admeta-search", "torch")]
    return ", ".join([*words, "one process" if shutil.which(sharing.CONTROL) is None else "multi-process service"])


def card_kinds(definition: StudyDefinition) -> list[CardKind]:
    """The cards in the cluster by their model, and how many of the study's runs each may have."""
    by_name: dict[str, list[Capacity]] = {}
    for node in ray.nodes():
        has = node["Resources"]
        if node["Alive"] and has.get("GPU", 0.0) >= 1:
            name = next((one.removeprefix(CARD_KIND) for one in sorted(has) if one.startswith(CARD_KIND)), "")
            by_name.setdefault(name, []).append(Capacity(cpus=has.get("CPU", 0.0), gpus=has["GPU"]))
    n_cards = sum(node.gpus for nodes in by_name.values() for node in nodes)
    return [
        CardKind(
            name=name, n_cards=round(sum(node.gpus for node in nodes)), most=runs_beside(definition, nodes, n_cards)
        )
        for name, nodes in by_name.items()
    ]


def slots_for(each: Capacity, *, priority: int, cluster: Capacity, competitors: Sequence[CompetingStudy]) -> int:
    """Number of runs that a study of this priority may have now.

    Studies of higher priority come first. Studies of equal priority share equally, and may use what others leave idle.

    Args:
        each: what one of its runs holds.
        cluster: all there is.
        competitors: the other studies at work, with the runs each has or wants now.

    Returns:
        At least its share: what studies of higher priority leave, divided by the number of studies of its priority.
        More if the others do not use theirs. At least 1 if no study has a higher priority: a cluster may still grow.
    """
    left = cluster
    for competitor in competitors:
        if competitor.priority > priority:
            left = left.less(Capacity(cpus=competitor.cpus, gpus=competitor.gpus), times=competitor.n_runs)
    equals = [competitor for competitor in competitors if competitor.priority == priority]
    share = math.ceil(left.slots(each) / (1 + len(equals)))
    for competitor in equals:
        left = left.less(Capacity(cpus=competitor.cpus, gpus=competitor.gpus), times=competitor.n_runs)
    first = not any(competitor.priority > priority for competitor in competitors)
    return max(share, left.slots(each), 1 if first else 0)


def runs_beside(definition: StudyDefinition, nodes: Sequence[Capacity], n_cards: float) -> int:
    """Most runs that can share a card of these machines, for the CPUs beside it and the study's max_concurrent_trials.

    Args:
        n_cards: all cards of the cluster, which these trials may use.
    """
    at_once = [MOST, min(node.cpus / definition.resources.cpus / node.gpus for node in nodes)]
    if definition.max_concurrent_trials is not None:
        at_once.append(math.ceil(definition.max_concurrent_trials / n_cards))
    return max(1, math.floor(min(at_once) + 1e-6))


def typical_settings(spec: OptimizerSearch) -> dict[str, Any]:
    """Settings from the middle of an optimizer's space."""
    return split_recipe(_middle(spec))[0]


def _middle(spec: OptimizerSearch) -> dict[str, Any]:
    """The middle of the space; where that does not meet its conditions, numbers and names that do."""
    middle = {name: middle_of(parameter) for name, parameter in spec.space.items() if parameter.when is None}
    if not spec.meets(middle):
        drawn = spec.draw_meeting(random.Random(0), {}, at_most=MAX_UNIFORM) or {}
        middle |= {name: drawn[name] for name, value in middle.items() if isinstance(value, bool | int | float | str)}
    return {**spec.fixed, **middle}


def _recipes(searches: Sequence[OptimizerSearch]) -> list[dict[str, Any]]:
    """The recipes in the middle of the spaces, and with each field at each of its end points in turn."""
    found: list[dict[str, Any]] = []
    for spec in searches:
        middle = _middle(spec)
        names = [name for name in middle if name.startswith(RECIPE)]
        ends = ({**middle, name: value} for name in names for value in spec.end_points(name))
        for _, recipe in map(split_recipe, (middle, *ends)):
            if recipe and recipe not in found:
                found.append(recipe)
    return found


def with_largest_batch(definition: StudyDefinition) -> dict[str, Any]:
    """The task with the largest batch and the largest size that any trial may have: it needs the most memory."""
    sizes = [size for one in definition.optimizers for size in batch_sizes(one, definition.task)]
    scale = definition.scale
    largest = {} if scale is None else {scale.field: max(scale.sizes)}
    return with_recipe(definition.task.model_dump(mode="json"), {"batch_size": max(sizes), **largest})


def middle_of(parameter: FloatParameter | IntParameter | CategoricalParameter) -> Any:
    """The value in the middle of a parameter's range, or of its choices."""
    if isinstance(parameter, CategoricalParameter):
        return parameter.choices[len(parameter.choices) // 2]
    if parameter.log:
        middle = math.sqrt(parameter.low) * math.sqrt(parameter.high)
    else:
        middle = parameter.low / 2 + parameter.high / 2
    return round(middle) if isinstance(parameter, IntParameter) else middle


def corners(spec: OptimizerSearch) -> list[dict[str, Any]]:
    """Settings in the middle of an optimizer's space, and with each parameter at each of its end points in turn."""
    middle, (space, _) = typical_settings(spec), split_recipe(spec.space)
    ends = ({**middle, name: value} for name in space for value in space[name].end_points())
    return [middle, *(settings for settings in ends if spec.meets(settings))]


def _check(
    task: dict[str, Any] | None,
    foreign: Sequence[tuple[str, str, Sequence[dict[str, Any]]]],
    data_dir: str | None,
    origins: Sequence[str],
    metric: str,
    recipes: Sequence[dict[str, Any]] = (),
) -> str | None:
    config = None if task is None else tasks.registry.parse_config(task)
    if config is None or tasks.registry.get(config.name).target is None:
        for label, optimizer, many in foreign:
            if config is None or not admeta.registry.get(optimizer).others:  # own code gives its model itself
                for settings in many:
                    construct(label, optimizer, settings)
    if config is None:
        return None
    from tasks.runs import check as check_task
    from tasks.runs import data_fingerprint

    tried = {label: (optimizer, many) for label, optimizer, many in foreign}
    check_task(config, data_dir=_path(data_dir), origins=origins, metric=metric, optimizers=tried, recipes=recipes)
    return data_fingerprint(config, data_dir=_path(data_dir))


def construct(label: str, optimizer: str, settings: dict[str, Any]) -> None:
    """Construct the optimizer over one parameter, as tasks do that train no network.

    Raises:
        ConfigError: its constructor raised, whatever it was.
    """
    import torch

    try:
        admeta.registry.create(optimizer, [torch.nn.Parameter(torch.zeros(2, 2))], **settings)
    except Exception as error:  # of another package's code
        raise ConfigError(
            f"optimizer '{label}' cannot be constructed with {settings}: {type(error).__name__}: {error}; "
            "change its 'space' or 'fixed'"
        ) from error


def _answer(asked: Any, *, is_stopping: Callable[[], bool]) -> Any | None:
    """The result of the Ray task; None if the study is stopped first."""
    while not ray.wait([asked], timeout=0.5)[0]:
        if is_stopping():
            ray.cancel(asked, force=True)
            return None
    try:
        return ray.get(asked)
    except RayTaskError as error:
        if isinstance(error.cause, TaskError):
            raise error.cause from None
        raise
    except (WorkerCrashedError, OutOfMemoryError) as error:  # Ray has tried it several times
        raise TaskError(
            f"the process that loads the study's data died ({str(error).splitlines()[0]}); it may need more memory "
            "than the machine has, or a file may crash a library"
        ) from error


def _path(folder: str | None) -> Path | None:
    return None if folder is None else Path(folder)
