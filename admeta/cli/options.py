"""Options and exit codes that commands share, and the names that a shell completes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import StrEnum
from itertools import islice
from pathlib import Path
from typing import Annotated

import typer

from admeta.client import Client
from admeta.client.errors import ClientError

FAILED = 1
"""The service refused the request, the study did not complete, or a check failed."""
UNREACHABLE = 3
"""No service answers."""
EXPIRED = 4
"""--timeout passed; the study continues."""
INTERRUPTED = 130
"""Ctrl-C."""

_COMPLETION_PATIENCE_S = 1.0
_MAX_COMPLETED = 100


class Output(StrEnum):
    """How a result is written."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


def completed(names: Callable[[Client], Iterable[str]]) -> Callable[[str], list[str]]:
    """The names that a shell offers to complete a word; none where the service does not answer within a second."""

    def complete(incomplete: str) -> list[str]:
        try:
            with Client(timeout_s=_COMPLETION_PATIENCE_S) as client:
                return [name for name in islice(names(client), _MAX_COMPLETED) if name.startswith(incomplete)]
        except ClientError:
            return []

    return complete


study_names = completed(lambda client: (study.name for study in client.studies(limit=_MAX_COMPLETED)))
task_names = completed(lambda client: (task.name for task in client.tasks()))
optimizer_names = completed(lambda client: (optimizer.name for optimizer in client.optimizers()))

Url = Annotated[str | None, typer.Option("--url", help="The service's address.  [env: ADMETA_URL]", metavar="URL")]
OutputOption = Annotated[Output, typer.Option("--output", "-o", help="Output format.")]
StudyArgument = Annotated[
    str, typer.Argument(help="A study's name or id.", metavar="STUDY", autocompletion=study_names)
]
Label = Annotated[str | None, typer.Option("--optimizer", help="Only those of this optimizer's search (its label).")]
Home = Annotated[Path | None, typer.Option(help="The service's home.  [env: ADMETA_HOME; default: ~/.admeta]")]
DatabaseUrl = Annotated[
    str | None, typer.Option(help="The service's database.  [env: ADMETA_DATABASE_URL; default: SQLite in the home]")
]
Changes = Annotated[
    list[str] | None,
    typer.Option(
        "--set", help="Change a value: optimizers.0.space.lr.low=1e-4. May be repeated.", metavar="PATH=VALUE"
    ),
]


def parse_trial(text: str) -> tuple[str, int]:
    """The label and the number in `admetar/3`."""
    label, slash, number = text.rpartition("/")
    if not slash or not label or not number.isdecimal():
        raise typer.BadParameter(f"'{text}' must be OPTIMIZER/NUMBER, for example admetar/3", param_hint="TRIAL")
    return label, int(number)
