"""Tables of what a service offers: tasks, optimizers, the paper's tables and studies, machines, access tokens."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from admeta.client.formatting import NOTHING, moment, searched_in, setting, settings
from admeta.client.terminal import FittedTable
from admeta.client.text import head_text

if TYPE_CHECKING:
    from admeta.client.models import (
        ClusterView,
        OptimizerView,
        PaperCellView,
        PaperStudyView,
        PaperTableCellsView,
        PaperTableView,
        TaskView,
        TokenView,
    )

_MOST_MODELS = 4


def task_list(tasks: Iterable[TaskView]) -> FittedTable:
    """One line for each task."""
    table = FittedTable("task", "models", "metrics", "what it is", wrapped=["models", "metrics", "what it is"])
    for task in tasks:
        metrics = ", ".join(f"{name} ({direction})" for name, direction in task.metrics.items())
        models = ", ".join(task.models[:_MOST_MODELS])
        more = f" and {len(task.models) - _MOST_MODELS} more" if len(task.models) > _MOST_MODELS else ""
        table.add_row(task.name, models + more, metrics, task.description)
    return table


def task_settings(task: TaskView) -> FittedTable:
    """One line for each setting: the fields of a study's `task`."""
    table = FittedTable("setting", "default", "what it is", wrapped=["default", "what it is"])
    models = f"one of {', '.join(task.models)}"
    for name, field in task.config_schema.get("properties", {}).items():
        what = field.get("description") or (models if name == "model" else "")
        table.add_row(name, setting(field.get("default")), what)
    return table


def optimizer_list(optimizers: Iterable[OptimizerView]) -> FittedTable:
    """One line for each optimizer."""
    texts = ("searched by default", "fixed by default", "what it is")
    table = FittedTable("optimizer", *texts, wrapped=texts)
    for optimizer in optimizers:
        space = ", ".join(searched_in(name, parameter) for name, parameter in optimizer.default_space.items())
        table.add_row(optimizer.name, space, settings(optimizer.fixed), optimizer.description)
    return table


def parameters(optimizer: OptimizerView) -> FittedTable:
    """One line for each parameter of one optimizer."""
    table = FittedTable("parameter", "default", "default space", "rule", "what it is", wrapped=["rule", "what it is"])
    for parameter in optimizer.parameters:
        space = optimizer.default_space.get(parameter.name)
        searched = searched_in("", space) if space else ""
        table.add_row(parameter.name, setting(parameter.default), searched, parameter.rule, parameter.doc)
    for name, doc in optimizer.derived.items():
        table.add_row(name, "", "", "for `when` only", doc)
    return table


def paper_table_list(views: Iterable[PaperTableView]) -> FittedTable:
    """A line for each table of the paper."""
    table = FittedTable("table", "no.", "numbers", "ours", "caption", "studies", wrapped=["caption", "studies"])
    for view in views:
        counts = (str(view.number), str(view.n_cells), str(view.n_ours))
        table.add_row(view.name, *counts, view.caption, ", ".join(view.studies))
    return table


def paper_cells(view: PaperTableCellsView) -> FittedTable:
    """A table of the paper in its rows and columns; a cell is the paper's number / ours."""
    (_, *heads), rows = paper_rows(view)
    return FittedTable("paper / ours", *heads, rows=rows, wrapped=heads)


def paper_rows(view: PaperTableCellsView) -> tuple[list[str], list[list[str]]]:
    """Heading and rows of a table of the paper; in percent where the paper's is, ours with its n."""
    rows = [[head_text(head), *map(_cell, cells)] for head, cells in zip(view.rows, view.cells, strict=True)]
    return ["", *map(head_text, view.columns)], rows


def _cell(cell: PaperCellView) -> str:
    paper = NOTHING if cell.paper is None else cell.paper.text
    return f"{paper} / {NOTHING if cell.ours is None else cell.ours.text}"


def paper_study_list(studies: Iterable[PaperStudyView]) -> FittedTable:
    """One line for each study."""
    table = FittedTable("study", "table", "task", "model", "runs", "optimizers")
    for study in studies:
        optimizers = ", ".join(study.optimizers)
        table.add_row(study.name, study.table, study.task, study.model, str(study.n_runs), optimizers)
    return table


def paper_study(view: PaperStudyView) -> FittedTable:
    """One study of the paper, one line for each property."""
    table = FittedTable("", view.name)
    facts = {
        "submitted as": view.study,
        "table": view.table,
        "task": f"{view.task}, {view.model}",
        "optimizers": ", ".join(view.optimizers),
        "runs": str(view.n_runs),
        "after": view.after or "",
        "notes": view.notes,
    }
    for name, text in facts.items():
        if text:
            table.add_row(name, text)
    return table


def cluster(view: ClusterView) -> FittedTable:
    """One line for each machine: its CPUs and GPUs, how many of them are free, its runs."""
    table = FittedTable("host", "address", "alive", "CPUs free", "GPUs free", "runs")
    for node in view.nodes:
        runs = [f"{run.study}/{run.label}/{run.trial}" for run in view.runs if run.node == node.address]
        cpus, gpus = f"{node.cpus_free:g}/{node.cpus:g}", f"{node.gpus_free:g}/{node.gpus:g}"
        table.add_row(node.host, node.address, "yes" if node.alive else "no", cpus, gpus, ", ".join(runs))
    return table


def token_list(tokens: Iterable[TokenView]) -> FittedTable:
    """One line for each token."""
    table = FittedTable("id", "name", "scope", "begins with", "valid", "created", "expires", "last used")
    for token in tokens:
        works = "yes" if token.active else "revoked" if token.revoked_at else "expired"
        times = (token.created_at, token.expires_at, token.last_used_at)
        shown = ["" if time is None else moment(time) for time in times]
        table.add_row(token.id, token.name, token.scope, token.prefix, works, *shown)
    return table
