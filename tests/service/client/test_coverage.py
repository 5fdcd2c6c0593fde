"""The client has a verb for every address of REST, and the command line a use for every verb."""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path
from typing import Any

from admeta.client import verbs
from admeta.client.wire import Emit, Now, Open, Request, Send

ROOT = Path(__file__).parents[3]
WITHOUT = {"/livez", "/readyz", "/metrics", "/healthz", "/signin", "/signout", "/docs"}
"""For machines and browsers; `health` asks /healthz."""


def _first_request(verb: Any) -> Request:
    arguments: dict[str, Any] = {}
    for name, parameter in inspect.signature(verb).parameters.items():
        if name == "definition":
            arguments[name] = {}
        elif parameter.default is inspect.Parameter.empty or name == "study":
            arguments[name] = 1 if parameter.annotation == "int" else "x"
    flow = verb(**arguments)
    effect = next(flow)
    while isinstance(effect, Now):
        effect = flow.send(0.0)
    assert isinstance(effect, Send | Open), effect
    assert not isinstance(effect, Emit)
    return effect.request


def _verbs() -> list[str]:
    return [name for name in verbs.__all__ if name[0].islower()]


def test_every_address_has_a_verb() -> None:
    schema = json.loads((ROOT / "tests/service/api/openapi.json").read_text())
    addresses = {
        (method.upper(), path)
        for path, methods in schema["paths"].items()
        for method in methods
        if path not in WITHOUT and method in ("get", "post", "put", "patch", "delete")
    }
    requests = [_first_request(getattr(verbs, name)) for name in _verbs()]
    asked = [(request.method, request.path) for request in requests]
    asked.append(("GET", "/v1/events"))  # `events` of all studies
    missing = {
        (method, path)
        for method, path in addresses
        if not any(verb == method and re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", path), sent) for verb, sent in asked)
    }
    assert missing == set()


def test_every_verb_has_a_command() -> None:
    code = "".join(path.read_text() for package in ("admeta", "service") for path in (ROOT / package).glob("cli/*.py"))
    assert [name for name in _verbs() if f"client.{name}(" not in code] == []
