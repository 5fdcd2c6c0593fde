"""The web application: routes, error handlers, and what starts and stops with it.

Owns the order of start and stop: tables, then the supervisor; the supervisor, then the connections.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Protocol

from anyio import CapacityLimiter
from fastapi import FastAPI
from fastapi.concurrency import run_in_threadpool
from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service import dashboard
from service.api import (
    best,
    catalog,
    cluster,
    docs,
    errors,
    events,
    health,
    once,
    optuna_pages,
    paper,
    results,
    runs,
    signin,
    studies,
    tokens,
    trials,
)
from service.api import metrics as metrics_route
from service.api.body import N_CHECKS, BodyLimit
from service.api.etag import ETags
from service.api.openapi import describe
from service.api.optuna_pages import OptunaPages
from service.api.shared import SharedReads
from service.database import events as database_events
from service.database import idempotency
from service.database.engine import make_engine
from service.database.errors import DatabaseFileError, DatabaseUnavailableError
from service.database.idempotency import AnsweredBeforeError
from service.database.schema import prepare
from service.events.feed import Feed, SqlSource
from service.metrics import Metrics
from service.models import NodeView
from service.security import protect
from service.settings import Settings, make_home

log = logging.getLogger(__name__)

PRUNE_EVERY_S = 60.0
DESCRIPTION = "Hyperparameter search for comparing optimizers: AdmetaR, AdmetaS and the baselines."


class StudySupervisor(Protocol):
    """What the application needs of the supervisor, which starts drivers for studies."""

    def start(self) -> None:
        """Begin to look for studies to run; returns at once."""
        ...

    def stop(self) -> None:
        """Stop looking, leave studies resumable, end every process that was started."""
        ...

    def ray_status(self) -> str:
        """How Ray is, in words: "ok", "starting", or what is wrong."""
        ...

    def needs_new_process(self) -> bool:
        """Whether studies can go on only after the service was started anew: its own Ray was lost."""
        ...

    def fault(self) -> DatabaseFileError | None:
        """Why the service must stop: its database file was deleted, replaced or damaged. None where it need not."""
        ...

    def nodes(self) -> list[NodeView]:
        """The machines of the Ray that studies run on; asked only while its status is "ok"."""
        ...


def create_app(settings: Settings, *, supervisor: StudySupervisor | None = None) -> FastAPI:
    """The application on these settings.

    Args:
        settings: where database, checkpoints and data lie.
        supervisor: what runs the studies; by default `service.ray.supervisor.Supervisor`, over Ray.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        make_home(settings.home)
        await run_in_threadpool(prepare, settings.database_url)
        engine = make_engine(settings.database_url)
        app.state.engine = engine
        app.state.feed = Feed(SqlSource(engine))
        metrics.followers.set_function(lambda: app.state.feed.n_followers)
        app.state.supervisor = supervisor or _ray_supervisor(settings)
        await run_in_threadpool(app.state.supervisor.start)
        pruning = asyncio.create_task(_prune_regularly(engine))
        try:
            yield
        finally:
            pruning.cancel()
            app.state.feed.close()
            await run_in_threadpool(app.state.supervisor.stop)
            engine.dispose()

    app = FastAPI(
        title="admeta-search",
        version=version("admeta-search"),
        description=DESCRIPTION,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
    )
    metrics = Metrics(lambda: app.state.engine)
    app.state.settings, app.state.metrics = settings, metrics
    app.state.body_checks = CapacityLimiter(N_CHECKS)
    errors.install(app)
    app.add_exception_handler(AnsweredBeforeError, once.replay)  # type: ignore[arg-type]
    for module in (
        studies,
        trials,
        runs,
        results,
        events,
        best,
        catalog,
        paper,
        cluster,
        tokens,
        health,
        metrics_route,
        docs,
        signin,
        optuna_pages,
        dashboard,
    ):
        app.include_router(module.router)
    app.openapi = describe(app)  # type: ignore[method-assign]
    app.add_middleware(OptunaPages)
    app.add_middleware(SharedReads)
    app.add_middleware(ETags)
    app.add_middleware(BodyLimit, max_bytes=settings.quotas.max_body_bytes)
    app.add_middleware(HeadAsGet)
    protect(app, settings, metrics)
    return app


def _ray_supervisor(settings: Settings) -> StudySupervisor:
    from service.ray.supervisor import Supervisor  # brings Ray

    return Supervisor(settings)


async def _prune_regularly(engine: Engine) -> None:
    """Delete old events and old answers once a minute, until cancelled. Several services may do it."""
    while True:
        await asyncio.sleep(PRUNE_EVERY_S)
        try:
            n = await run_in_threadpool(database_events.prune, engine)
            await run_in_threadpool(idempotency.forget, engine)
        except (SQLAlchemyError, DatabaseUnavailableError) as error:
            log.warning("old events are not deleted now, the database does not answer: %s", type(error).__name__)
        else:
            if n:
                log.info("deleted %d old events", n)


class HeadAsGet:
    """ASGI middleware: HEAD is answered wherever GET is, without the body."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return

        async def without_body(message: Message) -> None:
            if message["type"] == "http.response.body":
                message = {**message, "body": b""}
            await send(message)

        await self._app({**scope, "method": "GET", "admeta.head": True}, receive, without_body)
