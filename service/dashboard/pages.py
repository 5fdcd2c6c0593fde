"""How a page is made: templates, static files, files to download, errors as pages.

Everything put into a page is escaped. If a browser sent the request, an error is a page with the message of the API.
"""

from __future__ import annotations

import csv
import hashlib
import io
import re
from collections.abc import Iterable, Sequence
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any
from urllib.parse import quote

from fastapi import APIRouter, HTTPException, Response
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from pydantic import ValidationError
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from admeta.client import formatting
from admeta.client.models import ErrorView
from admeta.client.terminal.tables import analyses, studies
from search import states
from service.api import optuna_pages
from service.api.html_pages import COOKIE, prefers_html, root

_OWN_ADDRESS = re.compile(
    r'(\b(?:href|src|action|hx-get|hx-post|data-(?:events|source|history|trials|heatmap))=")(?=/)'
)
"""Where a page names an address of the service. Values are escaped, so only templates contain these characters."""
_OF_THE_API = re.compile(r"/v1/|/docs\b|next_cursor")
_UNITS = ((86_400.0, "d"), (3600.0, "h"), (60.0, "min"))


_NAVIGATION = (
    ("/", "Studies", ("/studies/",)),
    ("/submit", "New study", ()),
    ("/results", "Results", ("/results/",)),
    ("/profiles", "Across tasks", ()),
    ("/recommend", "Recommend", ()),
    ("/explorer", "Explorer", ()),
    ("/cluster", "Cluster", ()),
    ("/docs", "API", ()),
)
"""The pages that every page leads to: address, name, and what other addresses count as being there."""


def page(request: HTTPConnection, template: str, *, status: int = 200, **values: Any) -> Response:
    """A page from a template of `templates/`."""
    path: str = request.scope["path"]
    is_writer = may_change(request)
    navigation = [
        {"href": href, "name": name, "here": path == href or path.startswith(below)}
        for href, name, below in _NAVIGATION
        if is_writer or href != "/submit"
    ]
    text = (
        _environment()
        .get_template(template)
        .render(
            navigation=navigation,
            signed_in=COOKIE in request.cookies,
            under_root=bool(root(request.scope)),
            may_change=is_writer,
            **values,
        )
    )
    text = _OWN_ADDRESS.sub(lambda found: found[1] + root(request.scope), text)
    return Response(text, status_code=status, media_type="text/html; charset=utf-8")


def may_change(request: HTTPConnection) -> bool:
    """Whether the caller may change studies: always on an open service, otherwise with the scope `write`."""
    bearer = getattr(request.state, "bearer", None)
    return bearer is None or bearer.scope.includes(states.Scope.WRITE)


def duration(seconds: float | None) -> str:
    """Seconds in a readable unit: 42 s, 3.5 min, 2.1 h; ∞ for None, a target that was not reached."""
    if seconds is None:
        return "∞"
    for size, unit in _UNITS:
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.3g} s"


def number(value: float | None) -> str:
    """Four significant digits; what rounding leaves of zero is 0."""
    return formatting.number(0.0 if value is not None and abs(value) < 1e-12 else value)


def value(setting: Any) -> str:
    """One setting, as the tables of `admeta` write it."""
    return formatting.setting(setting)


def breakable(text: object) -> Markup:
    """Text that a browser may also break after each underscore."""
    return Markup("_<wbr>").join(escape(text).split("_"))


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
        "breakable": breakable,
        "chance": formatting.chance,
        "duration": duration,
        "in_page_words": in_page_words,
        "number": number,
        "part": part,
        "reached": formatting.reached,
        "searched": lambda values, space: {name: value for name, value in (values or {}).items() if name in space},
        "searched_in": formatting.searched_in,
        "settings": formatting.settings,
        "spread": formatting.spread,
        "value": value,
    }
    environment.globals |= {
        "asset": asset_address,
        "good_range": analyses.good_range,
        "has_optuna_pages": optuna_pages.is_installed(),
        "sources": formatting.sources,
        "trials_used": studies.trials_used,
        "n_runs": formatting.n_runs,
    }
    return environment


router = APIRouter(include_in_schema=False)

_MEDIA_TYPES = {"css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8"}
_STATIC = resources.files("service.dashboard").joinpath("static")
_VENDORED = {"htmx.js": "htmx.min.js", "uPlot.css": "uPlot.min.css", "uPlot.js": "uPlot.iife.min.js"}


@router.get("/assets/{name}")
def get_asset(name: str, v: str | None = None) -> Response:
    """A static file; asked for with its version, it never changes."""
    if name not in _files():
        raise HTTPException(404)
    kept = "public, max-age=31536000, immutable" if v == version(name) else "no-cache"
    media_type = _MEDIA_TYPES[name.rpartition(".")[2]]
    return Response(_content(name), media_type=media_type, headers={"Cache-Control": kept})


def asset_address(name: str) -> str:
    """Where a page finds the file, with its version."""
    return f"/assets/{name}?v={version(name)}"


@cache
def version(name: str) -> str:
    """The first digits of the file's SHA-256."""
    return hashlib.sha256(_content(name)).hexdigest()[:12]


@cache
def _content(name: str) -> bytes:
    return _files()[name].read_bytes()


@cache
def _files() -> dict[str, Traversable]:
    """The static files by the names that pages ask for."""
    own = {file.name: file for file in _STATIC.iterdir() if file.name.endswith((".js", ".css"))}
    return own | {name: _STATIC.joinpath("vendor", file) for name, file in _VENDORED.items()}


_DOWNLOAD_TYPES = {"csv": "text/csv", "tex": "text/x-latex", "md": "text/markdown", "yaml": "application/yaml"}


def as_csv(table: Iterable[Sequence[Any]], *, name: str) -> Response:
    """A table, its first row the header, as `name`.csv."""
    text = io.StringIO()
    csv.writer(text).writerows(table)
    return as_text(text.getvalue(), name=f"{name}.csv")


def as_text(text: str, *, name: str) -> Response:
    """A text as a file of this name; its ending determines the media type."""
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    media_type = _DOWNLOAD_TYPES[name.rpartition(".")[2]]
    return Response(text, media_type=f"{media_type}; charset=utf-8", headers=headers)


class FailurePages:
    """ASGI middleware: an error in JSON becomes a page with the same status, where the request prefers HTML."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not prefers_html(scope):
            await self._app(scope, receive, send)
            return
        held: Message | None = None
        body = b""

        async def shown(message: Message) -> None:
            nonlocal held, body
            if message["type"] == "http.response.start" and _is_error(message):
                held = message
                return
            if held is None:
                await send(message)
                return
            body += message.get("body", b"")
            if not message.get("more_body", False):
                start, content = _error_page(HTTPConnection(scope), held, body)
                await send(start)
                await send({"type": "http.response.body", "body": content})

        await self._app(scope, receive, shown)


def _is_error(start: Message) -> bool:
    is_json = Headers(raw=start["headers"]).get("content-type", "").startswith("application/json")
    return start["status"] >= 400 and is_json


def in_page_words(text: str) -> str:
    """A message without its sentences that name addresses or words of the API, which say nothing on a page."""
    return " ".join(part for part in re.split(r"(?<=[.;])\s+", text) if not _OF_THE_API.search(part)).rstrip("; ")


def _error_page(request: HTTPConnection, start: Message, body: bytes) -> tuple[Message, bytes]:
    try:
        view = ErrorView.model_validate_json(body)
    except ValidationError:
        return start, body
    made = page(
        request,
        "failure.html",
        status=start["status"],
        view=view,
        hint=in_page_words(view.hint) or "The list of studies leads to all of them.",
    )
    content = bytes(made.body)
    headers = MutableHeaders(raw=list(start["headers"]))
    headers["Content-Type"] = made.headers["content-type"]
    headers["Content-Length"] = str(len(content))
    return {**start, "headers": headers.raw}, content
