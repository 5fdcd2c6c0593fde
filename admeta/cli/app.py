"""The list of commands, and how errors end them: a message, a hint, and an exit code."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from admeta.cli.options import FAILED, INTERRUPTED, UNREACHABLE
from admeta.cli.output import say
from admeta.client.errors import ClientError, ServiceError

_COMMANDS: dict[str, dict[str, str]] = {
    "Studies": {
        "submit": "admeta.cli.studies:submit",
        "list": "admeta.cli.studies:list_studies",
        "show": "admeta.cli.studies:show",
        "watch": "admeta.cli.studies:watch",
        "events": "admeta.cli.runs:events",
        "pause": "admeta.cli.studies:pause",
        "resume": "admeta.cli.studies:resume",
        "annotate": "admeta.cli.studies:annotate",
        "cancel": "admeta.cli.studies:cancel",
        "clone": "admeta.cli.studies:clone",
        "extend": "admeta.cli.studies:extend",
        "delete": "admeta.cli.studies:delete",
    },
    "Results": {
        "compare": "admeta.cli.results:compare",
        "best": "admeta.cli.results:best",
        "recommend": "admeta.cli.results:recommend",
        "profile": "service.cli.profile:profile",
        "trials": "admeta.cli.runs:trials",
        "runs": "admeta.cli.runs:runs",
        "run": "admeta.cli.runs:run",
        "logs": "admeta.cli.runs:logs",
        "importance": "admeta.cli.results:importance",
        "scale": "admeta.cli.results:scale",
        "sensitivity": "admeta.cli.results:sensitivity",
        "pareto": "admeta.cli.results:pareto",
        "export": "admeta.cli.results:export",
    },
    "Tasks, optimizers, machines": {
        "tasks": "admeta.cli.results:tasks",
        "optimizers": "admeta.cli.results:optimizers",
        "cluster": "admeta.cli.results:cluster",
    },
    "The service": {
        "serve": "service.cli.serving:serve",
        "worker": "service.cli.serving:worker",
        "demo": "service.cli.serving:demo",
        "doctor": "admeta.cli.doctor:doctor",
        "version": "admeta.cli.doctor:version",
    },
}
"""Commands by panel of `--help`, each with its function. Only the module of the command that is called is imported."""

_GROUPS: dict[str, dict[str, str]] = {
    "Results": {"paper": "admeta.cli.results:build_paper"},
    "Tasks, optimizers, machines": {"new": "admeta.cli.new:build"},
    "The service": {"token": "service.cli.database:build_tokens", "db": "service.cli.database:build_tables"},
}
"""Groups of commands by panel, each with the function that makes its typer application."""

_EPILOG = (
    "Exit codes: 0 success; 1 the request was refused, or the study did not complete; 2 wrong usage; 3 no service "
    "answers; 4 --timeout passed; 5 the study completed, but all trials of an optimizer failed; 130 Ctrl-C. ADMETA_URL "
    "is the service's address, ADMETA_TOKEN the access token."
)
_SERVER_HINT = "Only the client is installed here. Install what a service needs: pip install 'admeta-search[server]'."

_COMMANDS_INSTEAD = {
    "invalid_definition": "Correct it and submit again; `admeta optimizers` and `admeta tasks` list the known names.",
    "no_result": "Submit a study of it, or wait for the first trial of one: `admeta list` shows all studies.",
    "paper_study_not_found": "`admeta paper studies` lists them.",
    "paper_table_not_found": "`admeta paper tables` lists them.",
    "run_not_found": "`admeta runs STUDY` lists a study's runs with their ids.",
    "study_conflict": "`admeta show STUDY` shows the study as it is.",
    "studies_to_compare": "Name each study once: admeta compare STUDY STUDY.",
    "study_not_found": "`admeta list` lists the studies.",
    "token_not_found": "`admeta token list` lists the tokens with their ids.",
    "trial_not_found": "`admeta trials STUDY` lists a study's trials.",
    "unknown_optimizer": "`admeta optimizers` lists the optimizers.",
    "unknown_task": "`admeta tasks` lists the tasks.",
}
"""Hints by an error's name, for errors whose own hint names a REST address."""


def build(command: str | None = None) -> typer.Typer:
    """The typer application.

    Args:
        command: the only command that will be called, so that the modules of the others need not be imported; None or
            an unknown name: all commands.
    """
    app = typer.Typer(
        name="admeta",
        help="Hyperparameter search for comparing optimizers.",
        epilog=_EPILOG,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_main)
    is_known = any(command in names for panels in (_COMMANDS, _GROUPS) for names in panels.values())
    for panel, names in _COMMANDS.items():
        for name, place in names.items():
            if name == command or not is_known:
                app.command(name, rich_help_panel=panel)(_load(place))
    for panel, names in _GROUPS.items():
        for name, place in names.items():
            if name == command or not is_known:
                app.add_typer(_load(place)(), name=name, rich_help_panel=panel)
    return app


def run(arguments: Sequence[str]) -> int:
    """Run one command; returns the exit code."""
    try:
        build(next(iter(arguments), None))(args=list(arguments), prog_name="admeta")
    except ServiceError as error:
        report(error)
        return UNREACHABLE if isinstance(error, ClientError) and error.error == "unreachable" else FAILED
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
        say(f"error: {len(fields)} {'rules are' if len(fields) > 1 else 'rule is'} broken", err=True)
        for field in fields:
            say(f"  {field.sentence(repr(field.value))}", err=True)
    else:
        say(f"error: {error.detail}", err=True)
    say(f"hint: {_hint(error)}", err=True)


def _show_version(is_asked: bool) -> None:
    if is_asked:
        from importlib import metadata

        say(metadata.version("admeta-search"))
        raise typer.Exit


def _main(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Hyperparameter search for comparing optimizers."""


def _load(place: str) -> Any:
    """The function at `module:name`.

    The four packages of the project lie in one folder. It comes first on the path, so that a folder of the user's
    with the name `service`, `search` or `tasks` does not take the place of the project's package.
    """
    root = str(Path(__file__).resolve().parents[2])
    if sys.path[0] != root:
        sys.path.insert(0, root)
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)


def _hint(error: ServiceError) -> str:
    if isinstance(error, ClientError) and "/v1/" in error.hint:
        return _COMMANDS_INSTEAD.get(error.error, error.hint)
    return error.hint
