"""Extending a study that has ended: the definition that it continues with, what changes, and what its verdicts cost."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from admeta.client.models import ExtendRequest
from admeta.spaces import RECIPE
from search.analysis.moderated import N_DRAWS
from search.definition import StudyDefinition
from search.errors import field_error, nearest_hint
from search.sections import Budget

LIMITS = tuple(name for name in Budget.model_fields if name != "trials_per_optimizer")


def extended(definition: StudyDefinition, asked: ExtendRequest) -> dict[str, Any]:
    """The definition with what is asked for, as JSON values that are not checked yet.

    Numbers are totals, so that the same request again changes nothing. Seeds that are added follow the present ones.

    Raises:
        ValidationError: a number is below the present one, a label or a limit is unknown, or nothing is confirmed.
    """
    raw = definition.to_json()
    if asked.trials is not None:
        _set_trials(raw, asked.trials)
    for label, n in asked.trials_of.items():
        _set_trials_of(raw, label, n)
    if asked.seeds is not None:
        _set_seeds(raw, definition, asked.seeds)
    for name, limit in asked.limits.items():
        if name not in LIMITS:
            message = f"is not a limit of the budget; {nearest_hint(name, LIMITS)}"
            raise field_error("unknown_limit", message, at=("limits", name), value=limit)
        raw["budget"][name] = limit
    raw["optimizers"] += [_with_recipe(one, raw["optimizers"]) for one in asked.optimizers]
    return raw


def _with_recipe(added: dict[str, Any] | str, present: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """An optimizer with the recipe that all present ones search, where it states none; fields that it sets are left."""
    new = {"name": added} if isinstance(added, str) else added
    stated = {name for part in ("space", "fixed") if isinstance(of := new.get(part), Mapping) for name in of}
    first, *others = [one["space"] for one in present]
    common = {
        name.removeprefix(RECIPE): {**parameter, "when": _without_prefix(parameter["when"])}
        for name, parameter in first.items()
        if name.startswith(RECIPE) and name not in stated and all(space.get(name) == parameter for space in others)
    }
    return {"recipe": common, **new} if common else new


def _without_prefix(when: Mapping[str, Any] | None) -> dict[str, Any] | None:
    return None if when is None else {name.removeprefix(RECIPE): value for name, value in when.items()}


def _set_trials(raw: dict[str, Any], n: int) -> None:
    budget = raw["budget"]
    _check_grows(n, _common_trials(raw, n, at="trials"), what="trials of each optimizer", at="trials")
    budget["trials_per_optimizer"] = n
    for one in raw["optimizers"]:
        if one["n_trials"] is not None and one["n_trials"] <= n:
            one["n_trials"] = None


def _set_trials_of(raw: dict[str, Any], label: str, n: int) -> None:
    found = {one["label"]: one for one in raw["optimizers"]}
    if label not in found:
        message = f"is not a label of this study; {nearest_hint(label, tuple(found))}"
        raise field_error("unknown_label", message, at=("trials_of", label), value=n)
    common = _common_trials(raw, n, at=("trials_of", label))
    _check_grows(n, found[label]["n_trials"] or common, what=f"trials of {label}", at=("trials_of", label))
    found[label]["n_trials"] = None if n == common else n


def _common_trials(raw: Mapping[str, Any], n: int, *, at: str | tuple[str, ...]) -> int:
    found: int | None = raw["budget"]["trials_per_optimizer"]
    if found is None:
        rule = "does not fit a budget of epochs or GPU hours, which pays for as many trials as it can; raise that limit"
        raise field_error("trials", rule, at=at, value=n)
    return found


def _set_seeds(raw: dict[str, Any], definition: StudyDefinition, n: int) -> None:
    confirm = definition.confirm
    if not confirm.top_k:
        raise field_error(
            "seeds", "cannot be added: the study confirms nothing (confirm.top_k = 0)", at="seeds", value=n
        )
    if confirm.until is not None:
        _check_grows(n, confirm.max_seeds, what="confirm seeds of an optimizer at most", at="seeds")
        raw["confirm"]["max_seeds"] = n
    else:
        _check_grows(n, len(confirm.seeds), what="confirm seeds of each optimizer", at="seeds")
        raw["confirm"]["seeds"] = confirm.with_further_seeds(n, training_seeds=definition.training_seeds)


def _check_grows(n: int, present: int, *, what: str, at: str | tuple[str, ...]) -> None:
    if n < present:
        rule = f"must be at least {present}, the present number of {what}: a study can only be extended"
        raise field_error("smaller", rule, at=at, value=n)


def changes_in_words(old: StudyDefinition, new: StudyDefinition) -> list[str]:
    """What differs between a study's definition and the extended one: "40 trials of each optimizer, before 20"."""
    found = []
    n_before, n_after = (one.budget.trials_per_optimizer for one in (old, new))
    if n_before != n_after:
        found.append(f"{n_after} trials of each optimizer, before {n_before}")
    before = {one.label: one for one in old.optimizers}
    for one in new.optimizers:
        past = before.get(one.label)
        if past is None or one.n_trials is past.n_trials is None:
            continue
        if (n := one.n_trials or n_after) != (n_past := past.n_trials or n_before):
            found.append(f"{n} trials of {one.label}, before {n_past}")
    if old.confirm.seeds != new.confirm.seeds:
        found.append(f"{len(new.confirm.seeds)} confirm seeds, before {len(old.confirm.seeds)}")
    if old.confirm.max_seeds != new.confirm.max_seeds:
        found.append(f"at most {new.confirm.max_seeds} confirm seeds, before {old.confirm.max_seeds}")
    for name in LIMITS:
        limits = [getattr(one.budget, name) for one in (new, old)]
        if limits[0] != limits[1]:
            told = ["none" if limit is None else f"{limit:.12g}" for limit in limits]
            found.append(f"budget.{name} {told[0]}, before {told[1]}")
    return [*found, *(f"{one.label} added" for one in new.optimizers if one.label not in before)]


def unequal_budgets(n_trials: Mapping[str, int | None]) -> str | None:
    """That optimizers have budgets of their own, in words; None where all have as many trials.

    Args:
        n_trials: that the definition gives each optimizer, by label; None: as many as its other limits pay for.
    """
    labels: dict[int | None, list[str]] = defaultdict(list)
    for label, n in n_trials.items():
        labels[n].append(label)
    if len(labels) < 2:
        return None
    told = [
        f"{'as many trials as they pay for' if n is None else f'{n} trials'}: {', '.join(of)}"
        for n, of in sorted(labels.items(), key=lambda one: -(one[0] or math.inf))
    ]
    return (
        f"The budgets are unequal ({'; '.join(told)}): with more trials an optimizer finds better settings by search "
        "alone."
    )


def alpha_after(confidence: float, n_seen: int) -> float:
    """The alpha of a study's verdicts after extensions, each of which has half of the alpha before it.

    Whatever was seen before and whatever was added, the verdicts before and after are then all right with a probability
    of at least 1 − 2 alpha (a union bound).

    Args:
        confidence: of the definition, which holds until the first extension.
        n_seen: extensions before which verdicts could be seen.
    """
    return math.ldexp(1 - confidence, -n_seen)


def looks_in_words(confidence: float, n_seen: int) -> str | None:
    """What the confidence of an extended study's verdicts is; None where none could be seen before it was extended."""
    if not n_seen:
        return None
    times = {1: "once", 2: "twice"}.get(n_seen, f"{n_seen} times")
    alpha = alpha_after(confidence, n_seen)
    these, in_all = 1 - alpha, 1 - sum(alpha_after(confidence, i) for i in range(n_seen + 1))
    if alpha < 1 / N_DRAWS:
        return (
            f"The study was extended {times} after its verdicts could be seen. The error rate that is left for these, "
            f"{100 * alpha:.2g} %, is smaller than the simulation of verdicts can show, 1 of {N_DRAWS:,}. For further "
            "verdicts, clone the study."
        )
    return (
        f"The study was extended {times} after its verdicts could be seen. These have half of the error rate of those "
        f"before: they are all right with a probability of {100 * these:.4g} %, together with the earlier ones of "
        f"{100 * in_all:.4g} %."
    )
