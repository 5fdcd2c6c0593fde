"""Commands on a study's results: export, importance."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from service.cli.options import Output, OutputOption, StudyArgument, Url, emit
from service.client import AdmetaClient
from service.errors import ServiceError

_FORMATS = {".csv": "csv", ".json": "json", ".parquet": "parquet", ".tex": "latex"}


def export(
    study: StudyArgument,
    file: Annotated[
        Path | None, typer.Argument(help="Where to write; default: stdout, as csv.", metavar="[FILE]")
    ] = None,
    form: Annotated[
        str | None, typer.Option("--format", help="csv, json, parquet or latex.  [default: by the file's name]")
    ] = None,
    url: Url = None,
) -> None:
    """Write a study's results to a file: a row a run (csv, parquet), trials (json), the comparison (latex)."""
    chosen = form or (_FORMATS.get(file.suffix) if file else "csv")
    if chosen is None:
        raise ServiceError(
            f"'{file}' does not say its format.", hint=f"End it in {', '.join(_FORMATS)}, or give --format."
        )
    with AdmetaClient(url) as client:
        if file is None:
            client.export(study, sys.stdout.buffer, form=chosen)
            return
        part = file.with_name(file.name + ".part")  # a broken download leaves no file that looks whole
        try:
            with part.open("wb") as target:
                client.export(study, target, form=chosen)
            part.replace(file)
        except OSError as error:
            raise ServiceError(f"cannot write '{file}': {error.strerror}.", hint="Choose another path.") from None
        finally:
            part.unlink(missing_ok=True)
    typer.echo(f"wrote {file}", err=True)


def importance(study: StudyArgument, url: Url = None, output: OutputOption = Output.TABLE) -> None:
    """Show how much each searched parameter mattered."""
    from service import tables

    with AdmetaClient(url) as client:
        emit(client.importance(study), output, table=tables.importance)
