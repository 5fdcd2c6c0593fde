"""Commands that bring studies to the service and follow them: submit, clone, watch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from service.cli.exits import EXPIRED, FAILED, INTERRUPTED
from service.cli.options import Changes, Output, OutputOption, StudyArgument, Url
from service.cli.writing import emit, show_comparison
from service.client import Client, Submission
from service.models import StudyView

Wait = Annotated[bool, typer.Option("--wait", "-w", help="Follow it to its end, then compare.")]
Timeout = Annotated[
    float | None,
    typer.Option(help="Seconds to follow at most; then exit code 4. The study goes on.", min=0, metavar="SECONDS"),
]
_WATCH_PATIENCE_S = 600.0
_POLL_S = 0.5


def submit(
    file: Annotated[Path, typer.Argument(help="The study, as YAML or JSON; - reads stdin.", metavar="FILE")],
    name: Annotated[str | None, typer.Option(help="Submit it under this name.")] = None,
    changes: Changes = None,
    space: Annotated[
        str | None,
        typer.Option(
            help="Search space of optimizers that name none: default, finetune, paper; paper-best: all begin with the "
            "paper's best settings.",
            metavar="NAME",
        ),
    ] = None,
    wait: Wait = False,
    timeout: Timeout = None,
    url: Url = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Submit a study. The same file again finds the study there is."""
    from service import studyfile

    definition = studyfile.with_changes(studyfile.load(file), changes or [])
    if name is not None:
        definition = {**definition, "name": name}
    with Client(url) as client:
        report(client, client.submit(definition, space=space), wait=wait, timeout_s=timeout, output=output)


def clone(
    study: StudyArgument,
    name: Annotated[str, typer.Argument(help="The new study's name.", metavar="NAME")],
    changes: Changes = None,
    wait: Wait = False,
    timeout: Timeout = None,
    url: Url = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Submit a study's definition under another name, with changes."""
    from service import studyfile

    with Client(url) as client:
        old = client.study(study).definition or {}
        new = studyfile.with_changes(old, changes or [])
        changed = {key: value for key, value in new.items() if key not in old or value != old[key]}
        report(client, client.clone(study, name, changes=changed), wait=wait, timeout_s=timeout, output=output)


def watch(study: StudyArgument, timeout: Timeout = None, url: Url = None, output: OutputOption = Output.TABLE) -> None:
    """Follow a study to its end, then compare. Ctrl-C leaves it running; a service that goes away is waited for."""
    with Client(url) as client:
        _finish(client, _follow(client, study, timeout_s=timeout), output)


def report(client: Client, submission: Submission, *, wait: bool, timeout_s: float | None, output: Output) -> None:
    """Say what became of a submission, and follow the study where that is asked for."""
    study = submission.study
    verb = "submitted" if submission.created else "exists already"
    typer.echo(f"study {study.name} ({study.id}) {verb}: {study.state}", err=output is not Output.TABLE or wait)
    for warning in study.warnings:
        typer.echo(f"warning: {warning}", err=True)
    if wait:
        _finish(client, _follow(client, study.id, timeout_s=timeout_s), output)
    elif output is not Output.TABLE:
        emit(study, output, table=str)
    else:
        typer.echo(f"Follow it with: admeta watch {study.name}")


def _follow(client: Client, study: str, *, timeout_s: float | None) -> StudyView:
    try:
        return client.wait(study, progress=True, poll_s=_POLL_S, timeout_s=timeout_s, patience_s=_WATCH_PATIENCE_S)
    except KeyboardInterrupt:
        typer.echo(f"\nThe study goes on. Follow it: admeta watch {study}. End it: admeta cancel {study}.", err=True)
        raise typer.Exit(INTERRUPTED) from None
    except TimeoutError as error:
        typer.echo(f"error: {error}", err=True)
        typer.echo(f"hint: The study goes on. Follow it: admeta watch {study}.", err=True)
        raise typer.Exit(EXPIRED) from None


def _finish(client: Client, study: StudyView, output: Output) -> None:
    """Write how an ended study came out: its comparison, or the study itself in JSON and YAML."""
    if output is Output.TABLE:
        show_comparison(client.comparison(study.id))
    else:
        emit(study, output, table=str)
    if study.state != "COMPLETED":
        reason = f": {study.reason}" if study.reason else ""
        typer.echo(f"study {study.name} is {study.state}{reason}", err=True)
        raise typer.Exit(FAILED)
