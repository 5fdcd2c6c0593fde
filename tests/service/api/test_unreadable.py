"""A study whose stored definition today's rules refuse: it breaks no list, no other study and no page of several."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Engine, select

from search.records import Capacity, CompetingStudy
from service.database import SqlStore
from service.database.engine import make_engine, writing
from service.database.models import Study
from service.database.studies import create_study, request_cancel
from service.settings import Settings
from tests.service.dashboard.fill import fill
from tests.service.database.fill import definition, leased

Damage = Callable[[Mapping[str, Any]], dict[str, Any]]


def of_another_version(known: Mapping[str, Any]) -> dict[str, Any]:
    optimizers = [{**one, "later": 1, "space": {"gone": {"type": "other"}}} for one in known["optimizers"]]
    return {**known, "sampler": {"name": "other"}, "optimizers": optimizers, "later": {}}


def without_task(known: Mapping[str, Any]) -> dict[str, Any]:
    return {**known, "task": {**known["task"], "name": "gone"}}


def bare(known: Mapping[str, Any]) -> dict[str, Any]:
    return {"name": known["name"]}


@pytest.fixture(params=[of_another_version, without_task, bare])
def engine(request: pytest.FixtureRequest, settings: Settings) -> Iterator[Engine]:
    """All studies are damaged, but `cifar10-resnet110`."""
    damage: Damage = request.param
    engine = make_engine(settings.database_url)
    fill(engine, Path(settings.storage))
    with writing(engine) as session:
        for row in session.execute(select(Study).where(Study.name != "cifar10-resnet110")).scalars():
            row.definition, row.definition_sha256 = damage(row.definition), f"damaged {row.id}"
    yield engine
    engine.dispose()


@pytest.mark.usefixtures("engine")
def test_lists_and_pages_of_several_studies(api: TestClient) -> None:
    for path in (
        *("/v1/studies", "/v1/best?task=digits&optimizer=admetar", "/v1/paper/tables"),
        *("/v1/profiles", "/v1/cluster", "/metrics", "/v1/studies/cifar10-resnet110/comparison"),
    ):
        assert api.get(path).status_code == 200, path
    for path in (
        *("/", "/?task=digits", "/results", "/profiles", "/profiles.csv", "/explorer", "/submit", "/cluster"),
        *("/studies/cifar10-resnet110", "/submit?again=cifar10-resnet110"),
    ):
        assert api.get(path, headers={"Accept": "text/html"}).status_code == 200, path
    for task in ({"name": "digits"}, {"name": "gpt", "model": "micro"}, {"name": "cifar100"}):
        for hours in (0.5, 50):
            assert api.post("/v1/recommend", json={"task": task, "gpu_hours": hours}).status_code == 200, task


def test_another_study_starts_warm_and_shares_the_cluster(engine: Engine) -> None:
    """It starts warm from what their rows say, and shares the cluster by what their drivers told."""
    store = SqlStore(engine)
    mine, _ = leased(store, definition("mine", warm_start={"from": "everything"}))
    like = store.get_study(mine.study_id).definition
    assert store.earlier_trials("admetar", like=like, studies=None)
    assert store.best_settings("admetar", like=like, studies=None, limit=3)
    with engine.connect() as connection:
        running = connection.execute(select(Study.id).where(Study.name == "running")).scalar_one()
    others = store.acquire_lease(running, owner="driver", ttl_s=60)
    assert others is not None
    store.set_run_size(others, Capacity(cpus=1, gpus=0.0625))
    assert store.competing_studies(mine.study_id) == [CompetingStudy(priority=0, n_runs=1, cpus=1, gpus=0.0625)]


def test_another_study_is_deleted(api: TestClient, engine: Engine) -> None:
    """Those that have not ended are asked whether they start from its weights."""
    request_cancel(engine, create_study(engine, definition("other"))[0].id)
    assert api.delete("/v1/studies/other").status_code == 204
