"""How a result is written: as a table, as JSON, or as YAML, in whatever encoding the console has."""

from __future__ import annotations

import codecs
import io
import json
import re
import sys
from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import typer

from admeta.cli.options import Output
from admeta.client import terminal
from admeta.client.terminal.tables import comparisons
from admeta.client.text import printable

if TYPE_CHECKING:
    from pydantic import BaseModel
    from rich.console import RenderableType

    from admeta.client.blocking.connection import Items
    from admeta.client.models import ComparisonView


class Searches(StrEnum):
    """How a comparison lists the repeated searches of an optimizer."""

    TOGETHER = "together"
    EACH = "each"


def emit(result: BaseModel | Iterable[BaseModel], output: Output, *, table: Callable[[Any], RenderableType]) -> None:
    """Write one answer or a list of them to stdout.

    Args:
        result: what to write; a list becomes a JSON or YAML list.
        table: makes the table of it.
    """
    from pydantic import BaseModel  # 0.03 s, and some commands need none

    if not isinstance(result, BaseModel):
        result = list(result)
    if output is Output.TABLE:
        show(table(result))
    elif isinstance(result, BaseModel):
        emit_plain(result.model_dump(mode="json"), output)
    else:
        emit_plain([item.model_dump(mode="json") for item in result], output)


def emit_list(found: Items[Any], output: Output, *, table: Callable[[Any], RenderableType]) -> None:
    """Write the items of a list to stdout; JSON and YAML are a page of REST's list, which ends where the items do."""
    items = list(found)
    if output is Output.TABLE:
        show(table(items))
    else:
        emit_plain(
            {"items": [item.model_dump(mode="json") for item in items], "next_cursor": found.next_cursor}, output
        )


def emit_plain(value: Any, output: Output) -> None:
    """Write JSON values to stdout, as YAML where that is asked for."""
    if output is Output.YAML:
        from admeta.client import studyfile

        typer.echo(studyfile.dump(value, allow_unicode=_is_unicode()), nl=False)
        return
    typer.echo(_json(value, indent=2))


def emit_item(item: BaseModel, output: Output, *, text: Callable[[Any], str]) -> None:
    """Write one item of a list without an end: a line, or a JSON object on a line, or an item of a YAML list."""
    if output is Output.TABLE:
        say(text(item))
    elif output is Output.JSON:
        typer.echo(_json(item.model_dump(mode="json")))
    else:
        emit_plain([item.model_dump(mode="json")], output)


def say(text: str, *, err: bool = False, nl: bool = True) -> None:
    """Write a text, which may be another person's, to stdout or stderr: nothing in it controls the terminal."""
    typer.echo(printable(text), err=err, nl=nl)


def show(*found: RenderableType) -> None:
    """Write tables to stdout, an empty line between two."""
    out = terminal.console()
    for n, table in enumerate(found):
        if n:
            out.print()
        out.print(table)


def show_comparison(view: ComparisonView, *, searches: Searches = Searches.TOGETHER) -> None:
    """Write how a study's optimizers compare: their results, and which differences are significant."""
    each = [comparisons.optimizers(view, rows=view.rows)] if searches is Searches.EACH and view.optimizers else []
    own = [comparisons.recipes(view)] if any(row.training for row in view.rows) else []
    show(comparisons.optimizers(view), *each, *own, *([comparisons.pairs(view)] if view.pairs else []))
    for remark in [*view.remarks, *(f"{edge.sentence}." for edge in view.edges)]:
        say(f"\n{remark}")
    if view.edges:
        changes = " ".join(f"--set {edge.change}" for edge in view.edges)
        say(f"To search further: admeta clone {view.study} {(view.wider or {}).get('name', 'NAME')} {changes}")


def accept_any_encoding() -> None:
    """Let stdout and stderr write every character, whatever the console's encoding.

    Characters that the encoding lacks are written as ASCII: ± as +/-, others as their escape.
    """
    codecs.register_error("admeta", _plain)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="admeta")


_ASCII = {"±": "+/-", "−": "-", "–": "-", "…": "...", "→": "->", "≤": "<=", "≥": ">=", "×": "x", "·": "|", "≠": "!="}


def _plain(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lacking = error.object[error.start : error.end]
    return "".join(_ASCII.get(one) or ascii(one)[1:-1] for one in lacking), error.end


def _is_unicode() -> bool:
    return codecs.lookup(sys.stdout.encoding or "utf-8").name.startswith("utf")


def _json(value: Any, *, indent: int | None = None) -> str:
    text = json.dumps(value, indent=indent, ensure_ascii=not _is_unicode(), allow_nan=False)
    return re.sub("[\x7f-\x9f]", lambda found: f"\\u{ord(found[0]):04x}", text)  # they control a terminal, too
