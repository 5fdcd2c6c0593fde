"""Commands that run the service or a part of it: serve, worker, demo."""

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
    runtime_env: Annotated[
        Path | None,
        typer.Option(help="File in JSON or YAML: what Ray prepares on its nodes.  [env: ADMETA_RUNTIME_ENV]"),
    ] = None,
    storage: Annotated[
        str | None,
        typer.Option(help="Checkpoints: a folder, s3://… or gs://….  [env: ADMETA_STORAGE; default: HOME/checkpoints]"),
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="Folder of data sets.  [env: ADMETA_DATA; default: HOME/data]")
    ] = None,
    allow_imports: Annotated[
        str | None,
        typer.Option(
            help="Packages or modules whose objects studies may name, with commas between them.  [env: "
            "ADMETA_ALLOW_IMPORTS; default: torch.optim,pytorch_optimizer]"
        ),
    ] = None,
    code: Annotated[
        Path | None,
        typer.Option(help="Folder of your own modules, which Ray sends to the workers.  [env: ADMETA_CODE]"),
    ] = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on. Any but loopback needs access tokens: `admeta token create`.")
    ] = DEFAULT_HOST,
    port: Annotated[int, typer.Option(help="Port to listen on; 0: any free one.")] = DEFAULT_PORT,
    root_path: Annotated[
        str | None,
        typer.Option(help="Path of the service behind a proxy, for example /admeta.  [env: ADMETA_ROOT_PATH]"),
    ] = None,
    require_token: Annotated[
        bool | None,
        typer.Option("--require-token", help="Ask for tokens on loopback too.  [env: ADMETA_REQUIRE_TOKEN]"),
    ] = None,
    log_format: Annotated[
        str | None,
        typer.Option(help="text or json (one object a line).  [env: ADMETA_LOG_FORMAT; default: text]"),
    ] = None,
    max_queued: Annotated[
        int | None, typer.Option(help="Most studies that wait.  [env: ADMETA_MAX_QUEUED; default: 1000]")
    ] = None,
    max_running: Annotated[
        int | None, typer.Option(help="Most studies that run at the same time.  [env: ADMETA_MAX_RUNNING; default: 4]")
    ] = None,
    max_trials: Annotated[
        int | None, typer.Option(help="Most trials of one study.  [env: ADMETA_MAX_TRIALS; default: 100000]")
    ] = None,
    max_body_bytes: Annotated[
        int | None, typer.Option(help="Largest body of a request.  [env: ADMETA_MAX_BODY_BYTES; default: 1048576]")
    ] = None,
) -> None:
    """Run the service until Ctrl-C. Studies that are running continue at the next start."""
    from service import server, settings

    server.run(
        settings.load(
            os.environ,
            home=home,
            database_url=database_url,
            ray_address=ray_address,
            runtime_env_file=runtime_env,
            storage=storage,
            data=data,
            allow_imports=allow_imports,
            code=code,
            host=host,
            port=port,
            root_path=root_path,
            require_token=require_token,
            log_format=log_format,
            max_queued=max_queued,
            max_running=max_running,
            max_trials=max_trials,
            max_body_bytes=max_body_bytes,
        )
    )


def worker(
    address: Annotated[
        str, typer.Option(help="Ray's head, host:port.  [env: ADMETA_RAY_ADDRESS]", envvar="ADMETA_RAY_ADDRESS")
    ],
    cpus: Annotated[int | None, typer.Option(min=0, help="CPUs for trials.  [default: all]")] = None,
    gpus: Annotated[int | None, typer.Option(min=0, help="Cards for trials.  [default: all]")] = None,
) -> None:
    """Add this machine to a cluster until Ctrl-C. Its trials then continue on other machines."""
    from service.ray import node

    raise typer.Exit(node.work(address, cpus=cpus, gpus=gpus))


def demo(
    home: Annotated[Path, typer.Option(help="Folder for everything the demo writes.")] = Path(".demo"),
    study: Annotated[Path | None, typer.Option(help="Another study to run.  [default: studies/digits.yaml]")] = None,
) -> None:
    """Run a real study on this machine in a few minutes: service, search, comparison, best settings."""
    from service import demo

    raise typer.Exit(demo.run(home=home, study_file=study))
