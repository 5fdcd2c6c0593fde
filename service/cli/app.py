"""The list of commands, and what becomes of errors: a message, a hint, and an exit code.

Exit codes: 0 done; 1 the service refused, or the study did not complete; 2 wrong usage; 3 no service answers;
130 interrupted.
"""

from __future__ import annotations

from collections.abc import Sequence

import typer

from service.cli import catalog, database, diagnosis, events, results, serving, studies, tokens
from service.errors import ClientError, ServiceError

FAILED = 1
UNREACHABLE = 3


def build() -> typer.Typer:
    """The typer application."""
    app = typer.Typer(
        name="admeta",
        help="Hyperparameter search for comparing optimizers.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    for command in (
        serving.serve,
        studies.submit,
        studies.status,
        studies.watch,
        events.events,
        studies.trials,
        studies.compare,
        results.export,
        results.importance,
        studies.cancel,
        studies.pause,
        studies.resume,
        studies.clone,
        studies.delete,
        catalog.best,
        catalog.tasks,
        catalog.optimizers,
        catalog.cluster,
        serving.worker,
        serving.demo,
        diagnosis.doctor,
        serving.version,
    ):
        app.command()(command)
    app.add_typer(tokens.build(), name="token")
    app.add_typer(database.build(), name="db")
    return app


def run(arguments: Sequence[str]) -> int:
    """Run one command; returns the exit code."""
    try:
        build()(args=list(arguments), prog_name="admeta")
    except ServiceError as error:
        report(error)
        return UNREACHABLE if isinstance(error, ClientError) and error.status is None else FAILED
    except BrokenPipeError:  # `admeta trials x | head`
        return 0
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0
    return 0


def report(error: ServiceError) -> None:
    """Write an error and its hint to stderr."""
    fields = error.fields if isinstance(error, ClientError) else ()
    if fields:
        typer.echo(f"error: the study breaks {len(fields)} rule{'s' if len(fields) > 1 else ''}", err=True)
        for field in fields:
            typer.echo(f"  {field.field} = {field.value!r}: {field.rule}", err=True)
    else:
        typer.echo(f"error: {error.detail}", err=True)
    typer.echo(f"hint: {error.hint}", err=True)
