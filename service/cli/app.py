"""The list of commands, and what becomes of errors: a message, a hint, and an exit code (`service.cli.exits`)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import typer

from service.cli import (
    catalog,
    database,
    diagnosis,
    events,
    paper,
    results,
    serving,
    studies,
    submitting,
    tokens,
    trials,
)
from service.cli.exits import FAILED, INTERRUPTED, UNREACHABLE
from service.errors import ClientError, ServiceError

_GROUPS: dict[str, dict[str, Callable[..., Any]]] = {
    "Studies": {
        "submit": submitting.submit,
        "list": studies.list_studies,
        "show": studies.show,
        "watch": submitting.watch,
        "events": events.events,
        "pause": studies.pause,
        "resume": studies.resume,
        "cancel": studies.cancel,
        "clone": submitting.clone,
        "delete": studies.delete,
    },
    "Results": {
        "compare": results.compare,
        "best": results.best,
        "trials": trials.trials,
        "runs": trials.runs,
        "run": trials.run,
        "logs": trials.logs,
        "importance": results.importance,
        "export": results.export,
    },
    "What there is": {
        "tasks": catalog.tasks,
        "optimizers": catalog.optimizers,
        "cluster": catalog.cluster,
    },
    "The service": {
        "serve": serving.serve,
        "worker": serving.worker,
        "demo": serving.demo,
        "doctor": diagnosis.doctor,
        "version": serving.version,
    },
}
_EPILOG = (
    "Exit codes: 0 done; 1 refused, or the study did not complete; 2 wrong usage; 3 no service answers; 4 --timeout "
    "ran out; 130 Ctrl-C. ADMETA_URL and ADMETA_TOKEN say which service, and who asks."
)
_SERVER_HINT = "This is the client alone; install what a service needs: pip install 'admeta-search[server]'."

_COMMANDS_INSTEAD = {
    "invalid_definition": "Correct it and submit again; `admeta optimizers` and `admeta tasks` list what there is.",
    "no_result": "Submit a study with both, or wait for its first trial: `admeta list`.",
    "paper_study_not_found": "`admeta paper studies` lists them.",
    "paper_table_not_found": "`admeta paper tables` lists them.",
    "run_not_found": "`admeta runs STUDY` lists a study's runs with their ids.",
    "study_conflict": "`admeta show STUDY` shows the study as it is.",
    "study_not_found": "`admeta list` lists the studies there are.",
    "token_not_found": "`admeta token list` lists the tokens with their ids.",
    "trial_not_found": "`admeta trials STUDY` lists a study's trials.",
    "unknown_optimizer": "`admeta optimizers` lists the optimizers.",
    "unknown_task": "`admeta tasks` lists the tasks.",
}
"""Hints by an error's name, for those of the service that name a REST address."""


def build() -> typer.Typer:
    """The typer application."""
    app = typer.Typer(
        name="admeta",
        help="Hyperparameter search for comparing optimizers.",
        epilog=_EPILOG,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    for group, commands in _GROUPS.items():
        for name, command in commands.items():
            app.command(name, rich_help_panel=group)(command)
    app.add_typer(paper.build(), name="paper", rich_help_panel="Results")
    app.add_typer(tokens.build(), name="token", rich_help_panel="The service")
    app.add_typer(database.build(), name="db", rich_help_panel="The service")
    return app


def run(arguments: Sequence[str]) -> int:
    """Run one command; returns the exit code."""
    try:
        build()(args=list(arguments), prog_name="admeta")
    except ServiceError as error:
        report(error)
        return UNREACHABLE if isinstance(error, ClientError) and error.status is None else FAILED
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in sys.stdlib_module_names | {"admeta", "search", "service", "tasks"}:
            raise
        report(ServiceError(f"this command needs the package '{error.name}'.", hint=_SERVER_HINT))
        return FAILED
    except BrokenPipeError:  # `admeta trials x | head`
        return 0
    except KeyboardInterrupt:
        return INTERRUPTED
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0
    return 0


def report(error: ServiceError) -> None:
    """Write an error and its hint to stderr."""
    fields = error.fields if isinstance(error, ClientError) else ()
    if fields:
        typer.echo(f"error: {len(fields)} {'rules are' if len(fields) > 1 else 'rule is'} broken", err=True)
        for field in fields:
            typer.echo(f"  {field.field} = {field.value!r}: {field.rule}", err=True)
    else:
        typer.echo(f"error: {error.detail}", err=True)
    typer.echo(f"hint: {_hint(error)}", err=True)


def _hint(error: ServiceError) -> str:
    if isinstance(error, ClientError) and "/v1/" in error.hint:
        return _COMMANDS_INSTEAD.get(error.error, error.hint)
    return error.hint
