"""Commands on what a study has tried: trials, runs, run, logs."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Annotated

import typer

from service.cli.exits import INTERRUPTED
from service.cli.names import FailureName, RunStateName, StageName
from service.cli.options import Label, Output, OutputOption, StudyArgument, Url, parse_trial
from service.cli.writing import emit, emit_item, emit_plain, show
from service.client import Client
from service.models import LogView, StudyRunView, TrialView

_State = Annotated[RunStateName | None, typer.Option(help="Only in this state.", case_sensitive=False)]
_Limit = Annotated[int, typer.Option(help="At most so many.", min=1)]


class TrialOrder(StrEnum):
    """How trials are listed."""

    NUMBER = "number"
    BEST = "best"


class RunOrder(StrEnum):
    """How runs are listed."""

    ID = "id"
    BEST = "best"


def trials(
    study: StudyArgument,
    trial: Annotated[str | None, typer.Argument(help="Show this one, as admetar/3.", metavar="[TRIAL]")] = None,
    label: Label = None,
    state: _State = None,
    order: Annotated[TrialOrder, typer.Option(help="best: best validation value first.")] = TrialOrder.NUMBER,
    limit: _Limit = 100,
    url: Url = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """List a study's trials, or show one with its runs and its curve."""
    from service import tables

    with Client(url) as client:
        if trial is not None:
            _show_trial(client.trial(study, *parse_trial(trial)), output)
            return
        found = list(client.trials(study, label=label, state=state, order=order, limit=limit))
        metric = client.study(study).metric if output is Output.TABLE else ""
    emit(found, output, table=lambda views: tables.trial_list(views, metric=metric))


def runs(
    study: StudyArgument,
    label: Label = None,
    trial: Annotated[int | None, typer.Option(help="Only of trials with this number.", min=0)] = None,
    stage: Annotated[StageName | None, typer.Option(help="Only of this stage.")] = None,
    state: _State = None,
    failure: Annotated[FailureName | None, typer.Option(help="Only those that failed so.")] = None,
    order: Annotated[RunOrder, typer.Option(help="best: best validation value first.")] = RunOrder.ID,
    limit: _Limit = 100,
    url: Url = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """List a study's runs: each training with its seed, its machine, and how it ended."""
    from service import tables

    with Client(url) as client:
        found = list(
            client.runs(
                study, label=label, trial=trial, stage=stage, state=state, failure=failure, order=order, limit=limit
            )
        )
    emit(found, output, table=tables.run_list)


def run(
    run: Annotated[int, typer.Argument(help="A run's id, from `admeta runs`.", min=1, metavar="RUN")],
    url: Url = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show one run: its attempts, on what they ran, how each ended, and its curve."""
    from service import tables

    with Client(url) as client:
        view, points = client.run(run), client.curve(run)
    if output is not Output.TABLE:
        emit_plain(
            {**view.model_dump(mode="json"), "curve": [point.model_dump(mode="json") for point in points]}, output
        )
        return
    why = f" ({view.failure})" if view.failure else ""
    typer.echo(f"run {view.id} of study {view.study}, trial {view.label}/{view.trial}, is {view.state}{why}")
    typer.echo(f"{view.stage}, seed {view.seed}: {tables.settings(view.settings)}")
    found = (tables.attempts(view.attempts), *([tables.curve(points)] if points else []))
    show(*found)
    for attempt in view.attempts[-1:]:
        if attempt.environment:
            typer.echo(f"\nattempt {attempt.attempt} ran with {tables.settings(attempt.environment)}")
    if view.error:
        typer.echo(f"\n{view.error.rstrip()}")


def logs(
    run: Annotated[int, typer.Argument(help="A run's id, from `admeta runs`.", min=1, metavar="RUN")],
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the run has ended.")] = False,
    attempt: Annotated[int | None, typer.Option(help="Of this attempt.  [default: the latest]", min=1)] = None,
    tail: Annotated[int | None, typer.Option("--tail", "-n", help="Only the last so many lines.", min=0)] = None,
    url: Url = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show what a run has printed, tracebacks included. JSON is one object for each part."""
    with Client(url) as client:
        try:
            _show_logs(
                client.follow_logs(run, attempt=attempt, tail=tail)
                if follow
                else [client.logs(run, attempt=attempt, tail=tail)],
                output,
            )
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None


def _show_logs(parts: Iterable[LogView], output: Output) -> None:
    attempt: int | None = None
    for part in parts:
        if output is not Output.TABLE:
            emit_item(part, output, text=str)
            continue
        if attempt is not None and part.attempt != attempt:
            typer.echo(f"--- attempt {part.attempt}", err=True)
        attempt = part.attempt
        typer.echo(part.text, nl=False)


def _show_trial(trial: TrialView, output: Output) -> None:
    from service import tables

    if output is not Output.TABLE:
        emit(trial, output, table=str)
        return
    typer.echo(f"trial {trial.label}/{trial.number} is {trial.state}: {tables.settings(trial.settings)}")
    runs = [
        StudyRunView(
            **run.model_dump(),
            study="",
            label=trial.label,
            optimizer=trial.optimizer,
            trial=trial.number,
            settings=trial.settings,
        )
        for run in trial.runs
    ]
    show(tables.run_list(runs))
    if trial.curve:
        show(tables.curve(trial.curve))
