"""The Python client: the REST API as typed calls, blocking or for asyncio.

    from service.client import Client

    with Client() as client:
        client.submit(definition).wait(progress=True)
        best = client.best(task="digits", optimizer="admetar")
    optimizer = AdmetaR(model.parameters(), **best.params)

Answers are the models of `service.models`. Imports neither the server nor torch, Ray or Optuna.
"""

from __future__ import annotations

from service.client.asynchronous import AsyncClient, AsyncSubmission
from service.client.blocking import Client, Submission
from service.client.verbs import TERMINAL_STATES
from service.errors import ClientError

__all__ = ["TERMINAL_STATES", "AsyncClient", "AsyncSubmission", "Client", "ClientError", "Submission"]
