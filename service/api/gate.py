"""Whether a token is right: asked in the database, held up after too many wrong ones.

Owns the answers 401, 403 and 429. Which requests have to bring a token is the business of `service.api.access`.
"""

from __future__ import annotations

import logging
import math
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

from fastapi.concurrency import run_in_threadpool
from sqlalchemy import Engine

from service.api.attempts import FailureLimit
from service.database import tokens
from service.models import ErrorView

log = logging.getLogger(__name__)

_MAX_KNOWN = 1000
_HOW = "Send the header 'Authorization: Bearer adm_…' (the client and `admeta` take it from ADMETA_TOKEN)."


class Refusal(NamedTuple):
    """An answer that is no."""

    status: int
    view: ErrorView
    headers: dict[str, str]


class Gate:
    """Checks tokens; one for an application.

    Args:
        limit: on wrong tokens; it does not hold up tokens that were right before.
        on_failure: called for every wrong token.
    """

    def __init__(self, limit: FailureLimit, *, on_failure: Callable[[], None]) -> None:
        self._limit = limit
        self._on_failure = on_failure
        self._known: OrderedDict[str, None] = OrderedDict()  # hashes of tokens that were right

    async def check(self, engine: Engine, token: str, *, address: str) -> tokens.Bearer | Refusal:
        """Whose token it is, or why not.

        Raises:
            DatabaseUnavailableError, SQLAlchemyError: nobody can tell.
        """
        digest = tokens.digest(token)
        wait_s = self._limit.wait_s(address)
        if wait_s > 0 and digest not in self._known:
            return self._held_up(address, wait_s)
        bearer = await run_in_threadpool(tokens.find_bearer, engine, token)
        if bearer is None:
            self._known.pop(digest, None)
            self._failed(address)
            return unauthorized(
                "token_invalid",
                "the access token is unknown, revoked or expired.",
                hint="`admeta token list` shows the tokens that work; an admin makes new ones: `admeta token create`.",
                challenge=', error="invalid_token"',
            )
        self._known[digest] = None
        if len(self._known) > _MAX_KNOWN:
            self._known.popitem(last=False)
        return bearer

    def _failed(self, address: str) -> None:
        self._on_failure()
        n = self._limit.count(address)
        if n in (1, self._limit.max_failures):
            log.warning("wrong access token from %s (%d within %.0f s)", address, n, self._limit.window_s)

    def _held_up(self, address: str, wait_s: float) -> Refusal:
        seconds = math.ceil(wait_s)
        detail = (
            f"{self._limit.max_failures} wrong access tokens came from {address} within {self._limit.window_s:.0f} s; "
            f"it has to wait {seconds} s."
        )
        view = ErrorView(error="too_many_failures", detail=detail, hint="Correct the token, then try again.")
        return Refusal(429, view, {"Retry-After": str(seconds)})


def missing() -> Refusal:
    """401 for a request without a token."""
    return unauthorized("token_missing", "this service wants an access token, and none was sent.", hint=_HOW)


def unauthorized(error: str, detail: str, *, hint: str, challenge: str = "") -> Refusal:
    """401, with the challenge that HTTP asks for."""
    view = ErrorView(error=error, detail=detail, hint=hint)
    return Refusal(401, view, {"WWW-Authenticate": f'Bearer realm="admeta"{challenge}'})
