"""Templates and how numbers, times and states read in them. Everything put into a page is escaped."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import cache
from typing import Any
from urllib.parse import quote

from fastapi import Response
from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.requests import HTTPConnection

from admeta.client.terminal import tables
from service.api import optuna_pages
from service.api.signin import COOKIE
from service.dashboard.assets import address

_UNITS = ((86_400.0, "d"), (3600.0, "h"), (60.0, "min"))


_NAVIGATION = (
    ("/", "Studies", ("/studies/",)),
    ("/submit", "New study", ()),
    ("/results", "Results", ("/results/",)),
    ("/explorer", "Explorer", ()),
    ("/cluster", "Cluster", ()),
    ("/docs", "API", ()),
)
"""The pages that every page leads to: address, name, and what else counts as being there."""


def page(request: HTTPConnection, template: str, *, status: int = 200, **values: Any) -> Response:
    """A page from a template of `templates/`."""
    path: str = request.scope["path"]
    navigation = [
        {"href": href, "name": name, "here": path == href or path.startswith(below)}
        for href, name, below in _NAVIGATION
    ]
    text = (
        _environment()
        .get_template(template)
        .render(navigation=navigation, signed_in=COOKIE in request.cookies, **values)
    )
    return Response(text, status_code=status, media_type="text/html; charset=utf-8")


def duration(seconds: float | None) -> str:
    """Seconds as people say them: 42 s, 3.5 min, 2.1 h; ∞ for None, a target never met."""
    if seconds is None:
        return "∞"
    for size, unit in _UNITS:
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.3g} s"


def ago(time: datetime | None) -> str:
    """How long ago."""
    if time is None:
        return "–"
    seconds = max(0.0, (datetime.now(UTC) - time).total_seconds())
    return "just now" if seconds < 5 else f"{duration(float(round(seconds)))} ago"


def value(setting: Any) -> str:
    """One setting, as the tables of `admeta` write it."""
    return tables.settings({"": setting}).removeprefix("=")


def part(text: object) -> str:
    """Text as one part of an address."""
    return quote(str(text), safe="")


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("service.dashboard"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "ago": ago,
        "duration": duration,
        "number": tables.number,
        "part": part,
        "settings": tables.settings,
        "spread": tables.spread,
        "value": value,
    }
    environment.globals |= {
        "asset": address,
        "has_optuna_pages": optuna_pages.is_installed(),
        "n_finished": tables.n_finished,
    }
    return environment
