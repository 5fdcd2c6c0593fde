"""Commands that work on the database itself, not a service: on its tables, and on the access tokens in it.

So the first admin token can be created before any token exists. With --url the commands on tokens send an admin's
request to a service instead.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from admeta.cli.options import FAILED, DatabaseUrl, Home, Output, OutputOption, connect
from admeta.cli.output import emit, emit_plain, say
from admeta.client import formatting
from admeta.client.errors import ServiceError
from admeta.client.terminal.tables import catalog
from search.states import Scope

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from service.settings import Settings

_UNITS_S = {"m": 60, "h": 3600, "d": 86_400}
Service = Annotated[
    str | None,
    typer.Option(
        "--url", help="Send the request to this service; ADMETA_TOKEN must be an admin's token.", metavar="URL"
    ),
]


def build_tables() -> typer.Typer:
    """The group of commands on the tables."""
    group = typer.Typer(help="The database's tables: upgrade, downgrade, current.", no_args_is_help=True)
    for command in (upgrade, downgrade, current):
        group.command()(command)
    return group


def upgrade(home: Home = None, database_url: DatabaseUrl = None, output: OutputOption = Output.TABLE) -> None:
    """Create the tables, or upgrade them to this version. `admeta serve` does the same when it starts."""
    from service.database.schema import head_revision, inspect, prepare

    settings = _settings(home, database_url)
    before = inspect(settings.database_url)
    prepare(settings.database_url)
    _report_change(settings, before, head_revision(), output)


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

    settings = _settings(home, database_url)
    url = settings.database_url
    before = inspect(url)
    if not yes:
        change = f"from {before or 'nothing'} to {revision}? Newer columns and tables are lost."
        question = f"{settings.safe_database_url}: downgrade the tables {change}"
        typer.confirm(question, abort=True, err=output is not Output.TABLE)
    step_back(url, revision)
    _report_change(settings, before, inspect(url), output)


def current(home: Home = None, database_url: DatabaseUrl = None, output: OutputOption = Output.TABLE) -> None:
    """Show the tables' revision and the revision that this version needs. Exit code 1 where they differ."""
    from service.database.schema import head_revision, inspect

    settings = _settings(home, database_url)
    found, needed = inspect(settings.database_url), head_revision()
    if output is Output.TABLE:
        say(f"{settings.safe_database_url}: tables: {found or 'none'}; this version needs: {needed}")
    else:
        emit_plain({"found": found, "needed": needed}, output)
    if found is None:
        say("hint: Is it the service's? Give the --home or --database-url that `admeta serve` has.", err=True)
    if found != needed:
        say("hint: Run `admeta db upgrade`. A newer database needs a newer admeta-search.", err=True)
        raise typer.Exit(FAILED)


def _report_change(settings: Settings, before: str | None, after: str | None, output: Output) -> None:
    if output is not Output.TABLE:
        emit_plain({"before": before, "after": after}, output)
        return
    verb = "are at" if before == after else f"went from {before or 'nothing'} to"
    say(f"{settings.safe_database_url}: the tables {verb} revision {after or 'nothing'}")


def _settings(home: Path | None, database_url: str | None) -> Settings:
    from service.settings import load

    return load(os.environ, home=home, database_url=database_url)


def build_tokens() -> typer.Typer:
    """The group of commands on access tokens."""
    group = typer.Typer(help="Access tokens: create, list, revoke.", no_args_is_help=True)
    for command in (create, revoke):
        group.command()(command)
    group.command("list")(show)
    return group


def create(
    name: Annotated[str, typer.Argument(help="What it is for, or who has it.")],
    scope: Annotated[Scope, typer.Option(help="Each scope includes those before it.")] = Scope.READ,
    expires: Annotated[
        str | None, typer.Option(help="Lifetime: 90d, 12h, 30m.  [default: until it is revoked]", metavar="TIME")
    ] = None,
    home: Home = None,
    database_url: DatabaseUrl = None,
    url: Service = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Create a token and print it. It cannot be shown again: only its hash is kept."""
    lifetime = None if expires is None else _duration(expires)
    if not 1 <= len(name) <= 100:
        raise typer.BadParameter("must have 1 to 100 characters", param_hint="NAME")
    where = ""
    if url is not None:
        with connect(url) as client:
            made = client.create_token(
                name, scope=scope.value, expires_in_s=None if lifetime is None else lifetime.total_seconds()
            )
    else:
        with _database(home, database_url) as engine:
            from service.database import tokens

            made = tokens.create_token(engine, name=name, scope=scope, lifetime=lifetime)
            where = f" Services on {engine.url.render_as_string()} take it."
    if output is not Output.TABLE:
        emit(made, output, table=lambda view: catalog.token_list([view]))
        return
    say(made.token)
    until = "until it is revoked" if made.expires_at is None else f"until {formatting.moment(made.expires_at)}"
    say(f"Token {made.id} ({made.scope}) is valid {until}. Keep it: it cannot be shown again.{where}", err=True)
    say("The client and the command line read it from ADMETA_TOKEN.", err=True)


def show(
    home: Home = None, database_url: DatabaseUrl = None, url: Service = None, output: OutputOption = Output.TABLE
) -> None:
    """List all tokens, newest first, including those that are no longer valid."""
    if url is not None:
        with connect(url) as client:
            found = client.tokens()
    else:
        with _database(home, database_url) as engine:
            from service.database import tokens

            found = tokens.list_tokens(engine)
    emit(found, output, table=catalog.token_list)


def revoke(
    token_id: Annotated[str, typer.Argument(help="The token's id, from `admeta token list`.", metavar="ID")],
    home: Home = None,
    database_url: DatabaseUrl = None,
    url: Service = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Revoke a token at once."""
    if url is not None:
        with connect(url) as client:
            ended = client.revoke_token(token_id)
    else:
        with _database(home, database_url) as engine:
            from service.database import tokens

            ended = tokens.revoke_token(engine, token_id)
    emit(ended, output, table=lambda view: catalog.token_list([view]))


@contextmanager
def _database(home: Path | None, database_url: str | None) -> Iterator[Engine]:
    from admeta.cli.doctor import can_serve

    if not can_serve():
        raise ServiceError(
            "only the client is installed here, which cannot open a database.",
            hint="Send the request to the service: --url URL, with an admin's token in ADMETA_TOKEN.",
        )
    from service.database.engine import make_single_engine
    from service.database.schema import head_revision, inspect, prepare
    from service.settings import load, make_home

    settings = load(os.environ, home=home, database_url=database_url)
    make_home(settings.home)
    if inspect(settings.database_url) != head_revision():
        prepare(settings.database_url)
    engine = make_single_engine(settings.database_url)
    try:
        yield engine
    finally:
        engine.dispose()


def _duration(text: str) -> timedelta:
    found = re.fullmatch(r"([1-9]\d{0,5})([mhd])", text)
    if found is None:
        raise typer.BadParameter(
            f"'{text}' must be a number and a unit, for example 90d, 12h or 30m", param_hint="--expires"
        )
    return timedelta(seconds=int(found[1]) * _UNITS_S[found[2]])
