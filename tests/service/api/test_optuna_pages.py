"""Optuna's own tools on our database: its dashboard behind our door, its command line, its library."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import optuna
import pytest
from fastapi.testclient import TestClient
from optuna.trial import TrialState

from search.definition import StudyDefinition
from search.loop import SearchLoop
from search.records import Point, RunOutcome
from search.states import FailureKind, RunState, Scope
from search.trial_views import FAILURE_KIND
from service.app import create_app
from service.database import SqlStore, tokens
from service.database.engine import make_engine
from service.settings import Settings, load
from tests.machine import PATIENCE_S
from tests.service.database.fill import definition, leased
from tests.service.fakes import ADDRESS, FakeSupervisor

pytest.importorskip("optuna_dashboard")
pytest.importorskip("a2wsgi")
OUTCOMES = (
    RunOutcome(state=RunState.COMPLETE, value=0.9),
    RunOutcome(state=RunState.PRUNED, value=0.3),
    RunOutcome(state=RunState.FAIL, failure=FailureKind.DIVERGED, error="loss is nan"),
)


def _search(store: SqlStore, study: StudyDefinition) -> None:
    """A search as a driver runs it: one trial of each outcome, one that goes on."""
    lease, (record, _) = leased(store, study)
    loop = SearchLoop(store=store, lease=lease, record=record, definition=study, runs=[])
    for outcome in (*OUTCOMES, None):
        run = loop.propose()
        assert run is not None
        run = store.start_attempt(lease, run.id)
        loop.update(run)
        loop.report(run, [Point(epoch=1, step=10, value=0.2, metrics={"val_accuracy": 0.2})])
        if outcome is not None:
            loop.finish(run, outcome)


@pytest.fixture
def searched(settings: Settings) -> Settings:
    engine = make_engine(settings.database_url)
    _search(SqlStore(engine), definition(pruner={"name": "none"}))
    engine.dispose()
    return settings


def test_optuna_knows_our_searches_with_true_states(searched: Settings) -> None:
    study = optuna.load_study(study_name="digits/admetar", storage=searched.database_url)
    states = [trial.state for trial in study.trials]
    assert Counter(states) == Counter([TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL, TrialState.RUNNING])
    assert study.best_value == 0.9
    (failed,) = study.get_trials(states=[TrialState.FAIL])
    assert failed.user_attrs[FAILURE_KIND] == "diverged"
    assert failed.intermediate_values == {1: 0.2}
    command = [Path(sys.executable).with_name("optuna"), "studies", "--storage", searched.database_url, "-f", "json"]
    listed = json.loads(subprocess.run(command, check=True, capture_output=True, text=True, timeout=PATIENCE_S).stdout)
    assert [(row["name"], row["n_trials"]) for row in listed] == [("digits/admetar", 4)]


def test_its_pages_show_and_do_not_change(searched: Settings) -> None:
    with TestClient(create_app(searched, supervisor=FakeSupervisor()), base_url=ADDRESS) as api:
        assert "Optuna Dashboard" in api.get("/dashboard").text
        (shown,) = api.get("/api/studies").json()["study_summaries"]
        assert shown["study_name"] == "digits/admetar"
        number = shown["study_id"]
        assert len(api.get(f"/api/studies/{number}").json()["trials"]) == 4
        assert api.get(f"/csv/{number}").text.startswith("Number,State")
        opened = api.get("/studies/digits/searches/admetar/optuna", follow_redirects=False)
        assert opened.headers["Location"] == f"/dashboard/studies/{number}"
        for label in ("sgdm", "unknown"):  # no trial of it has begun; there is none
            opened = api.get(f"/studies/digits/searches/{label}/optuna", follow_redirects=False)
            assert opened.headers["Location"] == "/dashboard"
        for method, path in (("DELETE", f"/api/studies/{number}"), ("POST", "/api/studies"), ("PUT", "/api/x")):
            refused = api.request(method, path, json={})
            assert (refused.status_code, refused.json()["error"]) == (403, "read_only")
        fault = api.get(f"/csv/{10**30}")
        assert (fault.status_code, fault.json()["error"]) == (502, "optuna_dashboard_failed")
        assert api.get("/apix").json()["error"] == "not_found"


def test_only_admins_change_something_through_it(searched: Settings) -> None:
    guarded = load({}, home=searched.home, port=0, require_token=True)
    with TestClient(create_app(guarded, supervisor=FakeSupervisor()), base_url=ADDRESS) as api:
        assert api.get("/api/studies").status_code == 401
        engine = api.app.state.engine  # type: ignore[attr-defined]
        status = {}
        for scope in Scope:
            token = tokens.create_token(engine, name=scope, scope=scope).token
            headers = {"Authorization": f"Bearer {token}"}
            number = api.get("/api/studies", headers=headers).json()["study_summaries"][0]["study_id"]
            note = {"body": "checked", "version": 1}
            status[scope.value] = api.put(f"/api/studies/{number}/note", json=note, headers=headers).status_code
        assert status == {"read": 403, "write": 403, "admin": 204}


def test_without_the_extra_nothing_is_there(searched: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.api.optuna_pages.is_installed", lambda: False)
    with TestClient(create_app(searched, supervisor=FakeSupervisor()), base_url=ADDRESS) as api:
        assert api.get("/dashboard").json()["error"] == "not_found"
