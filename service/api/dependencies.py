"""What routes are given: the database engine, and the bounds that all lists share."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import Engine

from service.settings import Quotas, Settings

MAX_PAGE = 500


class Filters(BaseModel):
    """Base of a list's query parameters: a mistyped one is refused, not ignored."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class PageFilters(Filters):
    """Which page of a list."""

    limit: int = Field(default=50, ge=1, le=MAX_PAGE, description="Items on a page.")
    cursor: str | None = Field(default=None, max_length=500, description="`next_cursor` of the page before.")


def _engine(request: Request) -> Engine:
    engine: Engine = request.app.state.engine
    return engine


def _quotas(request: Request) -> Quotas:
    settings: Settings = request.app.state.settings
    return settings.quotas


Database = Annotated[Engine, Depends(_engine)]
Limits = Annotated[Quotas, Depends(_quotas)]
