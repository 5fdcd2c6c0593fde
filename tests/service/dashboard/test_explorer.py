"""The explorer's numbers, against the closed forms and the optimizers; and what it refuses."""

from __future__ import annotations

import pytest
from fastapi.testclient import TestClient

from admeta.theory import dema_gain, stability_limit
from service.api.errors import ApiError
from service.dashboard import explorer
from service.dashboard.explorer import Choice, explore


def test_everything_is_there_and_small(pages: TestClient) -> None:
    answer = pages.get("/explorer.json?n_steps=20")
    found = answer.json()
    assert list(found["descents"]) == ["SGDM", "AdmetaS", "Adam", "RAdam", "AdmetaR"]
    assert all(len(descent["x"]) == len(descent["loss"]) == 21 for descent in found["descents"].values())
    assert found["descents"]["AdmetaR"]["settings"]["betas"] == [0.2, 0.999]
    assert len(answer.content) < 120_000


def test_gains_and_responses_settle_at_the_closed_forms() -> None:
    found = explore(Choice(lambd=0.7, beta=0.3, ema_beta=0.8, n_steps=1))
    gains = found["filter"]["gain"]
    assert gains["AdmetaS"][0] == pytest.approx(dema_gain(0.7), rel=1e-2)
    assert gains["SGDM's EMA"][0] == pytest.approx(5.0, rel=1e-2)
    shares = found["response"]["share"]
    assert shares["AdmetaS"][:2] == [0.0, 0.0]
    assert shares["AdmetaS"][-1] == pytest.approx(1.0, abs=1e-3)
    assert shares["SGDM"][-1] == pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize(("share", "arrives"), [(0.9, True), (1.1, False)])
def test_the_region_says_what_the_descent_does(share: float, *, arrives: bool) -> None:
    lr = share * stability_limit(1.0, 0.2, 0.5) / 25.0
    found = explore(Choice(lambd=0.5, beta=0.2, lr=lr, slow_step="none", n_steps=300))
    assert found["stability"]["stable"] is arrives
    loss = found["descents"]["AdmetaS"]["loss"]
    assert (loss[-1] < 1e-3 * loss[0]) is arrives
    assert (loss[-1] > 1e3 * loss[0]) is not arrives


def test_a_diverged_descent_names_its_last_step() -> None:
    descents = explore(Choice(surface="rosenbrock", lr=1.0, n_steps=100))["descents"]
    assert descents["SGDM"]["diverged_at"] == len(descents["SGDM"]["x"]) < 100


def test_a_start_of_ones_own(pages: TestClient) -> None:
    found = pages.get("/explorer.json?n_steps=1&x=0.5&y=-0.25").json()
    assert found["start"] == [0.5, -0.25] == [found["descents"]["Adam"]["x"][0], found["descents"]["Adam"]["y"][0]]


@pytest.mark.parametrize(
    "query", ["lambd=1", "lambd=nan", "beta=-1", "lr=0", "lr=inf", "k=0", "n_steps=100000", "slow_step=9", "x=1", "z=1"]
)
def test_what_cannot_be_shown_is_refused(pages: TestClient, query: str) -> None:
    answer = pages.get(f"/explorer.json?{query}", headers={"Accept": "*/*"})
    assert answer.status_code == 422
    assert answer.json()["hint"]
    assert pages.get(f"/explorer?{query}").status_code == 422


def test_the_third_waits_and_is_sent_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explorer, "_LONGEST_WAIT_S", 0.01)
    with explorer._turn(), explorer._turn(), pytest.raises(ApiError) as refused, explorer._turn():
        pass
    assert (refused.value.status, refused.value.headers) == (429, {"Retry-After": "1"})


def test_descents_as_csv(pages: TestClient) -> None:
    lines = pages.get("/explorer.csv?n_steps=2").text.splitlines()
    assert lines[0] == "optimizer,step,x,y,loss"
    assert len(lines) == 1 + 5 * 3
