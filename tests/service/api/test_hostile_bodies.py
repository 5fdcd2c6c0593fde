"""No body within the size limit is expensive: the worst of each kind costs little CPU and delays no other request."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast
from urllib.parse import quote_plus

import pytest
from anyio import to_thread
from anyio.from_thread import BlockingPortal
from fastapi import FastAPI
from fastapi.testclient import TestClient

from service.api import requests, studies
from service.dashboard import submit
from service.settings import Quotas
from tests.machine import unit_s, wait_until
from tests.service.fakes import definition

MAX_UNITS = 100
"""CPU time of one request, in units of `unit_s`: half a second where one takes 0.005 s."""
MAX_LOOP_UNITS = 10
"""Of that in the event loop's thread, where it delays every other request."""
RUN_SYNC = to_thread.run_sync
SIZE = Quotas().max_body_bytes - 2000
JSON = {"Content-Type": "application/json"}
FORM = {"Content-Type": "application/x-www-form-urlencoded"}


def _study(**changes: Any) -> bytes:
    return json.dumps(definition("hostile") | changes, separators=(",", ":")).encode()


def _raw(member: str) -> bytes:
    """A study with one more member, given as JSON text."""
    return (json.dumps(definition("hostile"))[:-1] + "," + member + "}").encode()


def _repeated(text: str, *, limit: int = SIZE) -> str:
    """The text, with {i} counted, as often as the size allows, between commas."""
    parts, size = [], 0
    for i in range(limit):
        part = text.replace("{i}", str(i))
        size += len(part) + 1
        if size > limit:
            break
        parts.append(part)
    return ",".join(parts)


def _spaces(text: str, *, n: int) -> list[dict[str, Any]]:
    return [{"name": "admetar", "label": f"o{i}", "space": json.loads(text)} for i in range(n)]


def _choices(values: list[Any], **more: Any) -> list[dict[str, Any]]:
    return [{"name": "admetar", "space": {"lr": {"type": "categorical", "choices": values}}, **more}]


def _wide(n: int, parameter: Callable[[int], dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"name": "admetar", "space": {f"p{i}": parameter(i) for i in range(n)}}]


LR = '{"lr":{"type":"float","low":1e-5,"high":0.1}}'
PAIRS = [[0.9, 1 - 1 / (i + 2)] for i in range(1000)]
BETAS = [{"name": "admetar", "space": {"betas": {"type": "categorical", "choices": PAIRS}}}]
FALSE_PAIRS = [[0.9, i] for i in range(2, 1002)]

BODIES: dict[str, Callable[[], bytes]] = {
    "100 unknown fields": lambda: _raw(_repeated('"u{i}":1', limit=900)),
    "600 unknown fields": lambda: _raw(_repeated('"u{i}":1', limit=6500)),
    "2,000 unknown fields": lambda: _raw(_repeated('"u{i}":1', limit=22_000)),
    "unknown fields to the limit": lambda: _raw(_repeated('"u{i}":1')),
    "long unknown fields": lambda: _raw(_repeated('"u{i}' + "x" * 190 + '":1')),
    "unknown fields of the task": lambda: _study(task={"name": "digits"} | {f"u{i}": 1 for i in range(9_000)}),
    "unknown fields of each optimizer": lambda: _study(
        optimizers=[{"name": "sgdm", "label": f"o{i}"} | {f"u{k}": 1 for k in range(90)} for i in range(100)]
    ),
    "unknown fields of each parameter": lambda: _study(
        optimizers=_spaces(json.dumps({"lr": {"type": "float"} | {f"u{k}": 1 for k in range(90)}}), n=100)
    ),
    "repeated keys": lambda: _raw(_repeated('"u{i}":1', limit=SIZE - 20) + ',"u0":1'),
    "as many values as may be, one key repeated": lambda: _raw(_repeated('"u{i}":1', limit=200_000) + ',"u0":1'),
    "one key repeated": lambda: _raw(_repeated('"u":1')),
    "small objects": lambda: _raw('"x":[' + _repeated("{}") + "]"),
    "small lists": lambda: _raw('"x":[' + _repeated("[]") + "]"),
    "integers": lambda: _raw('"x":[' + _repeated("1") + "]"),
    "reals": lambda: _raw('"x":[' + _repeated("1e5") + "]"),
    "texts": lambda: _raw('"x":[' + _repeated('""') + "]"),
    "brackets": lambda: b"[" * SIZE,
    "objects in objects": lambda: b'{"a":' * (SIZE // 5),
    "closed brackets": lambda: b"[" * (SIZE // 2) + b"]" * (SIZE // 2),
    "thirty levels, many times": lambda: _raw('"x":[' + _repeated("[" * 30 + "]" * 30) + "]"),
    "a long text": lambda: _study(description="x" * SIZE),
    "a long text of escapes": lambda: _raw('"description":"' + "\\u00e9" * (SIZE // 6) + '"'),
    "a long name of an optimizer": lambda: _study(optimizers=[{"name": "x" * SIZE}]),
    "long names of optimizers": lambda: _study(optimizers=[{"name": "adam" * 2500} for _ in range(100)]),
    "unlike names of optimizers": lambda: _study(optimizers=[{"name": f"admeta{i}"} for i in range(100)]),
    "a long name of a task": lambda: _study(task={"name": "x" * SIZE}),
    "a long name of a model": lambda: _study(task={"name": "digits", "model": "conv" * 200_000}),
    "a long key": lambda: _raw('"' + "x" * SIZE + '":1'),
    "a long integer": lambda: _raw('"x":' + "1" * SIZE),
    "a long real": lambda: _raw('"x":0.' + "1" * SIZE),
    "long reals": lambda: _raw('"x":[' + _repeated("0." + "3" * 1000) + "]"),
    "a large exponent": lambda: _raw('"x":1e' + "9" * SIZE),
    "large integers": lambda: _raw('"x":[' + _repeated("9" * 19) + "]"),
    "1,000 choices": lambda: _study(optimizers=_choices([i / 10_000 for i in range(1, 1001)])),
    "1,000 list choices": lambda: _study(optimizers=BETAS),
    "1,000 list choices, 30 optimizers": lambda: _study(optimizers=[{**BETAS[0], "label": f"o{i}"} for i in range(30)]),
    "1,000 list choices, 6 optimizers": lambda: _study(optimizers=[{**BETAS[0], "label": f"o{i}"} for i in range(6)]),
    "200 list choices for first trials, 30 optimizers": lambda: _study(
        optimizers=[
            {
                "name": "admetar",
                "label": f"o{i}",
                "space": {"betas": {"type": "categorical", "choices": PAIRS[:100]}},
                "first": [{"betas": pair} for pair in PAIRS[:90]],
            }
            for i in range(30)
        ]
    ),
    "1,000 wrong list choices": lambda: _study(optimizers=_choices(FALSE_PAIRS)),
    "1,000 list choices for first trials": lambda: _study(
        optimizers=[{**BETAS[0], "first": [{"betas": pair} for pair in PAIRS[:100]]}]
    ),
    "list choices in conditions": lambda: _study(
        optimizers=[
            {
                "name": "admetar",
                "space": BETAS[0]["space"]
                | {
                    name: {"type": "float", "low": 0.1, "high": 0.2, "when": {"betas": PAIRS[-1]}}
                    for name in ("lr", "lambd", "eps", "weight_decay")
                },
            }
        ]
    ),
    "long texts as choices": lambda: _study(optimizers=_choices(["x" * 9000 + str(i) for i in range(100)])),
    "nested choices": lambda: _study(
        optimizers=_choices([json.loads("[" * 20 + str(i) + "]" * 20) for i in range(900)])
    ),
    "more choices than may be": lambda: _study(optimizers=_choices(list(range(150_000)))),
    "many parameters": lambda: _study(optimizers=_wide(5000, lambda i: {"type": "float", "low": 0, "high": 1 + i})),
    "many wrong parameters": lambda: _study(optimizers=_wide(5000, lambda i: {"type": "float", "low": 1, "high": 1})),
    "many parameters of no type": lambda: _study(optimizers=_wide(5000, lambda i: {"type": "real"})),
    "a chain of conditions": lambda: _study(
        optimizers=_wide(
            1500, lambda i: {"type": "int", "low": 0, "high": 9} | ({"when": {f"p{i - 1}": 1}} if i else {})
        )
    ),
    "many fixed values": lambda: _study(optimizers=[{"name": "admetar", "fixed": {f"p{i}": 1 for i in range(9000)}}]),
    "100 optimizers": lambda: _study(optimizers=_spaces(LR, n=100)),
    "many optimizers": lambda: _study(optimizers=_spaces(LR, n=9000)),
    "100 optimizers, spaces by name": lambda: _study(
        optimizers=[{"name": "admetar", "label": f"o{i}", "space": "paper"} for i in range(100)]
    ),
    "many first trials": lambda: _study(
        optimizers=[
            {"name": "admetar", "label": f"o{i}", "first": [{"lr": 0.1, "u": 1} for _ in range(100)]} for i in range(90)
        ]
    ),
    "many seeds": lambda: _study(confirm={"seeds": list(range(150_000))}),
    "many studies to begin with": lambda: _study(warm_start={"studies": ["a" * 90 for _ in range(10_000)]}),
    "an open pattern": lambda: _study(name="a" * 9000 + "!"),
    "a path": lambda: _study(task={"name": "digits", "data_dir": "../" * 300_000}),
    "milestones": lambda: _study(
        task={"name": "digits", "schedule": {"name": "multistep", "milestones": [0.5] * 150_000}}
    ),
}
MAX_YAML = submit.MAX_CHARACTERS - 1
YAML: dict[str, Callable[[], str]] = {
    "as JSON, unknown fields": lambda: json.dumps(definition() | {f"u{i}": 1 for i in range(2500)}),
    "unknown fields": lambda: "\n".join(f"u{i}: 1" for i in range(90_000)),
    "one key repeated": lambda: "u: 1\n" * 200_000,
    "aliases": lambda: (
        "a: &a [1,1,1,1,1,1,1,1,1]\n"
        + "\n".join(f"a{i}: &a{i} [{','.join([f'*a{i - 1}' if i else '*a'] * 9)}]" for i in range(40))
    ),
    "many aliases": lambda: "a: &a 1\nb: [" + "*a," * 300_000 + "]",
    "flow lists": lambda: "a: [" + "[]," * 300_000 + "]",
    "brackets": lambda: "[" * 900_000,
    "levels": lambda: "".join(" " * i + "a:\n" for i in range(1300)),
    "dashes": lambda: "- " * 450_000,
    "a long text": lambda: "name: " + "x" * 900_000,
    "a long quoted text": lambda: 'name: "' + "\\u0041" * 150_000 + '"',
    "a long number": lambda: "name: " + "1" * 900_000,
    "sexagesimals": lambda: "name: " + "1:" * 400_000 + "1",
    "comments": lambda: "#\n" * 450_000,
    "colons": lambda: ": " * 450_000,
}


def _fields(text: str, separator: str = ",") -> bytes:
    return _repeated(text).replace(",", separator).encode()


def _form(text: str) -> bytes:
    return ("definition=" + quote_plus(text[:MAX_YAML])).encode()[: SIZE + 1000]


REQUESTS: dict[str, tuple[str, dict[str, str], Callable[[], bytes]]] = {
    **{f"study: {name}": ("/v1/studies", JSON, make) for name, make in BODIES.items()},
    **{
        f"yaml: {name}": ("/submit/check", FORM, lambda make=make: _form(make()))  # type: ignore[misc]
        for name, make in YAML.items()
    },
    "clone: changes": (
        "/v1/studies/first/clone",
        JSON,
        lambda: ('{"name":"x","changes":{' + _repeated('"u{i}":null') + "}}").encode(),
    ),
    "clone: fields": ("/v1/studies/first/clone", JSON, lambda: b"{%s}" % _fields('"u{i}":null')),
    "compose: fields": (
        "/submit/compose",
        FORM,
        lambda: b"task.name=digits&" + _repeated("u{i}=1").replace(",", "&").encode(),
    ),
    "compose: a long value": ("/submit/compose", FORM, lambda: b"task.name=digits&name=" + b"x" * SIZE),
    "compose: a long task": ("/submit/compose", FORM, lambda: b"task.name=" + b"x" * SIZE),
    "sign-in: fields": ("/signin", FORM, lambda: _fields("u{i}=1", "&")),
    "sign-in: a long token": ("/signin", FORM, lambda: b"token=" + b"x" * SIZE),
    "token: fields": ("/v1/tokens", JSON, lambda: b"{%s}" % _fields('"u{i}":1')),
}


@pytest.fixture(scope="module")
def warm_api(shared_api: TestClient) -> TestClient:
    """A service that has answered before: what the first request prepares is not the body's cost."""
    shared_api.post("/v1/studies", json=definition()).raise_for_status()
    shared_api.get("/submit").raise_for_status()
    shared_api.post("/v1/studies", json={"u": 1})
    return shared_api


class _Threads:
    """Carries out what the service gives to threads, and adds up the CPU seconds that it takes there."""

    def __init__(self) -> None:
        self.cpu_s = 0.0

    async def run_sync(self, work: Callable[..., Any], *args: Any, **options: Any) -> Any:
        return await RUN_SYNC(self._timed, work, *args, **options)

    def _timed(self, work: Callable[..., Any], *args: Any) -> Any:
        began = time.thread_time()
        try:
            return work(*args)
        finally:
            self.cpu_s += time.thread_time() - began


def _cpu_s(api: TestClient, name: str, body: bytes) -> tuple[float, float]:
    """CPU seconds of one request in the event loop's thread, and in all threads of the service."""
    path, headers, _ = REQUESTS[name]
    portal, threads = _portal(api), _Threads()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(to_thread, "run_sync", threads.run_sync)
        began = portal.call(time.thread_time)
        response = api.post(path, content=body, headers=headers)
        loop_s = portal.call(time.thread_time) - began
    assert response.status_code < 500, response.text
    assert len(response.content) < 100_000
    return loop_s, loop_s + threads.cpu_s


def _portal(api: TestClient) -> BlockingPortal:
    assert api.portal is not None, "the client is not open"
    return api.portal


@pytest.mark.parametrize("name", REQUESTS)
def test_no_body_is_expensive(warm_api: TestClient, name: str) -> None:
    """The least of three tries: garbage collection and a busy machine only add to it."""
    body = REQUESTS[name][2]()
    assert len(body) <= Quotas().max_body_bytes
    tries = []
    for _ in range(3):
        unit = unit_s()
        loop_s, all_s = _cpu_s(warm_api, name, body)
        tries.append((loop_s / unit, all_s / unit))
        if tries[-1][0] <= MAX_LOOP_UNITS and tries[-1][1] <= MAX_UNITS:
            return
    pytest.fail(f"CPU time in the event loop's thread and in all threads, of each try, in units of work: {tries}")


class _Held:
    """Checks that begin when they are let go; counts those that are inside."""

    def __init__(self, loop_thread: int) -> None:
        self.n_inside = self.most_inside = 0
        self.in_loop = False
        self.let_go = threading.Event()
        self._loop_thread = loop_thread
        self._counting = threading.Lock()

    def holding(self, check: Callable[..., Any]) -> Callable[..., Any]:
        def held(*args: Any) -> Any:
            if threading.get_ident() == self._loop_thread:
                self.in_loop = True
                return check(*args)
            with self._counting:
                self.n_inside += 1
                self.most_inside = max(self.most_inside, self.n_inside)
            try:
                self.let_go.wait()
                return check(*args)
            finally:
                with self._counting:
                    self.n_inside -= 1

        return held


def test_many_expensive_bodies_at_once_delay_nothing_else(
    warm_api: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few are checked at a time, none of them in the event loop's thread; other requests are answered meanwhile."""
    names = ["study: long names of optimizers", "study: 1,000 list choices, 6 optimizers", "yaml: one key repeated"] * 4
    bodies = {name: REQUESTS[name][2]() for name in names}
    portal = _portal(warm_api)
    limiter = cast(FastAPI, warm_api.app).state.body_checks
    checks = _Held(portal.call(threading.get_ident))
    for module, name in ((requests, "parse_object"), (studies, "parse_definition"), (submit, "check_text")):
        monkeypatch.setattr(module, name, checks.holding(getattr(module, name)))

    def send(name: str) -> int:
        path, headers, _ = REQUESTS[name]
        return warm_api.post(path, content=bodies[name], headers=headers).status_code

    def all_arrived() -> bool:
        return checks.in_loop or checks.n_inside + portal.call(limiter.statistics).tasks_waiting == len(names)

    with ThreadPoolExecutor(len(names)) as pool:
        answers = [pool.submit(send, name) for name in names]
        try:
            wait_until(all_arrived, what="every request is being checked or waits for that")
            assert not checks.in_loop
            assert checks.n_inside == requests.N_CHECKS
            for path in ("/livez", "/", "/v1/studies"):
                assert warm_api.get(path).status_code == 200
            assert checks.n_inside == requests.N_CHECKS
        finally:
            checks.let_go.set()
        assert all(answer.result() < 500 for answer in answers)
    assert not checks.in_loop
    assert checks.most_inside == requests.N_CHECKS
