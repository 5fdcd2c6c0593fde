"""Commands on the paper: its tables with this service's results, its studies, and running one of them."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from admeta.cli.options import Changes, Output, OutputOption, Url, completed, connect
from admeta.cli.output import emit, say
from admeta.cli.studies import Timeout, Wait, report
from admeta.client.terminal import tables
from admeta.client.text import head_text, latex, markdown

if TYPE_CHECKING:
    from admeta.client.models import PaperTableCellsView

table_names = completed(lambda client, *_: (table.name for table in client.paper_tables()))
study_names = completed(lambda client, *_: (study.name for study in client.paper_studies()))

_Smoke = Annotated[
    bool,
    typer.Option("--smoke", help="A small form, to see that it runs: tiny model, one epoch, few trials, no GPU."),
]


class TableOutput(StrEnum):
    """How a table of the paper is written."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"
    MARKDOWN = "markdown"
    LATEX = "latex"


def build() -> typer.Typer:
    """The group of commands."""
    group = typer.Typer(
        help="The paper's tables with this service's results, and the studies that produce them.", no_args_is_help=True
    )
    group.command("tables")(show_tables)
    group.command("studies")(show_studies)
    group.command("run")(run)
    return group


def show_tables(
    name: Annotated[
        str | None,
        typer.Argument(help="Show this table, cell by cell.", metavar="[TABLE]", autocompletion=table_names),
    ] = None,
    url: Url = None,
    output: Annotated[
        TableOutput, typer.Option("--output", "-o", help="Output format; markdown and latex work for one table.")
    ] = TableOutput.TABLE,
) -> None:
    """List the paper's result tables, or show one: each cell is the paper's number / ours."""
    is_text = output in (TableOutput.MARKDOWN, TableOutput.LATEX)
    if name is None and is_text:
        raise typer.BadParameter(f"{output.value} works for one table: add its name", param_hint="TABLE")
    with connect(url) as client:
        if name is None:
            emit(client.paper_tables(), Output(output.value), table=tables.paper_table_list)
            return
        view = client.paper_table(name)
    if is_text:
        say(_text(view, output), nl=False)
        return
    emit(view, Output(output.value), table=tables.paper_cells)
    for note in view.notes if output is TableOutput.TABLE else ():
        say(f"note: {note}", err=True)


def show_studies(
    name: Annotated[
        str | None, typer.Argument(help="Show this study.", metavar="[NAME]", autocompletion=study_names)
    ] = None,
    smoke: _Smoke = False,
    url: Url = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """List the studies that produce the paper's tables, or show one; JSON and YAML then contain its definition."""
    if name is None and smoke:
        raise typer.BadParameter("--smoke works for one study: add its name", param_hint="NAME")
    with connect(url) as client:
        if name is None:
            emit(client.paper_studies(), output, table=tables.paper_study_list)
        else:
            emit(client.paper_study(name, form=_form(smoke=smoke)), output, table=tables.paper_study)


def run(
    name: Annotated[str, typer.Argument(help="A study's name.", metavar="NAME", autocompletion=study_names)],
    smoke: _Smoke = False,
    changes: Changes = None,
    wait: Wait = False,
    timeout: Timeout = None,
    url: Url = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Submit a study of the paper. The same study again is found, not created."""
    from admeta.client import studyfile

    with connect(url) as client:
        found = client.paper_study(name, form=_form(smoke=smoke))
        definition = studyfile.with_changes(found.definition or {}, changes or [])
        report(client, client.submit(definition), wait=wait, timeout_s=timeout, output=output)


def _form(*, smoke: bool) -> str:
    return "smoke" if smoke else "full"


def _text(view: PaperTableCellsView, output: TableOutput) -> str:
    head = ["", *map(head_text, view.columns)]
    texts = zip(view.rows, tables.paper_texts(view), strict=True)
    rows = [[head_text(name), *cells] for name, cells in texts]
    return (markdown if output is TableOutput.MARKDOWN else latex)(head, rows)
