"""What stands between the network and the routes, in order, and the refusal to stand open.

Owns the order of the middlewares and the check at start; each layer is a module of `service.api`.
"""

from __future__ import annotations

import logging

from fastapi import FastAPI
from sqlalchemy import Engine

from service.api.access import Access
from service.api.attempts import FailureLimit
from service.api.compression import Compression
from service.api.gate import Gate
from service.api.headers import SecurityHeaders
from service.api.hosts import OwnPagesOnly
from service.api.observation import Observation
from service.dashboard.pages import FailurePages
from service.database import tokens
from service.database.engine import make_single_engine
from service.errors import SettingsError
from service.metrics import Metrics
from service.settings import Settings, is_loopback

log = logging.getLogger(__name__)


def protect(app: FastAPI, settings: Settings, metrics: Metrics) -> None:
    """Put the layers around an application; the last one added meets a request first."""
    app.state.gate = Gate(FailureLimit(), on_failure=metrics.wrong_tokens.inc)
    app.add_middleware(Access, required=settings.tokens_required, gate=app.state.gate)
    app.add_middleware(OwnPagesOnly, loopback_only=not settings.tokens_required)
    app.add_middleware(FailurePages)
    app.add_middleware(SecurityHeaders)
    app.add_middleware(Observation, latency=metrics.requests)
    app.add_middleware(Compression)


def check_start(settings: Settings) -> None:
    """Refuse to listen where others can reach the service while nobody could be let in. The tables must exist.

    Raises:
        SettingsError: the address is not loopback, and no admin token works; or the one in the settings can't be used.
    """
    if is_loopback(settings.host) and settings.admin_token is None:
        return
    engine = make_single_engine(settings.database_url)
    try:
        if settings.admin_token is not None:
            _adopt(engine, settings.admin_token)
        if is_loopback(settings.host):
            return
        _check_admin(engine, settings)
    finally:
        engine.dispose()
    log.warning("serving %s without encryption: tokens can be read on the way; put a TLS proxy in front", settings.host)


def _adopt(engine: Engine, token: str) -> None:
    try:
        tokens.adopt_admin(engine, token)
    except ValueError as error:
        raise SettingsError(
            f"the token in ADMETA_ADMIN_TOKEN_FILE: {error}.", hint="Make one: `openssl rand -hex 32`."
        ) from None


def _check_admin(engine: Engine, settings: Settings) -> None:
    if not tokens.has_admin(engine):
        raise SettingsError(
            f"host '{settings.host}' can be reached from other machines, and there is no admin token yet "
            f"in {settings.safe_database_url}.",
            hint="Make one, with the same --home or --database-url: `admeta token create --scope admin NAME`. "
            "Or serve on 127.0.0.1 and forward the port (ssh -L).",
        )
