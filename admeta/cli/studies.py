"""Commands on studies: submit, list, show, watch, pause, resume, cancel, clone, extend, delete."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from admeta.cli.options import (
    ALL_FAILED,
    EXPIRED,
    FAILED,
    INTERRUPTED,
    Changes,
    Output,
    OutputOption,
    StudyArgument,
    Url,
    connect,
    optimizer_names,
    parse_trial,
    task_names,
    trial_names,
)
from admeta.cli.output import emit, emit_list, emit_plain, say, show_comparison
from admeta.client import formatting
from admeta.client.states import StudyState
from admeta.client.terminal.tables import studies

if TYPE_CHECKING:
    from admeta.client import Client, Submission
    from admeta.client.models import StudyView


def list_studies(
    name: Annotated[str | None, typer.Option(help="Only those whose name contains this.")] = None,
    state: Annotated[StudyState | None, typer.Option(help="Only in this state.", case_sensitive=False)] = None,
    task: Annotated[str | None, typer.Option(help="Only of this task.", autocompletion=task_names)] = None,
    optimizer: Annotated[
        str | None, typer.Option(help="Only those that search this optimizer.", autocompletion=optimizer_names)
    ] = None,
    tag: Annotated[str | None, typer.Option(help="Only those with this tag.")] = None,
    limit: Annotated[int, typer.Option(help="Show at most this many.", min=1)] = 20,
    url: Url = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """List studies, newest first."""
    with connect(url) as client:
        found = client.studies(name=name, state=state, task=task, optimizer=optimizer, tag=tag, limit=limit)
        emit_list(found, output, table=studies.study_list)
    if found.next_cursor is not None:
        say(f"There are more studies: --limit {10 * limit}", err=True)


def show(study: StudyArgument, url: Url = None, output: OutputOption = Output.TABLE) -> None:
    """Show a study and the progress of each optimizer's search. JSON and YAML contain its definition, too."""
    with connect(url) as client:
        view = client.study(study)
    if output is Output.TABLE:
        reason = f": {view.reason}" if view.reason else ""
        on = f"{view.task}, {view.model}" if view.model else view.task
        say(f"study {view.name} ({view.id}) on {on} is {view.state}{reason}")
        for warning in view.warnings:
            say(f"warning: {warning}", err=True)
        for one in view.extensions:
            by = f" by {one.by}" if one.by else ""
            say(f"extended {formatting.moment(one.at)}{by}: {'; '.join(one.changes) or 'it went on'}")
    emit(view, output, table=studies.searches)


def pause(study: StudyArgument, url: Url = None, output: OutputOption = Output.TABLE) -> None:
    """Pause a study: running trials are checkpointed and stopped."""
    with connect(url) as client:
        _show_state(client.pause(study), output)


def resume(study: StudyArgument, url: Url = None, output: OutputOption = Output.TABLE) -> None:
    """Resume a paused study."""
    with connect(url) as client:
        _show_state(client.resume(study), output)


def annotate(
    study: StudyArgument,
    notes: Annotated[str | None, typer.Option(help="Replace the notes; '' removes them.")] = None,
    tag: Annotated[list[str] | None, typer.Option(help="Replace the tags by this one; repeat for more.")] = None,
    untag: Annotated[bool, typer.Option("--no-tags", help="Remove all tags.")] = False,
    url: Url = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Write notes and tags on a study; `admeta list --tag TAG` finds it."""
    with connect(url) as client:
        view = client.annotate(study, notes=notes, tags=[] if untag else tag)
    emit(view, output, table=lambda one: f"{one.name}: {', '.join(one.tags) or 'no tags'}; {one.notes or 'no notes'}")


def cancel(
    study: StudyArgument,
    trial: Annotated[
        str | None,
        typer.Option(
            help="Cancel only this trial, for example admetar/3; the study continues without it.",
            autocompletion=trial_names,
        ),
    ] = None,
    url: Url = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Cancel a study, or one trial of it: running trials are stopped, finished ones are kept."""
    with connect(url) as client:
        if trial is None:
            _show_state(client.cancel(study), output)
            return
        label, number = parse_trial(trial)
        view = client.cancel_trial(study, label, number)
    emit(view, output, table=lambda cancelled: studies.trial_list([cancelled], metric="value"))


def delete(
    study: StudyArgument,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    url: Url = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Delete a study that has ended, with all its results and checkpoints."""
    with connect(url) as client:
        view = client.study(study)
        if not yes:
            n_trials = sum(search.n_complete + search.n_pruned + search.n_failed for search in view.searches)
            question = f"Delete study {view.name} ({view.state}) with {n_trials} finished trials?"
            typer.confirm(question, abort=True, err=output is not Output.TABLE)
        client.delete(view.id)
    if output is Output.TABLE:
        say(f"study {view.name} ({view.id}) is deleted")
    else:
        emit_plain({"id": view.id, "name": view.name, "deleted": True}, output)


def _show_state(study: StudyView, output: Output) -> None:
    if output is Output.TABLE:
        say(f"study {study.name} is {study.state}")
    else:
        emit(study, output, table=studies.searches)


Wait = Annotated[bool, typer.Option("--wait", "-w", help="Follow the study until it ends, then show the comparison.")]
Timeout = Annotated[
    float | None,
    typer.Option(
        help="Stop following after this many seconds, with exit code 4. The study continues.", min=0, metavar="SECONDS"
    ),
]
_POLL_S = 0.5


def submit(
    file: Annotated[Path, typer.Argument(help="The study as YAML or JSON; - reads stdin.", metavar="FILE")],
    name: Annotated[str | None, typer.Option(help="Submit it under this name.")] = None,
    changes: Changes = None,
    space: Annotated[
        str | None,
        typer.Option(
            help="Search space of optimizers that name none: default, finetune, paper; paper-best: start with the "
            "paper's best settings.",
            metavar="NAME",
        ),
    ] = None,
    wait: Wait = False,
    timeout: Timeout = None,
    url: Url = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Submit a study. The same study again is found, not created."""
    from admeta.client import studyfile

    definition = studyfile.with_changes(studyfile.load(file), changes or [])
    if name is not None:
        definition = {**definition, "name": name}
    with connect(url) as client:
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
    from admeta.client import studyfile

    with connect(url) as client:
        old = client.study(study).definition or {}
        new = studyfile.with_changes(old, changes or [])
        changed = {key: value for key, value in new.items() if key not in old or value != old[key]}
        report(client, client.clone(study, name, changes=changed), wait=wait, timeout_s=timeout, output=output)


def extend(
    study: StudyArgument,
    trials: Annotated[int | None, typer.Option(help="Trials of each optimizer in all.", min=1)] = None,
    trials_of: Annotated[
        list[str] | None,
        typer.Option(help="Trials of one optimizer in all. May be repeated.", metavar="LABEL=N"),
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(help="Confirm seeds of each in all; until decided: at most.", min=1)
    ] = None,
    optimizer: Annotated[
        list[str] | None,
        typer.Option(
            help="Add this optimizer: a name, or an object as in a study: '{name: adan, space: {…}}'. May be repeated.",
            autocompletion=optimizer_names,
        ),
    ] = None,
    limit: Annotated[
        list[str] | None,
        typer.Option(help="Another limit of the budget, null for none: max_hours=48.", metavar="NAME=VALUE"),
    ] = None,
    wait: Wait = False,
    timeout: Timeout = None,
    url: Url = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Let a study that has ended go on, with more trials, more seeds or further optimizers; nothing is repeated.

    Of a study that was cancelled or failed, what is left is done.
    """
    from admeta.client import studyfile

    added = [studyfile.parse(one, source="--optimizer") if "{" in one else one for one in optimizer or []]
    with connect(url) as client:
        view = client.extend(
            study,
            trials=trials,
            trials_of=dict(map(_label_and_number, trials_of or [])),
            seeds=seeds,
            optimizers=added,
            limits=studyfile.with_changes({}, limit or []),
        )
        told = f"study {view.name} has all that already and is {view.state}"
        if view.state == StudyState.QUEUED and view.extensions:
            told = f"study {view.name} is extended: {'; '.join(view.extensions[-1].changes) or 'it goes on'}"
        say(told, err=output is not Output.TABLE or wait)
        if wait:
            _finish(client, _follow(client, view.id, timeout_s=timeout), output)
        elif output is not Output.TABLE:
            emit(view, output, table=str)


def _label_and_number(text: str) -> tuple[str, int]:
    label, equals, number = text.rpartition("=")
    if not equals or not label or not number.isdecimal():
        raise typer.BadParameter(f"'{text}' must be LABEL=N, for example adan=40", param_hint="--trials-of")
    return label, int(number)


def watch(study: StudyArgument, timeout: Timeout = None, url: Url = None, output: OutputOption = Output.TABLE) -> None:
    """Follow a study until it ends, then show the comparison. After Ctrl-C the study continues."""
    with connect(url) as client:
        _finish(client, _follow(client, study, timeout_s=timeout), output)


def report(client: Client, submission: Submission, *, wait: bool, timeout_s: float | None, output: Output) -> None:
    """Print the outcome of a submission, and follow the study where that is asked for."""
    study = submission.study
    verb = "submitted" if submission.created else "exists already"
    say(f"study {study.name} ({study.id}) {verb}: {study.state}", err=output is not Output.TABLE or wait)
    if study.detectable is not None:
        say(study.detectable.sentence, err=output is not Output.TABLE or wait)
    for warning in study.warnings:
        say(f"warning: {warning}", err=True)
    if wait:
        _finish(client, _follow(client, study.id, timeout_s=timeout_s), output)
    elif output is not Output.TABLE:
        emit(study, output, table=str)
    else:
        say(f"To follow it: admeta watch {study.name}")


def _follow(client: Client, study: str, *, timeout_s: float | None) -> StudyView:
    try:
        return client.wait(study, progress=True, poll_s=_POLL_S, timeout_s=timeout_s)
    except KeyboardInterrupt:
        say(f"\nThe study continues. To follow it: admeta watch {study}. To end it: admeta cancel {study}.", err=True)
        raise typer.Exit(INTERRUPTED) from None
    except TimeoutError as error:
        say(f"error: {error}", err=True)
        say(f"hint: The study continues. To follow it: admeta watch {study}.", err=True)
        raise typer.Exit(EXPIRED) from None


def _finish(client: Client, study: StudyView, output: Output) -> None:
    """Print the result of a study that has ended: its comparison, or the study itself in JSON and YAML."""
    if output is Output.TABLE:
        show_comparison(client.comparison(study.id))
    else:
        emit(study, output, table=str)
    lacking = studies.all_failed(study)
    if study.state != "COMPLETED" or lacking:
        reason = f": {study.reason}" if study.reason else ""
        say(f"study {study.name} is {study.state}{reason}", err=True)
        if lacking:
            say(f"hint: `admeta runs {study.name} --state FAIL` lists them, `admeta logs RUN` shows why.", err=True)
        raise typer.Exit(FAILED if study.state != "COMPLETED" else ALL_FAILED)
