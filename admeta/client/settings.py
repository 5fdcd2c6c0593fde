"""Where the service is and who asks: arguments, then the environment, then defaults."""

from __future__ import annotations

import os
from typing import Any

import httpx

from admeta.client.wire import Request

DEFAULT_URL = "http://127.0.0.1:8000"


def address(url: str | None) -> str:
    """The service's address: as given, else ADMETA_URL, else this machine's."""
    return (url or os.environ.get("ADMETA_URL") or DEFAULT_URL).rstrip("/")


def headers(token: str | None) -> dict[str, str]:
    """The headers that show an access token: as given, else ADMETA_TOKEN, else none."""
    token = token or os.environ.get("ADMETA_TOKEN")
    return {"Authorization": f"Bearer {token}"} if token else {}


def build(http: httpx.Client | httpx.AsyncClient, request: Request) -> httpx.Request:
    """The request as httpx sends it."""
    params = {name: value for name, value in request.query.items() if value is not None}
    timeout: Any = httpx.USE_CLIENT_DEFAULT
    if request.silence_s is not None:
        timeout = httpx.Timeout(**{**http.timeout.as_dict(), "read": request.silence_s})
    return http.build_request(
        request.method,
        request.path,
        params=params,
        content=request.content,
        headers=dict(request.headers),
        timeout=timeout,
    )
