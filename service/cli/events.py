"""Command on events: follow them as they happen."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from service.cli.exits import INTERRUPTED
from service.cli.options import Output, OutputOption, Url, study_names
from service.cli.writing import emit_item
from service.client import Client
from service.models import EventView


def events(
    study: Annotated[
        str | None,
        typer.Argument(help="A study's name or id; default: all.", metavar="[STUDY]", autocompletion=study_names),
    ] = None,
    after: Annotated[
        int | None, typer.Option(help="Begin after this event's id; 0: with the oldest kept.", min=0)
    ] = None,
    url: Url = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Follow events: one study's until it ends, or all studies' until Ctrl-C. JSON is one object a line."""
    with Client(url) as client:
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
