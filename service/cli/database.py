"""Commands on the database's tables: upgrade, status. They work on the database itself; no service need run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

Home = Annotated[Path | None, typer.Option(help="The service's home.  [env: ADMETA_HOME; default: ~/.admeta]")]
DatabaseUrl = Annotated[
    str | None, typer.Option(help="The service's database.  [env: ADMETA_DATABASE_URL; default: SQLite in the home]")
]


def build() -> typer.Typer:
    """The group of commands."""
    group = typer.Typer(help="The database's tables: upgrade, status.", no_args_is_help=True)
    for command in (upgrade, status):
        group.command()(command)
    return group


def upgrade(home: Home = None, database_url: DatabaseUrl = None) -> None:
    """Create the tables, or bring them to this version. `admeta serve` does the same when it starts."""
    from service.database.schema import head_revision, inspect, prepare

    url = _url(home, database_url)
    before = inspect(url)
    prepare(url)
    verb = "are at" if before == head_revision() else f"went from {before or 'nothing'} to"
    typer.echo(f"the tables {verb} revision {head_revision()}")


def status(home: Home = None, database_url: DatabaseUrl = None) -> None:
    """Show the tables' revision and the one that this version needs. Exit code 1 where they differ."""
    from service.database.schema import head_revision, inspect

    found, needed = inspect(_url(home, database_url)), head_revision()
    typer.echo(f"tables: {found or 'none'}; this version needs: {needed}")
    if found != needed:
        typer.echo("hint: Run `admeta db upgrade`; a newer database needs a newer admeta-search.", err=True)
        raise typer.Exit(1)


def _url(home: Path | None, database_url: str | None) -> str:
    from service.settings import load

    return load(os.environ, home=home, database_url=database_url).database_url
