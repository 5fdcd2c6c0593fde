"""Commands on trials and runs of a study: trials, runs, run, logs, events."""

from __future__ import annotations

import json
from collections.abc import Iterable
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from admeta.cli.options import (
    INTERRUPTED,
    Label,
    Output,
    OutputOption,
    StudyArgument,
    Url,
    connect,
    parse_trial,
    study_names,
    trial_names,
)
from admeta.cli.output import emit, emit_item, emit_list, emit_plain, say, show
from admeta.client import formatting
from admeta.client.states import FailureKind, RunState, Stage
from admeta.client.terminal.tables import studies

if TYPE_CHECKING:
    from admeta.client.models import EventView, LogView, TrialView

_State = Annotated[RunState | None, typer.Option(help="Only in this state.", case_sensitive=False)]
_CUT_BYTES = 1 << 20
"""At least so much is dropped where the service cuts a log to its last part."""

_Limit = Annotated[int, typer.Option(help="Show at most this many.", min=1)]


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
    trial: Annotated[
        str | None,
        typer.Argument(help="Show this trial, for example admetar/3.", metavar="[TRIAL]", autocompletion=trial_names),
    ] = None,
    label: Label = None,
    state: _State = None,
    order: Annotated[TrialOrder, typer.Option(help="best: best validation value first.")] = TrialOrder.NUMBER,
    limit: _Limit = 100,
    url: Url = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """List a study's trials, or show one with its runs and its curve."""
    with connect(url) as client:
        if trial is not None:
            _show_trial(client.trial(study, *parse_trial(trial)), output)
            return
        found = client.trials(study, label=label, state=state, order=order, limit=limit)
        metric = client.study(study).metric if output is Output.TABLE else ""
        emit_list(found, output, table=lambda views: studies.trial_list(views, metric=metric))


def runs(
    study: StudyArgument,
    label: Label = None,
    trial: Annotated[int | None, typer.Option(help="Only runs of trials with this number.", min=0)] = None,
    stage: Annotated[Stage | None, typer.Option(help="Only of this stage.")] = None,
    state: _State = None,
    failure: Annotated[FailureKind | None, typer.Option(help="Only runs with this failure.")] = None,
    order: Annotated[RunOrder, typer.Option(help="best: best validation value first.")] = RunOrder.ID,
    limit: _Limit = 100,
    url: Url = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """List a study's runs: each with its seed, its machine and its outcome."""
    with connect(url) as client:
        found = client.runs(
            study, label=label, trial=trial, stage=stage, state=state, failure=failure, order=order, limit=limit
        )
        emit_list(found, output, table=studies.run_list)


def run(
    run: Annotated[int, typer.Argument(help="A run's id, from `admeta runs`.", min=1, metavar="RUN")],
    url: Url = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show one run: its attempts with their machines and outcomes, and its curve."""
    with connect(url) as client:
        view, points = client.run(run), client.curve(run)
    if output is not Output.TABLE:
        emit_plain(
            {**view.model_dump(mode="json"), "curve": [point.model_dump(mode="json") for point in points]}, output
        )
        return
    why = f" ({view.failure})" if view.failure else ""
    say(f"run {view.id} of study {view.study}, trial {view.label}/{view.trial}, is {view.state}{why}")
    say(f"{view.stage}, seed {view.seed}: {formatting.settings(view.settings)}")
    found = (studies.attempts(view.attempts), *([studies.curve(points)] if points else []))
    show(*found)
    for attempt in view.attempts[-1:]:
        if attempt.environment:
            say(f"\nattempt {attempt.attempt} ran with {formatting.settings(attempt.environment)}")
    if view.error:
        say(f"\n{view.error.rstrip()}")


def logs(
    run: Annotated[int, typer.Argument(help="A run's id, from `admeta runs`.", min=1, metavar="RUN")],
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow the log until the run has ended.")] = False,
    attempt: Annotated[int | None, typer.Option(help="Show this attempt.  [default: the latest]", min=1)] = None,
    tail: Annotated[int | None, typer.Option("--tail", "-n", help="Show only the last lines: how many.", min=0)] = None,
    url: Url = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show the output of a run, tracebacks included. JSON is one object for each part."""
    with connect(url) as client:
        try:
            _show_logs(
                client.follow_logs(run, attempt=attempt, tail=tail)
                if follow
                else [client.logs(run, attempt=attempt, tail=tail)],
                output,
                is_whole=tail is None,
            )
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None


def _show_logs(parts: Iterable[LogView], output: Output, *, is_whole: bool) -> None:
    attempt: int | None = None
    for part in parts:
        if output is not Output.TABLE:
            emit_item(part, output, text=str)
            continue
        if attempt is not None and part.attempt != attempt:
            say(f"--- attempt {part.attempt}", err=True)
        missing = part.offset - len(part.text.encode())
        if attempt is None and is_whole and missing >= _CUT_BYTES:
            say(f"the first {missing / 2**20:.1f} MiB are not kept: a log of more than 2 MiB is cut", err=True)
        attempt = part.attempt
        say(part.text, nl=False)


def _show_trial(trial: TrialView, output: Output) -> None:
    from admeta.client.models import StudyRunView

    if output is not Output.TABLE:
        emit(trial, output, table=str)
        return
    origin = f" ({formatting.sources(trial)})" if trial.taken_from else ""
    say(f"trial {trial.label}/{trial.number} is {trial.state}: {formatting.settings(trial.settings)}{origin}")
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
    show(studies.run_list(runs))
    if trial.curve:
        show(studies.curve(trial.curve))


def events(
    study: Annotated[
        str | None,
        typer.Argument(help="A study's name or id; default: all.", metavar="[STUDY]", autocompletion=study_names),
    ] = None,
    after: Annotated[
        int | None, typer.Option(help="Start after the event with this id; 0: with the oldest event kept.", min=0)
    ] = None,
    url: Url = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Follow events: one study's until it ends, or all studies' until Ctrl-C. JSON is one object for each line."""
    with connect(url) as client:
        try:
            for event in client.events(study, after=after):
                emit_item(event, output, text=_line)
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None


def _line(event: EventView) -> str:
    at = event.at.astimezone()
    return f"{event.id:>8}  {at:%H:%M:%S}  {event.study}  {event.kind:<14}  {_said(event)}"


def _said(event: EventView) -> str:
    data = event.data
    if event.kind == "metric":
        last = data["points"][-1]
        return f"{data['label']} #{data['trial']} seed {data['seed']}: epoch {last['epoch']} {_brief(last['metrics'])}"
    if "run" in data:
        result = "" if data.get("value") is None else f" {data['value']:.6g}"
        why = data.get("failure") or data.get("error")
        because = f" ({why})" if why else ""
        return f"{data['label']} #{data['trial']} seed {data['seed']}: {data['state']}{result}{because}"
    if "state" in data:
        because = f" ({data['reason']})" if data.get("reason") else ""
        return f"{data['name']}: {data['state']}{because}"
    return json.dumps(data)


def _brief(metrics: dict[str, float | None]) -> str:
    return " ".join(f"{name}={value:.5g}" for name, value in metrics.items() if value is not None)
