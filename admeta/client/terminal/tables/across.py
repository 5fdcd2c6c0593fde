"""Tables over all studies: the best settings, what is recommended, and optimizers compared across tasks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from admeta.client.formatting import NOTHING, chance, number, reached, settings, spread
from admeta.client.terminal import FittedTable

if TYPE_CHECKING:
    from admeta.client.models import (
        BestView,
        ProfilesView,
        ProfileTaskView,
        RecipeView,
        RecommendationView,
    )

_MAX_RECIPES = 5
"""Other recipes that are listed beside the best settings."""


def best(views: Iterable[BestView]) -> FittedTable:
    """One line for each optimizer: its best settings, and the recipe that they are best in."""
    columns = ("optimizer", "validation", "test", "evidence", "recipe", "from", "settings")
    table = FittedTable(*columns, wrapped=["evidence", "recipe", "from", "settings"])
    for view in views:
        begun = f", begun from {view.init_from}" if view.init_from else ""
        table.add_row(
            view.optimizer,
            reached(view),
            spread(view.test),
            view.evidence,
            recipe(view),
            f"{view.study} {view.label}/{view.trial}{begun}",
            settings(view.chosen),
        )
    return table


def recipe(of: BestView | RecipeView) -> str:
    """The beginning of a recipe's hash, which `--recipe` takes, with its model and epochs."""
    parts = [of.recipe and of.recipe[:8], of.model, None if of.epochs is None else f"{of.epochs} epochs"]
    return " ".join(filter(None, parts))


def on_recipes(views: Sequence[BestView]) -> list[str]:
    """What to know about the recipes of the best settings: whether their values compare, and which others there are."""
    used = {view.recipe for view in views}
    others = {other.recipe: other for view in views for other in view.other_recipes if other.recipe not in used}
    notes = []
    if len(used) > 1:
        notes.append(
            f"These results are of {len(used)} recipes (task with its settings, data and objective): only values of "
            "one recipe can be compared. --recipe HASH shows one."
        )
    if others:
        listed = [f"{recipe(other)} (study {other.study})" for other in others.values()]
        more = f"; and {len(listed) - _MAX_RECIPES} more" if len(listed) > _MAX_RECIPES else ""
        notes.append(
            "There are also results of other recipes, which cannot be compared with these: "
            f"{'; '.join(listed[:_MAX_RECIPES])}{more}. --recipe HASH or --model MODEL shows them."
        )
    return notes


def candidates(view: RecommendationView) -> FittedTable:
    """One line for each optimizer that a recommendation was chosen from, the recommended one first."""
    columns = ("optimizer", "validation", "probability", "difference", "evidence", "from", "settings")
    table = FittedTable(*columns, wrapped=["evidence", "from", "settings"])
    for one in view.candidates:
        interval = "" if one.low is None else f" ({number(one.low)} to {number(one.high)})"
        table.add_row(
            one.optimizer,
            NOTHING if one.validation is None else spread(one.validation),
            NOTHING if one.probability is None else chance(one.probability),
            NOTHING if one.difference is None else f"{one.difference:+.4g}{interval}",
            one.evidence,
            one.study or NOTHING,
            settings(one.settings),
        )
    return table


def profile_scores(view: ProfilesView) -> FittedTable:
    """One line for each optimizer of a comparison across tasks; without the scores that nobody has."""
    scores = {
        "score by time": [one.by_time for one in view.optimizers],
        "score by value": [one.by_value for one in view.optimizers],
    }
    shown = {name: of for name, of in scores.items() if any(of)}
    table = FittedTable("optimizer", *shown, "mean rank", "group", wrapped=[])
    group = group_numbers(view)
    for i, one in enumerate(view.optimizers):
        areas = [NOTHING if (profile := of[i]) is None else f"{profile.area:.4f}" for of in shown.values()]
        mean = NOTHING if one.mean_rank is None else f"{one.mean_rank:.2f}"
        table.add_row(one.name, *areas, mean, group.get(one.name, NOTHING))
    return table


def group_numbers(view: ProfilesView) -> dict[str, str]:
    """By optimizer, the numbers of the groups that it is in; two without a common one are shown to be different."""
    numbers: dict[str, list[str]] = {}
    for n, names in enumerate(view.ranks.groups, start=1):
        for name in names:
            numbers.setdefault(name, []).append(str(n))
    return {name: ", ".join(of) for name, of in numbers.items()}


def profile_tasks(view: ProfilesView) -> FittedTable:
    """One line for each task of a comparison across tasks."""
    table = FittedTable("task", "metric", "target", "studies", "notes", wrapped=("task", "studies", "notes"))
    for task in view.tasks:
        by_time = task.without_time and f"not by time: {task.without_time}"
        by_value = task.without_value and f"not by value: {task.without_value}"
        notes = "; ".join(note for note in (by_time, by_value, task.note) if note)
        metric = task.metric or task.direction
        table.add_row(task_title(task), metric, number(task.target), ", ".join(task.studies), notes)
    return table


def task_title(task: ProfileTaskView) -> str:
    """Task, model, epochs, data and recipe, as far as they are known."""
    parts = [
        task.model,
        None if task.epochs is None else f"{task.epochs} epochs",
        task.data and f"data {task.data}",
        task.init_from and f"from {task.init_from}",
        task.recipe and f"recipe {task.recipe[:8]}",
    ]
    return ", ".join([task.task, *(part for part in parts if part)])


def left_out(view: ProfilesView) -> FittedTable:
    """One line for each reason why a comparison across tasks leaves something out."""
    table = FittedTable("left out", "", "why", wrapped=["", "why"])
    for (kind, reason), names in left_out_by_reason(view).items():
        table.add_row(kind, "; ".join(names), reason)
    return table


def left_out_by_reason(view: ProfilesView) -> dict[tuple[str, str], list[str]]:
    """By kind and reason, the names of what a comparison across tasks leaves out."""
    names: dict[tuple[str, str], list[str]] = {}
    for one in view.left_out:
        names.setdefault((one.kind, one.reason), []).append(one.name)
    return names
