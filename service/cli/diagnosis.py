"""The command that looks for what is wrong: doctor."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from service.cli.exits import FAILED
from service.cli.options import Output, OutputOption, Url
from service.cli.writing import emit_plain


def doctor(
    home: Annotated[Path | None, typer.Option(help="As for serve.  [env: ADMETA_HOME]")] = None,
    database_url: Annotated[str | None, typer.Option(help="As for serve.  [env: ADMETA_DATABASE_URL]")] = None,
    ray_address: Annotated[str | None, typer.Option(help="As for serve.  [env: ADMETA_RAY_ADDRESS]")] = None,
    storage: Annotated[str | None, typer.Option(help="As for serve.  [env: ADMETA_STORAGE]")] = None,
    data: Annotated[Path | None, typer.Option(help="As for serve.  [env: ADMETA_DATA]")] = None,
    url: Url = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Check what everything rests on, and say what to do. Exits with 1 where something is wrong.

    Versions, and the service at --url; where a service can run, also its home, database, Ray, cards, storage and data.
    """
    from service.doctor import client

    findings = client.examine(url)
    if client.can_serve():
        from service import settings
        from service.doctor import server

        findings += server.examine(
            settings.load(
                os.environ, home=home, database_url=database_url, ray_address=ray_address, storage=storage, data=data
            )
        )
    if output is not Output.TABLE:
        emit_plain([{**asdict(finding), "ok": not finding.advice} for finding in findings], output)
    else:
        for finding in findings:
            typer.echo(f"{'ok  ' if not finding.advice else 'FAIL'}  {finding.name:<9} {finding.found}")
            if finding.advice:
                typer.echo(f"      {'':<9} → {finding.advice}")
    if any(finding.advice for finding in findings):
        raise typer.Exit(FAILED)
