"""Commands on what is known: best, tasks, optimizers, cluster."""

from __future__ import annotations

from typing import Annotated

import typer

from service.cli.options import Output, OutputOption, Url, emit
from service.client import AdmetaClient


def best(
    task: Annotated[str, typer.Option(help="A task's name.")],
    optimizer: Annotated[str, typer.Option(help="An optimizer's name.")],
    model: Annotated[str | None, typer.Option(help="Only studies of this model.")] = None,
    metric: Annotated[str | None, typer.Option(help="Default: the task's own.")] = None,
    url: Url = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show the best settings known for a task and an optimizer, over all studies."""
    from service import tables

    with AdmetaClient(url) as client:
        view = client.best(task=task, optimizer=optimizer, model=model, metric=metric)
    emit(view, output, table=lambda found: tables.best([found]))


def tasks(url: Url = None, output: OutputOption = Output.TABLE) -> None:
    """List the tasks that a study can name."""
    from service import tables

    with AdmetaClient(url) as client:
        emit(client.tasks(), output, table=tables.task_list)


def optimizers(
    name: Annotated[str | None, typer.Argument(help="Show this one's parameters.", metavar="[NAME]")] = None,
    url: Url = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """List the optimizers that a study can name, or one's parameters."""
    from service import tables

    with AdmetaClient(url) as client:
        if name is None:
            emit(client.optimizers(), output, table=tables.optimizer_list)
            return
        emit(client.optimizer(name), output, table=tables.parameters)


def cluster(url: Url = None, output: OutputOption = Output.TABLE) -> None:
    """Show the machines with what is free, the runs on them, and the studies that wait."""
    from service import tables

    with AdmetaClient(url) as client:
        view = client.cluster()
    if output is Output.TABLE:
        typer.echo(f"Ray is {view.ray}; {len(view.runs)} runs train, {len(view.queue)} studies wait")
    emit(view, output, table=tables.cluster)
