"""The web application: routes, error handlers, and what starts and stops with it.

Owns the order of start and stop: tables, then the supervisor; the supervisor, then the connections.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import TYPE_CHECKING

from anyio import CapacityLimiter
from fastapi import FastAPI
from fastapi.concurrency import run_in_threadpool
from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from service import dashboard
from service.api import (
    auth,
    catalog,
    errors,
    events,
    health,
    html_pages,
    optuna_pages,
    requests,
    results,
    studies,
)
from service.api.auth import Access, FailureLimit, TokenCheck
from service.api.health import Metrics
from service.api.middleware import (
    AddSecurityHeaders,
    BodyLimit,
    Compression,
    ETags,
    HeadAsGet,
    Observation,
    OwnPagesOnly,
    RootPath,
    SharedReads,
)
from service.api.openapi import describe
from service.api.optuna_pages import OptunaPages
from service.dashboard.pages import FailurePages
from service.database import events as stored_events
from service.database import idempotency
from service.database.engine import make_engine
from service.database.errors import DatabaseUnavailableError
from service.database.idempotency import AnsweredBeforeError
from service.database.schema import prepare
from service.event_feed import EventSource, Feed
from service.settings import Settings, make_home

if TYPE_CHECKING:
    from service.ray.supervisor import Supervisor

log = logging.getLogger(__name__)

DESCRIPTION = "Hyperparameter search for comparing optimizers: AdmetaR, AdmetaS and the baselines."


def create_app(settings: Settings, *, supervisor: Supervisor | None = None) -> FastAPI:
    """The application on these settings.

    Args:
        settings: where database, checkpoints and data are.
        supervisor: what runs the studies; by default `service.ray.supervisor.Supervisor`, over Ray.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        make_home(settings.home)
        await run_in_threadpool(prepare, settings.database_url)
        engine = make_engine(settings.database_url)
        app.state.engine = engine
        app.state.feed = Feed(EventSource(engine))
        metrics.followers.set_function(lambda: app.state.feed.n_followers)
        if supervisor is None:
            from service.ray.supervisor import Supervisor  # brings Ray

        app.state.supervisor = supervisor or Supervisor(settings)
        await run_in_threadpool(app.state.supervisor.start)
        deleting = asyncio.create_task(_delete_old(engine))
        try:
            yield
        finally:
            deleting.cancel()
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
        servers=[{"url": settings.root_path}] if settings.root_path else None,
    )
    metrics = Metrics(lambda: app.state.engine)
    app.state.settings, app.state.metrics = settings, metrics
    app.state.body_checks = CapacityLimiter(requests.N_CHECKS)
    errors.install(app)
    app.add_exception_handler(AnsweredBeforeError, requests.replay)  # type: ignore[arg-type]
    for router in (
        studies.router,
        studies.trials,
        studies.runs,
        results.router,
        events.router,
        results.best,
        catalog.router,
        results.paper,
        health.cluster,
        auth.router,
        health.router,
        html_pages.router,
        optuna_pages.router,
        dashboard.router,
    ):
        app.include_router(router)
    app.openapi = describe(app, open_paths=auth.OPEN_PATHS)  # type: ignore[method-assign]
    _add_middleware(app, settings, metrics)
    return app


def _add_middleware(app: FastAPI, settings: Settings, metrics: Metrics) -> None:
    """Put the layers around the routes; the last one added meets a request first."""
    app.state.token_check = TokenCheck(FailureLimit(), on_failure=metrics.wrong_tokens.inc)
    app.add_middleware(OptunaPages)
    app.add_middleware(SharedReads)
    app.add_middleware(ETags)
    app.add_middleware(BodyLimit, max_bytes=settings.quotas.max_body_bytes)
    app.add_middleware(HeadAsGet)
    app.add_middleware(Access, required=settings.tokens_required, check=app.state.token_check)
    app.add_middleware(OwnPagesOnly, loopback_only=not settings.tokens_required)
    app.add_middleware(FailurePages)
    app.add_middleware(AddSecurityHeaders)
    app.add_middleware(Observation, latency=metrics.requests)
    app.add_middleware(RootPath, root=settings.root_path)
    app.add_middleware(Compression)


async def _delete_old(engine: Engine, *, every_s: float = 60.0) -> None:
    """Delete old events and old answers once a minute until cancelled; several services may do it at the same time."""
    while True:
        await asyncio.sleep(every_s)
        try:
            n = await run_in_threadpool(stored_events.prune, engine)
            await run_in_threadpool(idempotency.forget, engine)
        except (SQLAlchemyError, DatabaseUnavailableError) as error:
            log.warning("old events are not deleted yet, the database does not answer: %s", type(error).__name__)
        else:
            if n:
                log.info("deleted %d old events", n)
