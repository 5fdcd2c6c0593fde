"""Commands on studies: list, show, pause, resume, cancel, delete."""

from __future__ import annotations

from typing import Annotated

import typer

from service.cli.names import StudyStateName
from service.cli.options import (
    Output,
    OutputOption,
    StudyArgument,
    Url,
    optimizer_names,
    parse_trial,
    task_names,
)
from service.cli.writing import emit, emit_plain
from service.client import Client
from service.models import StudyView


def list_studies(
    name: Annotated[str | None, typer.Option(help="Only those whose name contains this.")] = None,
    state: Annotated[StudyStateName | None, typer.Option(help="Only in this state.", case_sensitive=False)] = None,
    task: Annotated[str | None, typer.Option(help="Only of this task.", autocompletion=task_names)] = None,
    optimizer: Annotated[
        str | None, typer.Option(help="Only those that search this optimizer.", autocompletion=optimizer_names)
    ] = None,
    limit: Annotated[int, typer.Option(help="At most so many.", min=1)] = 20,
    url: Url = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """List studies, newest first."""
    from service import tables

    with Client(url) as client:
        found = list(client.studies(name=name, state=state, task=task, optimizer=optimizer, limit=limit + 1))
    emit(found[:limit], output, table=tables.study_list)
    if len(found) > limit:
        typer.echo(f"There are more: --limit {10 * limit}", err=True)


def show(study: StudyArgument, url: Url = None, output: OutputOption = Output.TABLE) -> None:
    """Show a study: how far each optimizer's search is. JSON and YAML have its definition too."""
    from service import tables

    with Client(url) as client:
        view = client.study(study)
    if output is Output.TABLE:
        reason = f": {view.reason}" if view.reason else ""
        on = f"{view.task}, {view.model}" if view.model else view.task
        typer.echo(f"study {view.name} ({view.id}) on {on} is {view.state}{reason}")
        for warning in view.warnings:
            typer.echo(f"warning: {warning}", err=True)
    emit(view, output, table=tables.searches)


def pause(study: StudyArgument, url: Url = None, output: OutputOption = Output.TABLE) -> None:
    """Pause a study: running trials are checkpointed and stopped."""
    with Client(url) as client:
        _show_state(client.pause(study), output)


def resume(study: StudyArgument, url: Url = None, output: OutputOption = Output.TABLE) -> None:
    """Go on with a paused study."""
    with Client(url) as client:
        _show_state(client.resume(study), output)


def cancel(
    study: StudyArgument,
    trial: Annotated[
        str | None, typer.Option(help="Only this trial, as admetar/3; the study goes on without it.")
    ] = None,
    url: Url = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Cancel a study, or one trial of it: what runs is stopped, what has finished stays."""
    from service import tables

    with Client(url) as client:
        if trial is None:
            _show_state(client.cancel(study), output)
            return
        label, number = parse_trial(trial)
        view = client.cancel_trial(study, label, number)
    emit(view, output, table=lambda cancelled: tables.trial_list([cancelled], metric="value"))


def delete(
    study: StudyArgument,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    url: Url = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Delete a study that has ended, with all its results and checkpoints."""
    with Client(url) as client:
        view = client.study(study)
        if not yes:
            n_trials = sum(search.n_complete + search.n_pruned + search.n_failed for search in view.searches)
            question = f"Delete study {view.name} ({view.state}) with {n_trials} finished trials?"
            typer.confirm(question, abort=True, err=output is not Output.TABLE)
        client.delete(view.id)
    if output is Output.TABLE:
        typer.echo(f"study {view.name} ({view.id}) is deleted")
    else:
        emit_plain({"id": view.id, "name": view.name, "deleted": True}, output)


def _show_state(study: StudyView, output: Output) -> None:
    from service import tables

    if output is Output.TABLE:
        typer.echo(f"study {study.name} is {study.state}")
    else:
        emit(study, output, table=tables.searches)
