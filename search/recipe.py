"""The training recipe: what makes studies comparable, and which of its fields a study searches.

A study's `recipe`, and an optimizer's, are search spaces over the task's own fields. They are resolved before a
definition is checked: what is stored has them in each optimizer's space, under names that begin with `recipe.`.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import random
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

import tasks.registry
from admeta.spaces import RECIPE, split_recipe
from search.errors import field_error, nearest_hint
from search.space import IntParameter, Parameter, Space, Strict, ordered
from tasks.config import TaskConfig, with_recipe

if TYPE_CHECKING:
    from search.definition import StudyDefinition
    from search.optimizer_search import OptimizerSearch

MAX_CHECKED = 2000
"""Combinations of end points of a study's recipes that are checked against the task."""

LADDER = "ladder-"
"""What the recipe of a study with `scale` begins with: its results are of several sizes, which no table mixes."""

RECIPE_SCHEMA: dict[str, Any] = {
    "type": "object",
    "additionalProperties": {"type": "object"},
    "examples": [{"batch_size": {"type": "categorical", "choices": [32, 64, 128]}}],
}


class _Stated(Strict):
    recipe: Space


def recipe_parameters(raw: Mapping[str, Any]) -> dict[str, Parameter]:
    """The parameters under `recipe` of a raw study or optimizer, by their stored names; none where there is none.

    A condition on a field that is searched there means that field.

    Raises:
        ValidationError: a part is not a parameter.
    """
    if raw.get("recipe") is None:
        return {}
    for name, value in raw["recipe"].items() if isinstance(raw["recipe"], dict) else ():
        if not isinstance(value, dict) or "type" not in value:
            message = (
                "must be a parameter, such as {type: categorical, choices: […]}; a field of an object is named with a "
                "dot (schedule.warmup), and a constant belongs under 'task'"
            )
            raise field_error("recipe", message, at=("recipe", str(name)), value=value)
    stated = _Stated.model_validate({"recipe": raw["recipe"]}).recipe

    def stored(name: str) -> str:
        return f"{RECIPE}{name}" if name in stated else name

    return {
        stored(name): parameter.model_copy(
            update={"when": parameter.when and {stored(parent): value for parent, value in parameter.when.items()}}
        )
        for name, parameter in stated.items()
    }


def share_recipe(raw: Mapping[str, Any], task: TaskConfig | None) -> dict[str, Any]:
    """The raw study with its `recipe` in that of each optimizer.

    Args:
        task: None if it is not valid; the validator of `task` reports it.

    Raises:
        ValidationError: a part is not a parameter or does not fit the task, or an optimizer states it too.
    """
    shared = recipe_parameters(raw)
    rest = {name: value for name, value in raw.items() if name != "recipe"}
    if task is not None and shared:
        check_recipe(task, shared, {}, at=("recipe",))
    given = rest.get("optimizers")
    if not shared or not isinstance(given, list):
        return rest
    optimizers = [
        {**one, "recipe": _joined(raw["recipe"], one, i)} if isinstance(one, dict) else one
        for i, one in enumerate(given)
    ]
    return {**rest, "optimizers": optimizers}


def _joined(shared: Mapping[str, Any], optimizer: Mapping[str, Any], i: int) -> Any:
    """The shared recipe and the optimizer's own, each field once."""
    own = optimizer.get("recipe")
    for part, prefix in (("recipe", ""), ("space", RECIPE), ("fixed", RECIPE)):
        stated = optimizer.get(part)
        for name in (prefix + field for field in shared):
            if isinstance(stated, dict) and name in stated:
                message = "is searched for all optimizers under the study's 'recipe'; keep one of the two"
                raise field_error("twice", message, at=("optimizers", i, part, name), value=stated[name])
    return {**shared, **own} if isinstance(own, dict) else own or shared


def check_recipe(
    task: TaskConfig,
    space: Mapping[str, Parameter],
    fixed: Mapping[str, Any],
    *,
    at: tuple[int | str, ...],
    at_most: int = MAX_CHECKED,
) -> None:
    """Check that the task takes the recipes that a search may draw: each end point with those of the others.

    Args:
        space, fixed: of an optimizer; only the names that begin with `recipe.` count.
        at: the place of an error in the definition, before the parameter's name.
        at_most: how many combinations are checked: all, or where there are more each value alone, then some at random.

    Raises:
        ValidationError: a name is not a field that may be searched, or the task refuses a value.
    """
    (_, searched), (_, constants) = split_recipe(space), split_recipe(fixed)
    names = [*searched, *constants]
    prefix = "" if at == ("recipe",) else RECIPE

    def fault(name: str, message: str) -> ValidationError:
        part = () if at == ("recipe",) else ("space",) if name in searched else ("fixed",)
        return field_error("recipe", message, at=(*at, *part, prefix + name), value=constants.get(name))

    if not names:
        return
    for name in names:
        if message := why_not_searched(name, type(task)):
            raise fault(name, message)
        if (whole := name.partition(".")[0]) != name and whole in names:
            raise fault(name, f"is a field of '{whole}', which is searched as a whole; keep one of the two")
    whole_task = task.model_dump(mode="json")
    for values in _combinations(space, at_most=at_most):
        recipe = {**constants, **split_recipe(values)[1]}
        try:
            tasks.registry.parse_config(with_recipe(whole_task, recipe))
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            field = str(next(iter(first["loc"]), ""))
            concerned = [name for name in recipe if name.partition(".")[0] == field] or list(recipe)
            shown = ", ".join(f"{name} = {recipe[name]!r}" for name in concerned)
            rule = first["msg"].removeprefix("Value error, ").replace("Input should ", "must ")
            advice = "; draw it only where it applies, with 'when'" if len(concerned) > 1 else ""
            raise fault(concerned[-1], f"can be {shown} here: {rule}{advice}") from None


def why_not_searched(name: str, config: type[TaskConfig]) -> str | None:
    """Why a study cannot search this field; None where it can."""
    known = config.recipe_fields()
    field, _, inner = name.partition(".")
    if name in known or (inner and f"{field}.*" in known):
        return None
    if field in config.same_for_all and field in config.model_fields:
        return (
            "is the same for all trials of a study, since it decides what is measured, for how long a trial trains or "
            f"on which machine; set it under 'task'. Searched may be: {', '.join(known)}"
        )
    task = config.model_fields["name"].default
    return f"is not a field of task '{task}'; {nearest_hint(name, tuple(known))}"


def _combinations(space: Mapping[str, Parameter], *, at_most: int) -> Iterator[dict[str, Any]]:
    """The end points of the recipe's parameters with those of the others.

    Values that decide whether another parameter is drawn count as end points.
    """
    names = [name for name in ordered(dict(space)) if name.startswith(RECIPE)]
    wanted = [(parent, value) for name in names for parent, value in (space[name].when or {}).items()]
    points = {
        name: [*space[name].end_points(), *(value for parent, value in wanted if parent == name)] for name in names
    }
    drawn: Iterator[tuple[Any, ...]] = itertools.product(*points.values())
    if math.prod(map(len, points.values())) > at_most:
        source = random.Random(0)
        drawn = itertools.chain(
            (
                tuple(value if other == name else of[0] for other, of in points.items())
                for name, found in points.items()
                for value in found
            ),
            (tuple(map(source.choice, points.values())) for _ in range(at_most)),
        )
    for values in itertools.islice(drawn, at_most):
        yield _met(dict(zip(names, values, strict=True)), space)


def _met(values: dict[str, Any], space: Mapping[str, Parameter]) -> dict[str, Any]:
    """The values without those whose condition on other values of the recipe is not met; parents come first."""
    kept: dict[str, Any] = {}
    for name, value in values.items():
        when = {parent: want for parent, want in (space[name].when or {}).items() if parent in values}
        if all(parent in kept and kept[parent] == want for parent, want in when.items()):
            kept[name] = value
    return kept


def batch_sizes(optimizer: OptimizerSearch, task: TaskConfig) -> list[int]:
    """Batch sizes of which every one that the search may draw is a sum of multiples: end points, and the step."""
    name = f"{RECIPE}batch_size"
    sizes = optimizer.end_points(name) if name in {*optimizer.space, *optimizer.fixed} else [task.batch_size]
    parameter = optimizer.space.get(name)
    return [*sizes, *([parameter.step] if isinstance(parameter, IntParameter) else [])]


def own_fields(optimizers: Iterable[Mapping[str, Any]]) -> list[str]:
    """The fields of the task that any of these optimizers of a definition searches or sets for itself, sorted."""
    named = (split_recipe({**one["space"], **one["fixed"]})[1] for one in optimizers)
    return sorted({field for fields in named for field in fields})


WITHOUT_EFFECT = frozenset({"acceleration", "deterministic", "sleep_s"})
"""Fields of a task that change its speed but, beyond rounding, not its results."""


def recipe_of(definition: StudyDefinition, *, data_fingerprint: str | None = None) -> str:
    """The hash of what makes the results of two studies comparable: 64 hexadecimal digits, equal on any machine.

    Of a study with `scale` it begins with `LADDER`.

    Best settings, tables across studies and warm starts are taken from studies of one recipe only. The optimizers with
    their settings, the sampler, the pruner, the budget and the training seeds, which studies compare, are left out.
    It covers the task's whole configuration (model, epochs, batch size, schedule, initial weights, …), the data and the
    objective. `split_seed` is part of it, since it decides which examples validation is measured on; the seeds of runs
    are not part of a task's configuration. Where optimizers have a recipe of their own, searched or fixed, it covers
    which fields those are, and not their values: results then differ by them as they do by the optimizers' settings.

    Args:
        data_fingerprint: of the data set's files, known once a driver has opened them (`search.placement.check`). None:
            the data are named by the task's `data_dir`, which holds as long as that folder is not changed.
    """
    # Fields at their defaults are left out, so that a release with one more field has the same hashes.
    task: Mapping[str, Any] = definition.task.model_dump(mode="json", exclude_defaults=True)
    kept = {name: value for name, value in task.items() if name not in WITHOUT_EFFECT}
    if data_fingerprint is not None:
        kept.pop("data_dir", None)
    objective = definition.objective.model_dump(mode="json")
    own = own_fields({"space": one.space, "fixed": one.fixed} for one in definition.optimizers)
    content = {
        "name": definition.task.name,
        "task": kept,
        "data": data_fingerprint,
        "objective": objective,
        **({"own": own} if own else {}),
        **({} if definition.scale is None else {"scale": definition.scale.field}),
    }
    digest = hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
    return digest if definition.scale is None else f"{LADDER}{digest[len(LADDER) :]}"
