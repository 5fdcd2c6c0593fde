"""The static files of the pages: a literal list, read once, kept by browsers until their content changes."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib import resources

from fastapi import APIRouter, HTTPException, Response

router = APIRouter(include_in_schema=False)

_MEDIA_TYPES = {"css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8"}
_FILES = {
    "dashboard.css": "dashboard.css",
    "live.js": "live.js",
    "charts.js": "charts.js",
    "svg.js": "svg.js",
    "search.js": "search.js",
    "heat.js": "heat.js",
    "lines.js": "lines.js",
    "trials.js": "trials.js",
    "log.js": "log.js",
    "explorer.js": "explorer.js",
    "submit.js": "submit.js",
    "htmx.js": "vendor/htmx.min.js",
    "uPlot.css": "vendor/uPlot.min.css",
    "uPlot.js": "vendor/uPlot.iife.min.js",
}


@router.get("/assets/{name}")
def get_asset(name: str, v: str | None = None) -> Response:
    """A static file; asked for with its version, it never changes."""
    if name not in _FILES:
        raise HTTPException(404)
    kept = "public, max-age=31536000, immutable" if v == version(name) else "no-cache"
    media_type = _MEDIA_TYPES[name.rpartition(".")[2]]
    return Response(_content(name), media_type=media_type, headers={"Cache-Control": kept})


def address(name: str) -> str:
    """Where a page finds the file, with its version."""
    return f"/assets/{name}?v={version(name)}"


@cache
def version(name: str) -> str:
    """The first digits of the file's SHA-256."""
    return hashlib.sha256(_content(name)).hexdigest()[:12]


@cache
def _content(name: str) -> bytes:
    return resources.files("service.dashboard").joinpath(f"static/{_FILES[name]}").read_bytes()
