"""Commands on the database's tables: upgrade, downgrade, current. They work on the database itself, not a service."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from admeta.cli.options import FAILED, DatabaseUrl, Home, Output, OutputOption
from admeta.cli.output import emit_plain, say


def build() -> typer.Typer:
    """The group of commands."""
    group = typer.Typer(help="The database's tables: upgrade, downgrade, current.", no_args_is_help=True)
    for command in (upgrade, downgrade, current):
        group.command()(command)
    return group


def upgrade(home: Home = None, database_url: DatabaseUrl = None, output: OutputOption = Output.TABLE) -> None:
    """Create the tables, or upgrade them to this version. `admeta serve` does the same when it starts."""
    from service.database.schema import head_revision, inspect, prepare

    url = _url(home, database_url)
    before = inspect(url)
    prepare(url)
    _report_change(before, head_revision(), output)


def downgrade(
    revision: Annotated[str, typer.Argument(help="The older revision, for example 0001; base removes the tables.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    home: Home = None,
    database_url: DatabaseUrl = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Downgrade the tables to an older revision, for an older admeta-search. Newer columns and tables are lost.

    Stop the services on this database first, and make a copy of it.
    """
    from service.database.schema import inspect, step_back

    url = _url(home, database_url)
    before = inspect(url)
    if not yes:
        question = f"Downgrade the tables from {before or 'nothing'} to {revision}? Newer columns and tables are lost."
        typer.confirm(question, abort=True, err=output is not Output.TABLE)
    step_back(url, revision)
    _report_change(before, inspect(url), output)


def current(home: Home = None, database_url: DatabaseUrl = None, output: OutputOption = Output.TABLE) -> None:
    """Show the tables' revision and the revision that this version needs. Exit code 1 where they differ."""
    from service.database.schema import head_revision, inspect

    found, needed = inspect(_url(home, database_url)), head_revision()
    if output is Output.TABLE:
        say(f"tables: {found or 'none'}; this version needs: {needed}")
    else:
        emit_plain({"found": found, "needed": needed}, output)
    if found != needed:
        say("hint: Run `admeta db upgrade`. A newer database needs a newer admeta-search.", err=True)
        raise typer.Exit(FAILED)


def _report_change(before: str | None, after: str | None, output: Output) -> None:
    if output is not Output.TABLE:
        emit_plain({"before": before, "after": after}, output)
        return
    verb = "are at" if before == after else f"went from {before or 'nothing'} to"
    say(f"the tables {verb} revision {after or 'nothing'}")


def _url(home: Path | None, database_url: str | None) -> str:
    from service.settings import load

    return load(os.environ, home=home, database_url=database_url).database_url
