"""Options and exit codes that commands share, and the names that a shell completes."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from admeta.client.errors import ClientError

if TYPE_CHECKING:
    from admeta.client import Client

FAILED = 1
"""The service refused the request, the study did not complete, or a check failed."""
UNREACHABLE = 3
"""No service answers."""
EXPIRED = 4
"""--timeout passed; the study continues."""
ALL_FAILED = 5
"""The study is COMPLETED, but all trials of an optimizer failed."""
INTERRUPTED = 130
"""Ctrl-C."""

_COMPLETION_TIMEOUT_S = 1.0
_MAX_COMPLETED = 100
_MAX_SUGGESTED = 300


class Output(StrEnum):
    """How a result is written."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


def completed(names: Callable[[Client, Mapping[str, Any], str], Iterable[str]]) -> Callable[..., list[str]]:
    """The names that a shell offers to complete a word; none where the service does not answer within a second.

    Args:
        names: gives the names that the service knows; it is passed the arguments that are already on the line, and
            what is typed of the word.
    """

    def complete(ctx: typer.Context, incomplete: str) -> list[str]:
        from admeta.client import Client

        try:
            with Client(ctx.params.get("url"), timeout_s=_COMPLETION_TIMEOUT_S) as client:
                line = dict(ctx.params)
                if line.get("study") is None and ctx.args:  # an option without its value ends click's parsing
                    line["study"] = ctx.args[0]
                found = names(client, line, incomplete)
                return list(islice((name for name in found if name.startswith(incomplete)), _MAX_COMPLETED))
        except ClientError:
            return []

    return complete


study_names = completed(
    lambda client, _, typed: (study.name for study in client.studies(name=typed or None, limit=_MAX_SUGGESTED))
)
task_names = completed(lambda client, *_: (task.name for task in client.tasks()))
optimizer_names = completed(lambda client, *_: (optimizer.name for optimizer in client.optimizers()))
trial_names = completed(
    lambda client, line, typed: (
        f"{trial.label}/{trial.number}"
        for trial in client.trials(line["study"], label=typed.rpartition("/")[0] or None, limit=_MAX_SUGGESTED)
    )
)


@contextmanager
def connect(url: str | None) -> Iterator[Client]:
    """A client for a command. An unknown study becomes an error that suggests the name closest to it."""
    from admeta.client import Client  # httpx and the models of answers take 0.1 s, and `--help` needs none

    with Client(url) as client:
        try:
            yield client
        except ClientError as error:
            if error.error == "study_not_found":
                error.hint = _suggest_study(client, error)
            raise


def _suggest_study(client: Client, error: ClientError) -> str:
    named = re.search("'(.*)'", error.detail)
    try:
        known = [study.name for study in client.studies(limit=_MAX_SUGGESTED)]
    except ClientError:
        return error.hint
    nearest = difflib.get_close_matches(named[1] if named else "", known, n=1)
    return f"Did you mean '{nearest[0]}'? `admeta list` lists the studies." if nearest else error.hint


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
