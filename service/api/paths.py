"""What addresses the service has, read from its own OpenAPI description: for 404, 405, OPTIONS and bad queries."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from fastapi import Request

_PARAMETER = re.compile(r"\\\{[^}]*\\\}")


def templates(request: Request) -> list[str]:
    """All addresses, as `/v1/studies/{study}`."""
    return list(_operations(request))


def allowed_methods(request: Request) -> list[str]:
    """The methods that the request's path takes, sorted; empty where nothing is there."""
    methods: set[str] = set()
    for operations in _matching(request):
        methods |= {method.upper() for method in operations}
    if "GET" in methods:
        methods.add("HEAD")
    return sorted(methods | {"OPTIONS"}) if methods else []


def query_names(request: Request) -> list[str]:
    """Names of the query parameters that the request's path and method take."""
    for operations in _matching(request):
        operation = operations.get(request.method.lower(), {})
        return [p["name"] for p in operation.get("parameters", []) if p["in"] == "query"]
    return []


def _operations(request: Request) -> Mapping[str, Mapping[str, Any]]:
    paths: Mapping[str, Mapping[str, Any]] = request.app.openapi()["paths"]
    return paths


def _matching(request: Request) -> Iterator[Mapping[str, Any]]:
    for template, operations in _operations(request).items():
        if re.fullmatch(_PARAMETER.sub("[^/]+", re.escape(template)), request.url.path):
            yield operations
