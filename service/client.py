"""The Python client under its older name; `admeta.client` is the same."""

from admeta.client import TERMINAL_STATES, AsyncClient, AsyncSubmission, Client, ClientError, Submission

__all__ = ["TERMINAL_STATES", "AsyncClient", "AsyncSubmission", "Client", "ClientError", "Submission"]
