"""The client has a method for every address of REST, and the command line uses every method."""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from admeta.client import Client, ClientError

ROOT = Path(__file__).parents[3]
WITHOUT = {"/livez", "/readyz", "/metrics", "/healthz", "/signin", "/signout", "/docs"}
"""For machines and browsers; `health` asks /healthz."""


def _methods() -> list[str]:
    return [name for name in dir(Client) if not name.startswith("_") and name != "close"]


def _first_request(name: str) -> tuple[str, str]:
    """Method and path of the first request that a method of the client sends."""
    sent: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        sent.append(request)
        return httpx.Response(404, json={"error": "e", "detail": "d", "hint": "h"})

    with Client("http://service", transport=httpx.MockTransport(answer)) as client:
        method = getattr(client, name)
        arguments: dict[str, Any] = {}
        for parameter in inspect.signature(method).parameters.values():
            if parameter.name == "definition":
                arguments[parameter.name] = {}
            elif parameter.default is inspect.Parameter.empty or parameter.name == "study":
                arguments[parameter.name] = 1 if parameter.annotation == "int" else "x"
        with pytest.raises(ClientError):
            list(method(**arguments))
    return sent[0].method, sent[0].url.path


def test_every_address_has_a_method() -> None:
    schema = json.loads((ROOT / "tests/service/api/openapi.json").read_text())
    addresses = {
        (method.upper(), path)
        for path, methods in schema["paths"].items()
        for method in methods
        if path not in WITHOUT and method in ("get", "post", "put", "patch", "delete")
    }
    asked = [_first_request(name) for name in _methods()]
    asked.append(("GET", "/v1/events"))  # `events` of all studies
    missing = {
        (method, path)
        for method, path in addresses
        if not any(verb == method and re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", path), sent) for verb, sent in asked)
    }
    assert missing == set()


def test_every_method_has_a_command() -> None:
    code = "".join(path.read_text() for package in ("admeta", "service") for path in (ROOT / package).glob("cli/*.py"))
    assert [name for name in _methods() if f"client.{name}(" not in code] == []
