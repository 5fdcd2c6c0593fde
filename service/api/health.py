"""Whether the service works: for people, for what restarts it (`/livez`), for what sends it requests (`/readyz`)."""

from __future__ import annotations

import platform
from functools import cache
from importlib.metadata import version
from typing import Any

from fastapi import APIRouter, Request, Response
from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError

from service.api.dependencies import Database
from service.models import HealthView, VersionView

router = APIRouter(tags=["health"])
_PARTS = ("optuna", "ray", "sqlalchemy", "torch")
_AWAY: dict[int | str, dict[str, Any]] = {503: {"model": HealthView, "description": "The database does not answer."}}


@router.get("/healthz", responses=_AWAY)
def get_health(engine: Database, request: Request, response: Response) -> HealthView:
    """Whether the service can work now. Without Ray studies wait; without the database 503."""
    database = "ok"
    try:
        with engine.connect() as connection:
            connection.execute(text("SELECT 1"))
    except SQLAlchemyError as error:
        database = f"unavailable: {type(error).__name__}"
        response.status_code = 503
    status = "ok" if database == "ok" else "unavailable"
    ray: str = request.app.state.supervisor.ray_status()
    return HealthView(status=status, version=version("admeta-search"), database=database, ray=ray)


@router.get("/readyz", responses=_AWAY)
def get_readiness(engine: Database, request: Request, response: Response) -> HealthView:
    """Whether requests may be sent here: as `/healthz`."""
    return get_health(engine, request, response)


@router.get("/livez")
async def get_liveness() -> dict[str, str]:
    """Whether the process answers at all; where it does not, start it anew. A database that is away is no reason to."""
    return {"status": "ok"}


@router.get("/v1/version")
async def get_version() -> VersionView:
    """What runs here."""
    return _version()


@cache
def _version() -> VersionView:
    parts = {name: version(name) for name in _PARTS}
    return VersionView(version=version("admeta-search"), api="v1", python=platform.python_version(), parts=parts)
