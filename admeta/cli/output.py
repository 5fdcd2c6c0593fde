"""How a result is written: as a table, as JSON, or as YAML."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import typer
from pydantic import BaseModel

from admeta.cli.options import Output
from admeta.client.models import ComparisonView
from admeta.client.terminal import tables

if TYPE_CHECKING:
    from rich.console import RenderableType


def emit(result: BaseModel | Iterable[BaseModel], output: Output, *, table: Callable[[Any], RenderableType]) -> None:
    """Write one answer or a list of them to stdout.

    Args:
        result: what to write; a list becomes a JSON or YAML list.
        table: makes the table of it.
    """
    if not isinstance(result, BaseModel):
        result = list(result)
    if output is Output.TABLE:
        show(table(result))
    elif isinstance(result, BaseModel):
        emit_plain(result.model_dump(mode="json"), output)
    else:
        emit_plain([item.model_dump(mode="json") for item in result], output)


def emit_plain(value: Any, output: Output) -> None:
    """Write JSON values to stdout, as YAML where that is asked for."""
    if output is Output.YAML:
        from admeta.client import studyfile

        typer.echo(studyfile.dump(value), nl=False)
        return
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False))


def emit_item(item: BaseModel, output: Output, *, text: Callable[[Any], str]) -> None:
    """Write one item of a list without an end: a line, or a JSON object on a line, or an item of a YAML list."""
    if output is Output.TABLE:
        typer.echo(text(item))
    elif output is Output.JSON:
        typer.echo(item.model_dump_json())
    else:
        emit_plain([item.model_dump(mode="json")], output)


def show(*found: RenderableType) -> None:
    """Write tables to stdout, an empty line between two."""
    out = tables.console()
    for n, table in enumerate(found):
        if n:
            out.print()
        out.print(table)


def show_comparison(view: ComparisonView) -> None:
    """Write how a study's optimizers compare: their results, and which differences are shown to be real."""

    show(tables.comparison(view), *([tables.pairs(view)] if view.pairs else []))
