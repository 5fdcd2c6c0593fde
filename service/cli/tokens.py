"""Commands on access tokens: create, list, revoke.

They work on the database itself, so that the first admin token can be created before any token exists. With --url they
send an admin's request to a service instead.
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

from admeta.cli.options import DatabaseUrl, Home, Output, OutputOption, connect
from admeta.cli.output import emit, say
from admeta.client.errors import ServiceError
from admeta.client.terminal import tables
from search.states import Scope

if TYPE_CHECKING:
    from sqlalchemy import Engine

_UNITS_S = {"m": 60, "h": 3600, "d": 86_400}
Service = Annotated[
    str | None,
    typer.Option(
        "--url", help="Send the request to this service; ADMETA_TOKEN must be an admin's token.", metavar="URL"
    ),
]


def build() -> typer.Typer:
    """The group of commands."""
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
    if url is not None:
        with connect(url) as client:
            made = client.create_token(
                name, scope=scope.value, expires_in_s=None if lifetime is None else lifetime.total_seconds()
            )
    else:
        with _database(home, database_url) as engine:
            from service.database import tokens

            made = tokens.create_token(engine, name=name, scope=scope, lifetime=lifetime)
    if output is not Output.TABLE:
        emit(made, output, table=lambda view: tables.token_list([view]))
        return
    say(made.token)
    until = "until it is revoked" if made.expires_at is None else f"until {tables.moment(made.expires_at)}"
    say(f"Token {made.id} ({made.scope}) is valid {until}. Keep it: it cannot be shown again.", err=True)
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
    emit(found, output, table=tables.token_list)


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
    emit(ended, output, table=lambda view: tables.token_list([view]))


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
