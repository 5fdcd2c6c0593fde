"""Whether the service works: for people and for whatever restarts it."""

from __future__ import annotations

from importlib.metadata import version

from fastapi import APIRouter, Request, Response
from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError

from service.api.dependencies import Database
from service.models import HealthView

router = APIRouter(tags=["health"])


@router.get("/healthz", responses={503: {"model": HealthView, "description": "The database does not answer."}})
def get_health(engine: Database, request: Request, response: Response) -> HealthView:
    """Whether the service can work now: the database answers, and Ray is up."""
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
