"""Options that commands share, and how a result is written."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer
from pydantic import BaseModel

if TYPE_CHECKING:
    from rich.console import Console, RenderableType


class Output(StrEnum):
    """How a result is written."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


Url = Annotated[str | None, typer.Option("--url", help="The service's address.  [env: ADMETA_URL]", metavar="URL")]
OutputOption = Annotated[Output, typer.Option("--output", "-o", help="How to write the result.")]
StudyArgument = Annotated[str, typer.Argument(help="A study's name or id.", metavar="STUDY")]


def emit(result: BaseModel | Iterable[BaseModel], output: Output, *, table: Callable[[Any], RenderableType]) -> None:
    """Write one answer or a list of them to stdout.

    Args:
        result: what to write; a list becomes a JSON or YAML list.
        table: makes the table of it.
    """
    if not isinstance(result, BaseModel):
        result = list(result)
    if output is Output.TABLE:
        console().print(table(result))
        return
    plain = result.model_dump(mode="json") if isinstance(result, BaseModel) else [_plain(item) for item in result]
    if output is Output.JSON:
        typer.echo(json.dumps(plain, indent=2, ensure_ascii=False, allow_nan=False))
        return
    import yaml

    typer.echo(yaml.safe_dump(plain, sort_keys=False, allow_unicode=True), nl=False)


def console() -> Console:
    """stdout; see `service.tables.console`."""
    from service.tables import console

    return console()


def _plain(item: BaseModel) -> Any:
    return item.model_dump(mode="json")
