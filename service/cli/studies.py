"""Commands on studies: submit, status, watch, trials, compare, cancel, pause, resume, clone, delete."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from service.cli.options import Output, OutputOption, StudyArgument, Url, console, emit
from service.client import AdmetaClient
from service.models import StudyView

_State = Annotated[str | None, typer.Option(help="Only in this state, as RUNNING or COMPLETE.")]
_Limit = Annotated[int, typer.Option(help="At most so many.", min=1)]


def submit(
    file: Annotated[Path, typer.Argument(help="The study, as YAML or JSON.", metavar="FILE")],
    name: Annotated[str | None, typer.Option(help="Submit it under this name.")] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--set", help="Change a value: optimizers.0.space.lr.low=1e-4. May be repeated.", metavar="PATH=VALUE"
        ),
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Follow it to its end, then compare.")] = False,
    url: Url = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Submit a study. The same file again finds the study there is."""
    from service import studyfile, tables

    definition = studyfile.with_changes(studyfile.load(file), changes or [])
    if name is not None:
        definition = {**definition, "name": name}
    with AdmetaClient(url) as client:
        submission = client.submit(definition)
        study = submission.study
        if output is Output.TABLE:
            verb = "submitted" if submission.created else "exists already"
            typer.echo(f"study {study.name} ({study.id}) {verb}: {study.state}")
            for warning in study.warnings:
                typer.echo(f"warning: {warning}", err=True)
        if watch:
            study = _follow(client, study.name)
        if output is not Output.TABLE:
            emit(study, output, table=tables.searches)
        elif watch:
            console().print(tables.comparison(client.comparison(study.name)))
        else:
            typer.echo(f"Follow it with: admeta watch {study.name}")
    if watch:
        _exit_unless_completed(study)


def status(
    study: Annotated[str | None, typer.Argument(help="A study's name or id; default: all.", metavar="[STUDY]")] = None,
    state: _State = None,
    task: Annotated[str | None, typer.Option(help="Only studies of this task.")] = None,
    optimizer: Annotated[str | None, typer.Option(help="Only studies that search this optimizer.")] = None,
    limit: _Limit = 20,
    url: Url = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show a study, or list the newest ones."""
    from service import tables

    with AdmetaClient(url) as client:
        if study is None:
            found = client.studies(state=state, task=task, optimizer=optimizer, limit=limit)
            emit(found, output, table=tables.study_list)
            return
        view = client.study(study)
    if output is Output.TABLE:
        reason = f": {view.reason}" if view.reason else ""
        typer.echo(f"study {view.name} ({view.id}) on {view.task} is {view.state}{reason}")
    emit(view, output, table=tables.searches)


def watch(study: StudyArgument, url: Url = None) -> None:
    """Follow a study to its end. Ctrl-C leaves it running."""
    from service import tables

    with AdmetaClient(url) as client:
        view = _follow(client, study)
        console().print(tables.comparison(client.comparison(study)))
    _exit_unless_completed(view)


def trials(
    study: StudyArgument,
    label: Annotated[str | None, typer.Option("--optimizer", help="Only this optimizer's (its label).")] = None,
    state: _State = None,
    order: Annotated[str, typer.Option(help="number, or best: best validation value first.")] = "number",
    limit: _Limit = 100,
    url: Url = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """List a study's trials."""
    from service import tables

    with AdmetaClient(url) as client:
        found = list(client.trials(study, label=label, state=state, order=order, limit=limit))
        metric = client.study(study).metric if output is Output.TABLE else ""
    emit(found, output, table=lambda views: tables.trial_list(views, metric=metric))


def compare(study: StudyArgument, url: Url = None, output: OutputOption = Output.TABLE) -> None:
    """Compare a study's optimizers: validation selects, test is only reported."""
    from service import tables

    with AdmetaClient(url) as client:
        view = client.comparison(study)
    if output is Output.TABLE and not view.complete:
        typer.echo("The study has not ended: this is how it stands now.", err=True)
    emit(view, output, table=tables.comparison)


def cancel(study: StudyArgument, url: Url = None, output: OutputOption = Output.TABLE) -> None:
    """Cancel a study: running trials are stopped, finished ones stay."""
    with AdmetaClient(url) as client:
        _show_state(client.cancel(study), output)


def pause(study: StudyArgument, url: Url = None, output: OutputOption = Output.TABLE) -> None:
    """Pause a study: running trials are checkpointed and stopped."""
    with AdmetaClient(url) as client:
        _show_state(client.pause(study), output)


def resume(study: StudyArgument, url: Url = None, output: OutputOption = Output.TABLE) -> None:
    """Go on with a paused study."""
    with AdmetaClient(url) as client:
        _show_state(client.resume(study), output)


def clone(
    study: StudyArgument,
    name: Annotated[str, typer.Argument(help="The new study's name.", metavar="NAME")],
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", help="Change a value, as for submit. May be repeated.", metavar="PATH=VALUE"),
    ] = None,
    url: Url = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Submit a study's definition under another name, with changes."""
    from service import studyfile, tables

    with AdmetaClient(url) as client:
        old = client.study(study).definition or {}
        new = studyfile.with_changes(old, changes or [])
        changed = {key: value for key, value in new.items() if key not in old or value != old[key]}
        submission = client.clone(study, name, changes=changed)
    view = submission.study
    if output is not Output.TABLE:
        emit(view, output, table=tables.searches)
        return
    verb = "submitted" if submission.created else "exists already"
    typer.echo(f"study {view.name} ({view.id}) {verb}: {view.state}")
    for warning in view.warnings:
        typer.echo(f"warning: {warning}", err=True)


def delete(
    study: StudyArgument,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    url: Url = None,
) -> None:
    """Delete a study that has ended, with all its results and checkpoints."""
    with AdmetaClient(url) as client:
        view = client.study(study)
        if not yes:
            n_trials = sum(search.n_complete + search.n_pruned + search.n_failed for search in view.searches)
            typer.confirm(f"Delete study {view.name} ({view.state}) with {n_trials} finished trials?", abort=True)
        client.delete(view.id)
    typer.echo(f"study {view.name} ({view.id}) is deleted")


def _show_state(study: StudyView, output: Output) -> None:
    from service import tables

    if output is Output.TABLE:
        typer.echo(f"study {study.name} is {study.state}")
        return
    emit(study, output, table=tables.searches)


def _follow(client: AdmetaClient, study: str) -> StudyView:
    from service.watch import follow

    try:
        return follow(client, study, console=console())
    except KeyboardInterrupt:
        typer.echo(f"\nThe study goes on. Follow it: admeta watch {study}. End it: admeta cancel {study}.", err=True)
        raise typer.Exit(130) from None


def _exit_unless_completed(study: StudyView) -> None:
    if study.state != "COMPLETED":
        reason = f": {study.reason}" if study.reason else ""
        typer.echo(f"study {study.name} is {study.state}{reason}", err=True)
        raise typer.Exit(1)
