"""The smoothing of merits over two parameters, and the lanes of a timeline."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
from fastapi.testclient import TestClient

from search.states import AttemptState, Stage
from service.dashboard.plots import GRID, _heatmap_rows, heatmap, lanes
from service.database.queries import AttemptSpan, History


def history(values: list[float | None], **params: list[Any]) -> History:
    n = len(values)
    return History(
        metric="val_loss", direction="minimize", number=list(range(n)), value=values, best=values, params=params,
        state=["COMPLETE" if value is not None else "FAIL" for value in values], epoch=[1] * n, runs=[1] * n,
        failure=[None] * n, declared={"lr": {"log": True, "integer": False}},
    )  # fmt: skip


def test_better_places_have_larger_shares() -> None:
    draw = np.random.default_rng(0)
    x, y = 10 ** draw.uniform(-4, 0, 300), draw.uniform(0.1, 0.9, 300)
    found = heatmap(history(list((np.log10(x) + 1) ** 2 + 10 * (y - 0.7) ** 2), lr=list(x), beta=list(y)), "lr", "beta")
    assert found.x is not None
    assert (found.x.log, found.y is not None and found.y.log, found.n_trials) == (True, False, 300)
    share = np.array([[np.nan if cell is None else cell for cell in row] for row in found.share])
    assert share.shape == (GRID[1], GRID[0])
    j, i = np.unravel_index(np.nanargmax(share), share.shape)
    assert abs((i + 0.5) / GRID[0] - 0.75) < 0.1
    assert abs((j + 0.5) / GRID[1] - 0.75) < 0.12
    assert 0.0 <= np.nanmin(share) < np.nanmax(share) <= 1.0
    header, *cells = _heatmap_rows(found)
    assert header == ("lr", "beta", "share")
    assert len(cells) == np.isfinite(share).sum()


def test_places_far_from_all_trials_say_nothing() -> None:
    found = heatmap(history([1.0, 2.0], lr=[0.0, 1.0], beta=[0.0, 1.0]), "lr", "beta")
    assert found.share[0][0] is not None
    assert found.share[0][-1] is None


def test_what_is_not_a_number_has_no_map() -> None:
    some = history([1.0, 2.0], lr=[0.1, 0.2], kind=["a", "b"], late=[None, 0.5], flag=[True, False])
    for other in ("kind", "late", "flag", "nothing"):
        assert heatmap(some, "lr", other).share == []
    assert heatmap(history([None, None], lr=[0.1, 0.2], beta=[1.0, 2.0]), "lr", "beta").share == []
    one = heatmap(history([1.0], lr=[0.1], beta=[1.0]), "lr", "beta")
    assert one.share[GRID[1] // 2][GRID[0] // 2] == 1.0


def test_the_map_as_json_and_csv(pages: TestClient) -> None:
    here = "/studies/digits-four/searches/admetar/heatmap"
    assert pages.get(f"{here}.json").json()["y"]["name"] == "lambd"
    assert pages.get(f"{here}.csv?x=lambd&y=lr").text.startswith("lambd,lr,share")
    assert pages.get(f"{here}.json?x=kind&y=lr").json()["share"] == []
    assert pages.get(f"{here}.json?z=1", headers={"Accept": "*/*"}).status_code == 422


def span(begin: int, end: int | None, *, device: str = "cuda:0") -> AttemptSpan:
    start = datetime(2026, 1, 1, tzinfo=UTC)
    return AttemptSpan(
        label="sgdm", trial=begin, stage=Stage.SEARCH, seed=0, attempt=1, state=AttemptState.COMPLETE, node="one",
        device=device, started_at=start + timedelta(seconds=begin),
        finished_at=None if end is None else start + timedelta(seconds=end),
    )  # fmt: skip


def test_attempts_at_the_same_time_on_one_worker_have_lanes_of_their_own() -> None:
    assert lanes([span(0, 5), span(1, 3), span(2, 9, device="cuda:1"), span(3, 4), span(4, None), span(5, 6)]) == [
        0, 1, 0, 1, 1, 0,
    ]  # fmt: skip
    assert lanes([span(0, None), span(1, 2)]) == [0, 1]


def test_the_timeline_as_json_and_csv(pages: TestClient) -> None:
    attempts = pages.get("/studies/running/timeline.json").json()["attempts"]
    assert [(one["label"], one["trial"], one["state"]) for one in attempts] == [
        ("admetar", 0, "COMPLETE"),
        ("admetar", 1, "RUNNING"),
    ]
    assert attempts[1]["finished_at"] is None
    header, *rows = pages.get("/studies/running/timeline.csv").text.splitlines()
    assert header.startswith("label,trial,stage,seed,attempt,state,node,device,started_at")
    assert len(rows) == 2
    assert pages.get("/studies/waiting/timeline.json").json()["attempts"] == []
