"""Commands on what there is: tasks, optimizers, cluster."""

from __future__ import annotations

from typing import Annotated

import typer

from service.cli.options import Output, OutputOption, Url, optimizer_names, task_names
from service.cli.writing import emit
from service.client import Client


def tasks(
    name: Annotated[
        str | None, typer.Argument(help="Show this one's settings.", metavar="[NAME]", autocompletion=task_names)
    ] = None,
    url: Url = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """List the tasks that a study can name, or what one's `task` may say."""
    from service import tables

    with Client(url) as client:
        if name is None:
            emit(client.tasks(), output, table=tables.task_list)
        else:
            emit(client.task(name), output, table=tables.task_settings)


def optimizers(
    name: Annotated[
        str | None,
        typer.Argument(help="Show this one's parameters.", metavar="[NAME]", autocompletion=optimizer_names),
    ] = None,
    url: Url = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """List the optimizers that a study can name, or one's parameters."""
    from service import tables

    with Client(url) as client:
        if name is None:
            emit(client.optimizers(), output, table=tables.optimizer_list)
        else:
            emit(client.optimizer(name), output, table=tables.parameters)


def cluster(url: Url = None, output: OutputOption = Output.TABLE) -> None:
    """Show the machines with what is free, the runs on them, and the studies that wait."""
    from service import tables

    with Client(url) as client:
        view = client.cluster()
    if output is Output.TABLE:
        waiting = "".join(f"\n  {n}. {study.name}" for n, study in enumerate(view.queue, start=1))
        typer.echo(f"Ray is {view.ray}; {len(view.runs)} runs train, {len(view.queue)} studies wait{waiting}")
    emit(view, output, table=tables.cluster)
