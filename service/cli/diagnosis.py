"""The command that looks for what is wrong: doctor."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer


def doctor(
    home: Annotated[Path | None, typer.Option(help="As for serve.  [env: ADMETA_HOME]")] = None,
    database_url: Annotated[str | None, typer.Option(help="As for serve.  [env: ADMETA_DATABASE_URL]")] = None,
    ray_address: Annotated[str | None, typer.Option(help="As for serve.  [env: ADMETA_RAY_ADDRESS]")] = None,
    storage: Annotated[str | None, typer.Option(help="As for serve.  [env: ADMETA_STORAGE]")] = None,
    data: Annotated[Path | None, typer.Option(help="As for serve.  [env: ADMETA_DATA]")] = None,
) -> None:
    """Check what the service rests on, and say what to do. Exits with 1 where something is wrong."""
    from service import settings
    from service.doctor import examine

    chosen = settings.load(
        os.environ, home=home, database_url=database_url, ray_address=ray_address, storage=storage, data=data
    )
    findings = examine(chosen)
    for finding in findings:
        typer.echo(f"{'ok  ' if not finding.advice else 'FAIL'}  {finding.name:<9} {finding.found}")
        if finding.advice:
            typer.echo(f"      {'':<9} → {finding.advice}")
    raise typer.Exit(any(finding.advice for finding in findings))
