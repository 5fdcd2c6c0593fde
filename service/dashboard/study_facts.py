"""What a study's page says in words: what the study is, and how much of its budget is used."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

from admeta.client.formatting import settings
from admeta.client.models import ComparisonView, StudyView
from search.recipe import own_fields
from service.dashboard.pages import duration


def study_facts(study: StudyView, comparison: ComparisonView) -> dict[str, str]:
    """What the study is, by title: its task, how it searches, what it may use, and how much of that it has used."""
    definition: dict[str, Any] = study.definition or {}
    parts = ("task", "budget", "confirm", "sensitivity", "resources", "sampler", "pruner")
    task, budget, confirm, varied, resources, sampler, pruner = (definition.get(name) or {} for name in parts)
    own = own_fields(definition.get("optimizers", []))
    facts = {
        "Task": _listed([study.task, study.model, *_training(task, own=own)]),
        "Search": _listed(
            [_each(definition, budget), _also(definition), _named("sampler", sampler), _named("pruner", pruner)]
        ),
        "Seeds": _listed([_training_seed(definition), _confirmed(confirm)]),
        "Sizes": _sizes(definition.get("scale") or {}),
        "Sensitivity": _varied(varied),
        "Budget": _listed(_spent(study, comparison, budget)),
        "Resources": _listed(_resources(definition, resources)),
    }
    return {title: text for title, text in facts.items() if text}


def _sizes(asked: dict[str, Any]) -> str:
    if not asked:
        return ""
    values = ", ".join(f"{one:g}" for one in sorted(asked["values"]))
    verified = f", verified by {_n(asked['verify'], 'trial')} of each optimizer" if asked["verify"] else ""
    return f"{asked['field']} {values}; predicts {asked['predict']:g}{verified}"


def _varied(asked: dict[str, Any]) -> str:
    if not asked:
        return ""
    seeds = f" with {_n(asked['seeds'], 'seed')} each" if asked["seeds"] > 1 else ""
    return f"the best trial with {asked['points']} values of {asked['parameter']}{seeds}"


def _listed(parts: Iterable[str | None]) -> str:
    return ", ".join(filter(None, parts))


def _training(task: dict[str, Any], *, own: Sequence[str]) -> Iterator[str]:
    """How all trials train, and which fields optimizers have of their own."""
    words = {"epochs": "{} epochs", "batch_size": "batches of {}", "steps_per_epoch": "{} steps an epoch"}
    for name, text in words.items():
        if task.get(name) is not None and name not in own:
            yield text.format(task[name])
    schedule = task.get("schedule")
    if isinstance(schedule, dict) and "name" in schedule and not {"schedule", "schedule.name"} & {*own}:
        yield f"{schedule['name']} schedule"
    if own:
        yield f"each optimizer's own {', '.join(own)}"


def _each(definition: dict[str, Any], budget: dict[str, Any]) -> str | None:
    n, searches = budget.get("trials_per_optimizer"), definition.get("searches", 1)
    if n is None:
        return None
    return f"{_n(n, 'trial')} of each optimizer" if searches == 1 else f"{searches} searches of each optimizer"


def _also(definition: dict[str, Any]) -> str | None:
    """What trials are searched for besides the metric."""
    names = [one["metric"] for one in definition.get("objectives", [])]
    return f"also for {' and '.join(names)}" if names else None


def _named(kind: str, values: dict[str, Any]) -> str:
    others = settings({name: value for name, value in values.items() if name != "name" and value is not None})
    return f"{kind} {values['name']}{f' ({others})' if others else ''}" if values.get("name") else ""


def _training_seed(definition: dict[str, Any]) -> str | None:
    seed = definition.get("training_seed")
    return None if seed is None else f"trials are trained with seed {seed}"


def _confirmed(confirm: dict[str, Any]) -> str | None:
    if not confirm.get("top_k"):
        return None
    k, seeds = confirm["top_k"], [str(seed) for seed in confirm.get("seeds", [])]
    best = "the best trial of each optimizer again" if k == 1 else f"the best {k} trials of each optimizer again"
    more = f", up to {confirm['max_seeds']} until it is decided which is best" if confirm.get("until") else ""
    return f"{best} with {'seeds' if len(seeds) > 1 else 'seed'} {' '.join(seeds)}{more}"


def _spent(study: StudyView, comparison: ComparisonView, budget: dict[str, Any]) -> list[str]:
    finished, planned = sum(s.n_finished for s in study.searches), sum(s.n_trials for s in study.searches)
    counted = all(s.max_epochs is s.max_gpu_hours is None for s in study.searches)
    found = [f"{finished} of {planned} trials used" if counted else f"{_n(finished, 'trial')} used"]
    used = {
        "hours": study.elapsed_s(datetime.now(UTC)) / 3600,
        "GPU hours": sum(row.gpu_s for row in comparison.rows) / 3600,
    }
    for name, words in (("max_hours", "hours"), ("gpu_hours", "GPU hours")):
        limit = budget.get(name)
        if limit is not None:
            left = max(0.0, limit - used[words])
            found.append(f"{used[words]:.2g} of {limit:g} {words} used, {left:.2g} left")
        elif used[words] >= 0.01:
            found.append(f"{duration(3600 * used[words])} {'since the start' if words == 'hours' else 'of GPU'} used")
    if budget.get("epochs_per_optimizer") is not None:
        found.append(f"at most {budget['epochs_per_optimizer']} epochs of each optimizer")
    if budget.get("gpu_hours_per_optimizer") is not None:
        found.append(f"at most {budget['gpu_hours_per_optimizer']:g} GPU hours of each optimizer")
    if budget.get("target") is not None:
        found.append(f"a search ends when {study.metric} reaches {budget['target']:g}")
    return found


def _resources(definition: dict[str, Any], resources: dict[str, Any]) -> list[str]:
    found = list(resources_in_words(resources))
    if definition.get("max_concurrent_trials"):
        found.append(f"at most {_n(definition['max_concurrent_trials'], 'trial')} at once")
    if definition.get("max_failures") is not None:
        found.append(f"{_n(definition['max_failures'], 'retry', 'retries')} of a failed run")
    return found


def resources_in_words(resources: dict[str, Any]) -> list[str]:
    """CPUs and GPUs of a trial."""
    found = []
    if (cpus := resources.get("cpus")) is not None:
        found.append(f"{cpus:g} CPU{'s' if cpus != 1 else ''} a trial")
    match resources.get("gpus"):
        case "auto":
            found.append("as many trials on a GPU as increase its throughput")
        case float() | int() as gpus:
            found.append("no GPU" if gpus == 0 else f"{gpus:g} GPU{'s' if gpus > 1 else ''} a trial")
    return found


def _n(n: int, one: str, many: str | None = None) -> str:
    return f"{n} {one if n == 1 else many or one + 's'}"
