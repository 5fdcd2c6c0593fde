"""The commands doctor and version: what is installed here, and whether everything that it needs works.

`doctor` prints one finding for each check. The checks of what a service needs are in `service.doctor`; they run where
its packages are installed.
"""

from __future__ import annotations

import os
import sys
from dataclasses import asdict, dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from admeta.cli.options import FAILED, Output, OutputOption, Url
from admeta.cli.output import emit_plain, say
from admeta.client.errors import ClientError
from admeta.client.text import without_secrets

if TYPE_CHECKING:
    from admeta.client import Client

PACKAGES = ("admeta-search", "torch", "ray", "optuna", "sqlalchemy", "fastapi", "pydantic", "httpx")
_SERVER_MODULES = ("alembic", "fastapi", "optuna", "ray", "sqlalchemy", "torch")
_TIMEOUT_S = 5.0


@dataclass(frozen=True)
class Finding:
    """The result of one check; `advice` is empty where nothing is wrong."""

    name: str
    found: str
    advice: str = ""


def doctor(
    home: Annotated[Path | None, typer.Option(help="As for serve.  [env: ADMETA_HOME]")] = None,
    database_url: Annotated[str | None, typer.Option(help="As for serve.  [env: ADMETA_DATABASE_URL]")] = None,
    ray_address: Annotated[str | None, typer.Option(help="As for serve.  [env: ADMETA_RAY_ADDRESS]")] = None,
    storage: Annotated[str | None, typer.Option(help="As for serve.  [env: ADMETA_STORAGE]")] = None,
    data: Annotated[Path | None, typer.Option(help="As for serve.  [env: ADMETA_DATA]")] = None,
    url: Url = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Check the installation and print what to do where a check fails. Exit code 1 where one fails.

    Checks versions, and the service at --url; where a service can run, also its home, database, Ray, cards, storage
    and data.
    """
    findings = examine(url)
    if can_serve():
        findings += import_module("service.doctor").examine_flags(
            home=home, database_url=database_url, ray_address=ray_address, storage=storage, data=data
        )
    if output is not Output.TABLE:
        emit_plain([{**asdict(finding), "ok": not finding.advice} for finding in findings], output)
    else:
        for finding in findings:
            say(f"{'ok  ' if not finding.advice else 'FAIL'}  {finding.name:<9} {finding.found}")
            if finding.advice:
                say(f"      {'':<9} → {finding.advice}")
    if any(finding.advice for finding in findings):
        raise typer.Exit(FAILED)


def version(output: OutputOption = Output.TABLE) -> None:
    """Show the version."""
    found = _version("admeta-search")
    if output is Output.TABLE:
        say(found)
    else:
        emit_plain({"version": found}, output)


def examine(url: str | None) -> list[Finding]:
    """Check the versions and the service.

    Args:
        url: the service's address; None: ADMETA_URL, else this machine's.
    """
    from admeta.client import Client

    is_named = bool(url or os.environ.get("ADMETA_URL"))
    try:
        with Client(url, timeout_s=_TIMEOUT_S) as client:
            return [_versions(), _service(client, is_named=is_named)]
    except ClientError as error:  # the connection cannot be prepared
        return [_versions(), Finding("service", error.detail, error.hint)]


def can_serve() -> bool:
    """Whether the packages that a service needs are installed."""
    return all(find_spec(name) is not None for name in _SERVER_MODULES)


def _versions() -> Finding:
    python = ".".join(map(str, sys.version_info[:3]))
    return Finding("versions", ", ".join([f"python {python}", *(f"{name} {_version(name)}" for name in PACKAGES)]))


def _version(package: str) -> str:
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def _service(client: Client, *, is_named: bool) -> Finding:
    try:
        health = client.health()
    except ClientError as error:
        if is_named or error.status is not None:
            return Finding("service", error.detail, error.hint)
        return Finding("service", f"no service runs at {without_secrets(client.url)}; `admeta serve` starts one")
    found = f"{without_secrets(client.url)}: version {health.version}, database {health.database}, Ray {health.ray}"
    if health.status != "ok":
        return Finding("service", found, "Run `admeta doctor` on the service's machine, and read the service's log.")
    if health.version != _version("admeta-search"):
        return Finding("service", found, "Install the same version here: other versions may not understand each other.")
    try:
        built_on = client.version()
    except ClientError as error:
        return Finding("service", f"{found}; {error.detail}", error.hint)
    parts = ", ".join(f"{name} {number}" for name, number in {"python": built_on.python, **built_on.parts}.items())
    return Finding("service", f"{found}; {parts}")
