"""The Python client: the REST API as typed calls, blocking or for asyncio.

    from admeta.client import Client

    with Client() as client:
        client.submit(definition).wait(progress=True)
        best = client.best(task="digits", optimizer="admetar")
    optimizer = AdmetaR(model.parameters(), **best.params)

Answers are the models of `admeta.client.models`. Needs the base installation alone: no torch, Ray or Optuna, and no
other package of the project. The classes are imported on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from admeta.client.asynchronous.client import AsyncClient, AsyncSubmission
    from admeta.client.blocking.client import Client, Submission
    from admeta.client.errors import ClientError
    from admeta.client.exchange import to_dataframe
    from admeta.client.states import TERMINAL_STATES

__all__ = ["TERMINAL_STATES", "AsyncClient", "AsyncSubmission", "Client", "ClientError", "Submission", "to_dataframe"]

_HOME = {
    "TERMINAL_STATES": "states",
    "AsyncClient": "asynchronous.client",
    "AsyncSubmission": "asynchronous.client",
    "Client": "blocking.client",
    "ClientError": "errors",
    "Submission": "blocking.client",
    "to_dataframe": "exchange",
}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
