"""Commands that run the service: serve, demo."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from service.settings import DEFAULT_HOST, DEFAULT_PORT


def serve(
    home: Annotated[
        Path | None, typer.Option(help="Folder of database, checkpoints, logs.  [env: ADMETA_HOME; default: ~/.admeta]")
    ] = None,
    database_url: Annotated[
        str | None,
        typer.Option(help="SQLite or PostgreSQL.  [env: ADMETA_DATABASE_URL; default: SQLite in the home]"),
    ] = None,
    ray_address: Annotated[
        str | None, typer.Option(help="A Ray cluster.  [env: ADMETA_RAY_ADDRESS; default: Ray on this machine]")
    ] = None,
    storage: Annotated[
        str | None,
        typer.Option(help="Checkpoints: a folder or s3://….  [env: ADMETA_STORAGE; default: HOME/checkpoints]"),
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="Folder of data sets.  [env: ADMETA_DATA; default: HOME/data]")
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on; loopback only.")] = DEFAULT_HOST,
    port: Annotated[int, typer.Option(help="Port to listen on; 0: any free one.")] = DEFAULT_PORT,
) -> None:
    """Run the service until Ctrl-C. Studies that were running go on at the next start."""
    from service import server, settings

    server.run(
        settings.load(
            os.environ,
            home=home,
            database_url=database_url,
            ray_address=ray_address,
            storage=storage,
            data=data,
            host=host,
            port=port,
        )
    )


def demo(
    home: Annotated[Path, typer.Option(help="Folder for everything the demo writes.")] = Path(".demo"),
    study: Annotated[Path | None, typer.Option(help="Another study to run.  [default: studies/digits.yaml]")] = None,
) -> None:
    """Run a real study on this machine in a few minutes: service, search, comparison, best settings."""
    from service import demo

    raise typer.Exit(demo.run(home=home, study_file=study))


def version() -> None:
    """Show the version."""
    from importlib import metadata

    typer.echo(metadata.version("admeta-search"))
