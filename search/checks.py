"""The rules of a whole study definition: what its sections ask of one another, of the task and of the optimizers.

Rules of a single section are in its model. Each function here raises the error of the field that is to be changed.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pydantic import ValidationError

import admeta.registry
import tasks.registry
from admeta.spaces import RECIPE, split_recipe
from search import pruners, samplers
from search.errors import field_error, nearest_hint
from search.objectives import check_further
from search.optimizer_search import NAME_PATTERN
from search.recipe import MAX_CHECKED, batch_sizes, check_recipe, why_not_searched
from search.scale import fitted
from search.sections import NO_CARD
from search.sensitivity import n_values
from tasks.config import with_recipe
from tasks.registry import ENGINE_RUN, OWN_FIELDS, TaskInfo, why_not_together

if TYPE_CHECKING:
    from search.definition import StudyDefinition


def check_definition(definition: StudyDefinition) -> None:
    """Check a definition of which each section is valid by itself.

    Raises:
        ValidationError: of the first rule that it does not meet.
    """
    info = tasks.registry.get(definition.task.name)
    _check_metric(definition, info)
    _check_objectives(definition, info)
    _check_baseline(definition)
    _check_widths(definition)
    _check_scale(definition)
    _check_labels(definition)
    _check_comparison(definition)
    _check_seeds(definition)
    _check_recipes(definition)
    _check_cards(definition, info)
    _check_cohort(definition)
    _check_gpu_hours(definition)
    _check_sensitivity(definition)
    _check_grids(definition)


# What trials are judged by --------------------------------------------------------------------------------------------


def _check_metric(definition: StudyDefinition, info: TaskInfo) -> None:
    metric = definition.objective.metric
    if not info.has_metric(metric):
        message = f"task '{info.name}' has no metric '{metric}'; {nearest_hint(metric, tuple(info.metrics))}"
        if info.open_metrics:
            message = "must be letters, digits, '_', '.' or '-', and not begin with 'test_': validation selects"
        raise field_error("unknown_metric", message, at=("objective", "metric"), value=metric)


def _check_objectives(definition: StudyDefinition, info: TaskInfo) -> None:
    if not definition.objectives:
        return
    check_further(definition.objectives, first=definition.objective, info=info)
    if not isinstance(definition.pruner, pruners.NoPruner):
        message = (
            f"must be none with 'objectives', or be left out: '{definition.pruner.name}' stops trials by "
            f"{definition.objective.metric} alone, and a trial that was stopped has no seconds to compare"
        )
        raise field_error("pruner", message, at=("pruner", "name"), value=definition.pruner.name)
    if isinstance(definition.sampler, samplers.CmaEsSampler):
        message = "searches for one objective only; with 'objectives' use tpe or gp, or qmc, random or grid"
        raise field_error("sampler", message, at=("sampler", "name"), value="cmaes")


# What is searched -----------------------------------------------------------------------------------------------------


def _check_widths(definition: StudyDefinition) -> None:
    """µP needs to know how an optimizer's learning rate depends on the width."""
    if getattr(definition.task, "parametrization", "standard") != "mup":
        return
    for i, optimizer in enumerate(definition.optimizers):
        if reason := admeta.registry.why_no_width_rule(optimizer.name):
            raise field_error("no_width_rule", reason, at=("optimizers", i, "name"), value=optimizer.name)


def _check_scale(definition: StudyDefinition) -> None:
    scale = definition.scale
    if scale is None:
        return
    if reason := why_not_searched(scale.field, type(definition.task)):
        raise field_error("scale", reason, at=("scale", "field"), value=scale.field)
    for other, given in (
        ("searches", definition.searches > 1),
        ("objectives", bool(definition.objectives)),
        ("baseline", definition.baseline is not None),
        ("warm_start", definition.warm_start is not None),
        ("confirm.until", definition.confirm.until is not None),
    ):
        if given:
            message = f"cannot be combined with '{other}'; leave one of the two out"
            raise field_error("scale", message, at="scale", value=scale.field)
    whole = definition.task.model_dump(mode="json")
    for at, size in [*((("values", i), one) for i, one in enumerate(scale.values)), (("predict",), scale.predict)]:
        try:
            tasks.registry.parse_config(with_recipe(whole, {scale.field: size}))
        except ValidationError as error:
            rule = error.errors(include_url=False)[0]["msg"].removeprefix("Value error, ")
            message = f"{scale.field} = {size:g}: {rule.replace('Input should ', 'must ')}"
            raise field_error("scale", message, at=("scale", *at), value=size) from None
    for i, optimizer in enumerate(definition.optimizers):
        if f"{RECIPE}{scale.field}" in {**optimizer.space, **optimizer.fixed}:
            message = f"sets {scale.field} for itself, which 'scale' has at its sizes; remove it from one of the two"
            raise field_error("scale", message, at=("optimizers", i), value=optimizer.label)
        if not fitted(optimizer):
            message = "searches no parameter that is a real number, so 'scale' has none to predict; search lr"
            raise field_error("scale", message, at=("optimizers", i, "space"), value=list(optimizer.space))


def _check_recipes(definition: StudyDefinition) -> None:
    at_most = max(100, MAX_CHECKED // len(definition.optimizers))
    for i, optimizer in enumerate(definition.optimizers):
        check_recipe(definition.task, optimizer.space, optimizer.fixed, at=("optimizers", i), at_most=at_most)


def _check_grids(definition: StudyDefinition) -> None:
    if not isinstance(definition.sampler, samplers.GridSampler):
        return
    for i, optimizer in enumerate(definition.optimizers):
        try:
            size = samplers.grid_size(optimizer.space)
            if optimizer.when and size > samplers.MAX_LISTED:
                raise ValueError(
                    f"the grid has {size:,} combinations; with 'when' at most {samplers.MAX_LISTED:,} can be listed. "
                    "Use larger steps or fewer choices."
                )
        except ValueError as error:
            raise field_error("no_grid", str(error), at=("optimizers", i, "space"), value=None) from None


# What is compared -----------------------------------------------------------------------------------------------------


def _check_label(definition: StudyDefinition, label: str, *, at: tuple[int | str, ...]) -> None:
    """Check that a section names an optimizer of the study."""
    labels = tuple(optimizer.label for optimizer in definition.optimizers)
    if label not in labels:
        message = f"is not a label of this study; {nearest_hint(label, labels)}"
        raise field_error("unknown_label", message, at=at, value=label)


def _check_baseline(definition: StudyDefinition) -> None:
    for i, label in enumerate(definition.baseline if isinstance(definition.baseline, list) else ()):
        _check_label(definition, label, at=("baseline", i))
    try:
        definition.baselines()
    except ValidationError as error:
        message = f"the default settings cannot be used: {error.errors()[0]['msg']}"
        raise field_error("baseline", message, at="baseline", value=definition.baseline) from None


def _check_labels(definition: StudyDefinition) -> None:
    """Each search needs a label of its own, which may be longer than that of its optimizer."""
    labels = [search.optimizer.label for search in definition.planned_searches()]
    of_each = definition.searches if definition.scale is None else len(definition.scale.sizes)
    for i, label in enumerate(labels):
        at = ("optimizers", i // of_each) if i < of_each * len(definition.optimizers) else ("baseline",)
        if label in labels[:i]:
            message = f"optimizer '{label}' is listed twice; give each its own 'label'"
            raise field_error("listed_twice", message, at=at, value=label)
        if not re.fullmatch(NAME_PATTERN, label):
            message = f"the label of its last search, '{label}', has more than 100 characters; shorten 'label'"
            raise field_error("label_too_long", message, at=at, value=label)


def _check_comparison(definition: StudyDefinition) -> None:
    if definition.contrasts is not None:
        _check_label(definition, definition.contrasts.against, at=("contrasts", "against"))
    until, searches = definition.confirm.until, definition.searches
    if until is not None and searches > 1:
        message = f"cannot be combined with 'searches' = {searches}; repeat searches, or confirm until decided"
        raise field_error("until", message, at=("confirm", "until"), value=until)


def _check_seeds(definition: StudyDefinition) -> None:
    both = [seed for seed in definition.confirm.seeds if seed in definition.training_seeds]
    if definition.confirm.top_k and both:
        message = (
            f"training_seed {both[0]} is also a confirm seed; the confirm stage must use seeds that have "
            "selected nothing"
        )
        raise field_error("seed_used_twice", message, at="training_seed", value=definition.training_seed)


def _check_sensitivity(definition: StudyDefinition) -> None:
    asked, seeds = definition.sensitivity, definition.confirm.seeds
    if asked is None:
        return
    if asked.seeds > len(seeds):
        message = f"must be at most the number of confirm seeds, {len(seeds)}; they are its seeds"
        raise field_error("too_few_seeds", message, at=("sensitivity", "seeds"), value=asked.seeds)
    varied = {
        name
        for one in definition.optimizers
        for name in one.parameter_names
        if n_values(one, asked.model_copy(update={"parameter": name}))
    }
    if asked.parameter not in varied:
        hint = nearest_hint(asked.parameter, tuple(varied))
        message = f"is no parameter with numbers of any optimizer here; {hint}"
        raise field_error("unknown_parameter", message, at=("sensitivity", "parameter"), value=asked.parameter)


# What runs train on ---------------------------------------------------------------------------------------------------


def _check_cards(definition: StudyDefinition, info: TaskInfo) -> None:
    cards = definition.resources.gpus
    if cards == "auto" or cards <= 1 or info.run != ENGINE_RUN:
        return
    searches = (search.optimizer for search in definition.planned_searches())
    for batch_size in (size for one in searches for size in batch_sizes(one, definition.task)):
        if batch_size % cards:
            message = (
                f"a batch of {batch_size} cannot be split evenly over {cards:g} cards; make batch_size a multiple "
                f"of {cards:g}"
            )
            raise field_error("uneven_batches", message, at=("resources", "gpus"), value=cards)


def _check_cohort(definition: StudyDefinition) -> None:
    cohort, gpus = definition.resources.cohort, definition.resources.gpus
    if cohort == 1:
        return
    reason = why_not_together(definition.task)
    if gpus != "auto" and gpus > 1:
        reason = f"it trains on one card, and gpus is {gpus:g}"
    if definition.scale is not None:
        reason = "'scale' trains models of several sizes"
    for optimizer in definition.optimizers:
        _, recipe = split_recipe({**optimizer.space, **optimizer.fixed})
        if other := [name for name in recipe if name.partition(".")[0] not in OWN_FIELDS]:
            reason = f"its runs must be equal in {other[0]!r}, which '{optimizer.label}' sets or searches"
    if reason:
        message = f"no cohort of {cohort} can be trained: {reason}. Set it to 1"
        raise field_error("no_cohort", message, at=("resources", "cohort"), value=cohort)


def _check_gpu_hours(definition: StudyDefinition) -> None:
    if definition.budget.only_gpu_hours and definition.resources.gpus == 0:
        at, hours = ("budget", "gpu_hours_per_optimizer"), definition.budget.gpu_hours_per_optimizer
        raise field_error("gpu_hours", f"{NO_CARD}; 'resources.gpus' is 0", at=at, value=hours)
