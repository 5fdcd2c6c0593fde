"""Warnings about a valid definition that will probably not do what its author expects.

They are part of the response to a submission. Errors are raised by `search.definition`. Only the definition is read: no
torch, no Optuna, no database.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import admeta.registry
import tasks.registry
from search import pruners, samplers
from search.definition import StudyDefinition
from search.objectives import COSTS, MEMORY
from search.optimizer_search import OptimizerSearch
from search.sections import N_TAKEN
from search.space import CategoricalParameter

SMALL_SHARE = 0.1
"""Share of a space that meets its conditions below which ranges should be narrowed."""

GP_TRIALS = 500
"""Trials past which a GP suggestion takes seconds (6 s at 1,000)."""


def warnings_for(definition: StudyDefinition) -> list[str]:
    """What will happen, with the values, and what to change: one or two sentences each. Empty if all is well."""
    return [
        *_study(definition),
        *_pruner(definition),
        *_objectives(definition),
        *_scale(definition),
        *(w for o in definition.optimizers for w in _search(definition, o)),
        *_baselines(definition),
    ]


def _study(definition: StudyDefinition) -> Iterator[str]:
    metric, direction = definition.objective.metric, definition.objective.direction
    usual = tasks.registry.get(definition.task.name).metrics.get(metric, direction)
    if direction != usual:
        yield f"objective: the study will {direction} {metric}; usually one wants to {usual} it. Check 'direction'."
    budget, epochs = definition.budget, definition.task.epochs
    if budget.epochs_per_optimizer is not None and budget.epochs_per_optimizer < epochs:
        yield (
            f"budget: epochs_per_optimizer = {budget.epochs_per_optimizer} is less than one training of {epochs} "
            "epochs; each search will end after its first trials."
        )
    yield from _warm_start(definition)
    if definition.sensitivity is not None and (not definition.confirm.top_k or len(definition.confirm.seeds) < 2):
        yield (
            "sensitivity: no trial is confirmed with two seeds, so the spread between seeds is not known; ranges will "
            "have no intervals. Set confirm.top_k to 1, with two seeds or more."
        )
    if definition.confirm.top_k > (budget.trials_per_optimizer or math.inf):
        yield (
            f"confirm: top_k = {definition.confirm.top_k} is more than trials_per_optimizer = "
            f"{budget.trials_per_optimizer}; only trials that completed can be confirmed."
        )


def _warm_start(definition: StudyDefinition) -> Iterator[str]:
    warm_start, budget = definition.warm_start, definition.budget
    if warm_start is None:
        return
    taken = warm_start.n_trials_within(budget)
    is_default = warm_start.n_trials == N_TAKEN[warm_start.scope]  # nobody chose it
    if warm_start.n_trials > taken and not is_default:
        trials = budget.trials_per_optimizer
        share = "a tenth" if warm_start.scope == "recipe" else "a fifth"
        of = "1, where trials are not counted" if trials is None else f"{share} of trials_per_optimizer = {trials}"
        yield (
            f"warm_start: n_trials = {warm_start.n_trials} is more than {of}; {taken} will be taken over, so that "
            "settings which turn out wrong cost little."
        )
    if definition.name in (warm_start.studies or ()):
        yield f"warm_start: studies names '{definition.name}', this study itself, from which nothing is taken over."
    if warm_start.task is not None:
        yield (
            f"warm_start: task = '{warm_start.task}' has no effect; settings are taken over from studies of the same "
            "recipe only (task, model, epochs, data, objective). Leave it out, or name settings under 'first'."
        )


def _scale(definition: StudyDefinition) -> Iterator[str]:
    if definition.scale is None:
        return
    if not isinstance(definition.pruner, pruners.NoPruner):
        yield (
            f"scale: the pruner {definition.pruner.name} stops trials, which then say nothing of the best settings; "
            "predictions will be less sure. Use pruner: none."
        )
    if isinstance(definition.sampler, samplers.TpeSampler | samplers.CmaEsSampler | samplers.GpSampler):
        yield (
            f"scale: the sampler {definition.sampler.name} stays near the best trials, and a minimum shows by those on "
            "both sides of it. Use sampler: qmc, or grid with choices in equal factors."
        )


def _pruner(definition: StudyDefinition) -> Iterator[str]:
    pruner, epochs = definition.pruner_of_budget, definition.task.epochs
    if isinstance(pruner, pruners.NoPruner):
        return
    first = pruners.first_epoch(pruner, max_epochs=epochs)
    if first >= epochs > 1:
        yield (
            f"pruner: min_epochs = {first} is not below the training's {epochs} epochs; no trial will be "
            "stopped early. Lower it, or name the pruner none."
        )
    elif isinstance(pruner, pruners.AshaPruner) and 2 * first > epochs > 1:
        yield (
            f"pruner: min_epochs = {first} is more than half of the training's {epochs} epochs; stopping a trial there "
            "saves little. Lower it, or leave it out for a third of the training at most."
        )
    trials = definition.budget.most_trials
    if isinstance(pruner, pruners.MedianPruner) and pruner.n_startup_trials >= trials:
        yield (
            f"pruner: n_startup_trials = {pruner.n_startup_trials} is not below trials_per_optimizer = {trials}; no "
            "trial will be stopped early."
        )


def _objectives(definition: StudyDefinition) -> Iterator[str]:
    names, gpus = {one.metric for one in definition.objectives}, definition.resources.gpus
    if MEMORY in names and gpus == 0:
        yield (
            "objectives: peak_memory_bytes is on a CPU the most that a worker has held, whatever it ran before, and "
            "workers are reused; it says nothing of a trial. Leave it out, or use a GPU."
        )
    seconds = sorted(name for name in names if name in COSTS and name.endswith("_s"))
    if seconds and (gpus == "auto" or 0 < gpus < 1):
        yield (
            f"objectives: with resources.gpus = {gpus} trials may share a card, and {', '.join(seconds)} then depends "
            "on what runs beside a trial. Set resources.gpus to 1 for seconds that can be compared."
        )


def _search(definition: StudyDefinition, search: OptimizerSearch) -> Iterator[str]:
    named = search.space.keys() | search.fixed.keys()
    yield from admeta.registry.cautions(search.name, {name: search.end_points(name) for name in named})
    n_trials = definition.budget.trials_per_optimizer or math.inf
    if search.when and (share := search.share_met()) < SMALL_SHARE:
        yield (
            f"{search.label}: {100 * share:.2g} % of the space meets its 'when'; the others are drawn again. Ranges "
            "that are nearer to it make the models of tpe, gp and cmaes better."
        )
    for warning in _sampler(definition.sampler, search, n_trials=n_trials):
        yield f"{search.label}: {warning}"


def _baselines(definition: StudyDefinition) -> Iterator[str]:
    searches = {search.label: search for search in definition.optimizers}
    for baseline in definition.baselines():
        search, fixed = searches[baseline.of], baseline.optimizer.fixed
        settings = {name: value for name, value in fixed.items() if name in search.space}
        if not search.meets(settings):
            yield (
                f"{baseline.optimizer.label}: the default settings {settings} do not meet 'when' of {search.label}; "
                "they are trained all the same."
            )


def _sampler(sampler: samplers.Sampler, search: OptimizerSearch, *, n_trials: float) -> Iterator[str]:
    """Warnings of a sampler; `n_trials` is infinite where the budget does not count trials."""
    n_grid = samplers.n_configurations(search.space)
    match sampler:
        case samplers.TpeSampler() | samplers.GpSampler() if sampler.n_startup_trials >= n_trials:
            yield (
                f"the sampler {sampler.name} draws its first {sampler.n_startup_trials} trials at random, which is all "
                f"of trials_per_optimizer = {n_trials}. Lower n_startup_trials or run more trials."
            )
        case samplers.GpSampler() if GP_TRIALS < n_trials < math.inf:
            yield (
                f"the sampler gp needs seconds for a suggestion past {GP_TRIALS} trials, and {n_trials} are planned; "
                "tpe needs about 0.1 s."
            )
        case samplers.CmaEsSampler() if all(isinstance(p, CategoricalParameter) for p in search.space.values()):
            yield "the sampler cmaes moves numbers only, and this space has choices only: it is random search. Use tpe."
        case samplers.CmaEsSampler() | samplers.QmcSampler() if any(p.when for p in search.space.values()):
            conditional = ", ".join(sorted(name for name, p in search.space.items() if p.when))
            yield f"the sampler {sampler.name} draws conditional parameters ({conditional}) at random; tpe models them."
        case samplers.GridSampler() if n_grid > n_trials:
            yield (
                f"the grid has {n_grid} combinations, and trials_per_optimizer = {n_trials} of them will be tried, in "
                "random order. Raise the budget for the whole grid."
            )
        case samplers.TpeSampler() | samplers.GpSampler() | samplers.RandomSampler() | samplers.QmcSampler():
            if n_grid < n_trials < math.inf:
                yield (
                    f"the space has {n_grid} configurations, fewer than trials_per_optimizer = {n_trials}; repeated "
                    "ones are not trained again but take over the first one's result."
                )
        case _:
            pass
