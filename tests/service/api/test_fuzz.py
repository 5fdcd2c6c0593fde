"""No input reaches a 500: valid studies bent at random, random JSON, and schemathesis over every address."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from fastapi import FastAPI
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis.specs.openapi.checks import positive_data_acceptance

from admeta.client.models import ErrorView, StudyView
from service.app import create_app
from service.database.schema import prepare
from tests.service.fakes import ADDRESS, FakeSupervisor, definition, settings_in

RICH = definition(
    optimizers=[
        {
            "name": "admetar",
            "label": "one",
            "space": {
                "lr": {"type": "float", "low": 0.001, "high": 0.1, "log": True},
                "k": {"type": "int", "low": 2, "high": 8, "when": {"betas": [0.9, 0.999]}},
                "betas": {"type": "categorical", "choices": [[0.9, 0.999], [0.8, 0.99]]},
            },
            "fixed": {"eps": 1e-8},
        },
        {"name": "sgdm", "space": "finetune"},
    ],
    objective={"metric": "val_score", "direction": "maximize"},
    sampler={"name": "tpe", "seed": 1, "n_startup_trials": 2},
    pruner={"name": "hyperband", "min_epochs": 1},
    confirm={"top_k": 1, "seeds": [0, 1]},
    resources={"cpus": 1, "gpus": 0.5},
)
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(min_value=-3, max_value=12),
    st.floats(),
    st.text(max_size=12),
    st.sampled_from(["", "tpe", "grid", "none", "asha", "sgdm", "admetar", "digits", "synthetic", "default", "paper"]),
    st.sampled_from(["float", "int", "categorical", "lr", "\0", "\ud800", "x" * 300, "../x", "val_loss"]),
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.text(max_size=8) | st.sampled_from(["name", "low"]), inner, max_size=3),
    ),
    max_leaves=6,
)


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in children:
        yield from _places(child, (*path, key))


PLACES = list(_places(RICH))[1:]


@st.composite
def bent(draw: st.DrawFn) -> Any:
    """A valid study with one to three places replaced, removed or extended."""
    study = copy.deepcopy(RICH)
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.sampled_from(PLACES))
        parent = study
        try:
            for key in path[:-1]:
                parent = parent[key]
            action = draw(st.sampled_from(["replace", "remove", "add"]))
            if action == "replace":
                parent[path[-1]] = draw(values)
            elif action == "remove":
                del parent[path[-1]]
            elif isinstance(parent, dict):
                parent[draw(st.text(max_size=8))] = draw(values)
        except (KeyError, IndexError, TypeError):
            pass  # an earlier change took the place away
    return study


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> FastAPI:
    home: Path = tmp_path_factory.mktemp("fuzz")
    chosen = settings_in(home)
    prepare(chosen.database_url)
    return create_app(chosen, supervisor=FakeSupervisor())


@pytest.fixture(scope="module")
def service(app: FastAPI) -> Iterator[TestClient]:
    with TestClient(app, base_url=ADDRESS) as client:  # raises whatever would be a 500
        yield client


def _check(response: Any) -> None:
    assert response.status_code in (200, 201, 400, 409, 413, 415, 422), response.text
    json.loads(response.content, parse_constant=lambda token: pytest.fail(f"{token} in the answer"))
    model = StudyView if response.is_success else ErrorView
    model.model_validate_json(response.content)


@settings(max_examples=250, suppress_health_check=list(HealthCheck))
@given(study=bent())
def test_bent_studies(service: TestClient, study: Any) -> None:
    content = json.dumps(study)
    response = service.post("/v1/studies", content=content, headers={"Content-Type": "application/json"})
    _check(response)
    if response.is_success:  # what is accepted can be read back, and submitted again
        view = service.get(f"/v1/studies/{response.json()['id']}").json()
        again = service.post("/v1/studies", json=view["definition"])
        assert (again.status_code, again.json()["id"]) == (200, view["id"])


@settings(max_examples=100, suppress_health_check=list(HealthCheck))
@given(body=st.one_of(values.map(json.dumps).map(str.encode), st.binary(max_size=40)))
def test_any_body(service: TestClient, body: bytes) -> None:
    _check(service.post("/v1/studies", content=body, headers={"Content-Type": "application/json"}))


def test_every_address(app: FastAPI, service: TestClient) -> None:
    """Schemathesis's own checks: no 5xx, documented statuses, answers that fit their schemas.

    Not the one that wants every schema-valid request accepted: names come from registries, and low < high is no schema.
    """
    schema = schemathesis.openapi.from_asgi("/openapi.json", app, headers={"Host": "127.0.0.1"})
    schema = schema.exclude(path_regex="/events$")  # streams without end; they have their own tests
    for result in schema.get_all_operations():
        operation = result.ok()

        @settings(max_examples=12, suppress_health_check=list(HealthCheck), database=None)
        @given(case=operation.as_strategy())
        def check(case: schemathesis.Case) -> None:
            case.call_and_validate(excluded_checks=[positive_data_acceptance])

        check()
