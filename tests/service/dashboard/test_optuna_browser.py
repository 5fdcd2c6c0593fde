"""optuna-dashboard in a real browser, behind our headers: it draws, and asks nobody else."""

from __future__ import annotations

from typing import Any

import optuna
import pytest

from service.settings import Settings
from tests.machine import PATIENCE_S
from tests.service.fakes import live

pytestmark = pytest.mark.browser


def test_it_draws_a_search(settings: Settings, browser: Any) -> None:
    pytest.importorskip("optuna_dashboard")
    study = optuna.create_study(study_name="digits/admetar", storage=settings.database_url)
    study.optimize(lambda trial: trial.suggest_float("lr", 0, 1), n_trials=4)
    faults: list[str] = []
    with live(settings) as address:
        page = browser.new_page()
        page.set_default_timeout(1000 * PATIENCE_S)
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("request", lambda asked: _check_origin(asked.url, address, faults))
        page.on("response", lambda got: faults.append(f"{got.status} {got.url}") if got.status >= 400 else None)
        page.goto(f"{address}/dashboard")
        page.get_by_text("digits/admetar").first.wait_for()
        page.goto(f"{address}/dashboard/studies/{study._study_id}")
        page.locator(".js-plotly-plot svg.main-svg").first.wait_for()
        page.close()
    assert not faults


def _check_origin(url: str, address: str, faults: list[str]) -> None:
    if not url.startswith((address, "data:", "blob:")):
        faults.append(f"asked {url}")
