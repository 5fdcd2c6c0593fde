"""Commands that change studies, against a live service."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from admeta.client import Client
from search.definition import StudyDefinition
from search.records import RunOutcome
from search.states import FailureKind, RunState, StudyState
from service.database import SqlStore
from service.database.engine import make_engine
from service.settings import Settings
from tests.service.database.fill import complete, leased, run
from tests.service.fakes import definition, live

Say = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def _service(empty: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADMETA_URL", empty)


@pytest.fixture
def study(request: pytest.FixtureRequest, empty: str) -> str:
    """A study of the test's own."""
    with Client(empty) as client:
        return client.submit(definition(request.node.name.replace("[", "-").rstrip("]"))).study.name


def test_a_study_of_which_an_optimizer_failed_has_an_exit_code_of_its_own(
    settings: Settings, say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is COMPLETED: the other optimizer has its results. A script must notice all the same."""
    engine = make_engine(settings.database_url)
    lease, searches = leased(store := SqlStore(engine), StudyDefinition.model_validate(definition("half")))
    failed = RunOutcome(state=RunState.FAIL, failure=FailureKind.ERROR, error="ValueError: no")
    run(store, lease, searches[0], 0, failed)
    run(store, lease, searches[1], 0, complete(0.9))
    store.set_study_state(lease, StudyState.COMPLETED, reason="admetar: its only trial failed, with: ValueError: no")
    with live(settings) as url:
        monkeypatch.setenv("ADMETA_URL", url)
        code, out, err = say("watch half")
        assert code == 5
        assert "sgdm" in out
        assert "study half is COMPLETED: admetar: its only trial failed, with: ValueError: no" in err
        assert "hint: `admeta runs half --state FAIL` lists them" in err
        assert say("show half")[0] == 0
    engine.dispose()


def test_submit(say: Say, say_json: Callable[..., Any], study_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, out, _ = say("submit", str(study_file))
    assert "submitted: QUEUED" in out
    assert "standard deviations between seeds is shown with a probability of 80 %" in out
    assert "admeta watch first" in out
    assert "exists already" in say("submit", str(study_file))[1]
    made = say_json("submit --name second --set budget.trials_per_optimizer=3", str(study_file))
    assert (made["name"], made["searches"][0]["n_trials"]) == ("second", 3)
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps(definition("third"))))
    assert "study third" in say("submit -")[1]


def test_submit_and_wait(say: Say, study_file: Path, empty: str, monkeypatch: pytest.MonkeyPatch) -> None:
    code, out, err = say("submit --name waited --wait --timeout 0.1", str(study_file))
    assert (code, out) == (4, "")
    assert "study waited is QUEUED" in err
    say("cancel waited")
    code, out, err = say("submit --name waited --wait -o json", str(study_file))
    assert (code, json.loads(out)["state"]) == (1, "CANCELLED")
    assert "cancelled on request" in err

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("admeta.client.Client.wait", interrupted)
    code, _, err = say("watch waited")
    assert code == 130
    assert "The study continues" in err


def test_notes_and_tags(say: Say, say_json: Callable[..., Any], study: str) -> None:
    made = say_json(f"annotate {study} --notes kept --tag a --tag b")
    assert (made["notes"], made["tags"]) == ("kept", ["a", "b"])
    assert [one["name"] for one in say_json("list --tag b")["items"]] == [study]
    assert say(f"annotate {study} --no-tags")[1].strip() == f"{study}: no tags; kept"


def test_pause_resume_cancel(say: Say, say_json: Callable[..., Any], study: str) -> None:
    assert say(f"pause {study}") == (0, f"study {study} is PAUSED\n", "")
    assert say_json(f"resume {study}")["state"] == "QUEUED"
    assert "CANCELLED" in say(f"cancel {study}")[1]
    code, _, err = say(f"cancel {study}")
    assert code == 1
    assert err.startswith(f"error: study '{study}' is CANCELLED")
    assert "hint: " in err


def test_cancel_of_one_trial(say: Say, study: str) -> None:
    code, _, err = say(f"cancel {study} --trial admetar/0")
    assert code == 1
    assert "trial" in err
    assert say(f"cancel {study} --trial nonsense")[0] == 2


def test_extend(say: Say, say_json: Callable[..., Any], study: str) -> None:
    code, _, err = say(f"extend {study} --trials 6")
    assert (code, "only COMPLETED, FAILED or CANCELLED studies can be extended" in err) == (1, True)
    assert "Wait for its end, or cancel it: what has finished is kept" in err
    say(f"pause {study}")
    assert "Resume it and wait for its end, or cancel it" in say(f"extend {study} --trials 6")[2]
    say(f"cancel {study}")
    options = "--trials 6 --trials-of sgdm=8 --seeds 4 --optimizer adamw --limit max_hours=2"
    added = "{name: sgd, label: plain, space: {lr: {type: float, low: 0.001, high: 0.1}}}"
    code, out, _ = say(f"extend {study} {options}", "--optimizer", added)
    assert code == 0
    assert f"study {study} is extended: 6 trials of each optimizer, before 4; 8 trials of sgdm, before 4" in out
    assert "plain added" in out
    assert say(f"extend {study} {options}", "--optimizer", added)[1] == out  # totals: nothing more
    shown = say_json(f"show {study}")
    assert shown["extensions"][0]["request"]["trials_of"] == {"sgdm": 8}
    assert {search["label"]: search["n_trials"] for search in shown["searches"]} == {
        "admetar": 6, "sgdm": 8, "adamw": 6, "plain": 6,
    }  # fmt: skip
    assert "extended" in say(f"show {study}")[1]
    say(f"cancel {study}")
    assert say_json(f"extend {study}")["extensions"][1]["changes"] == []
    assert say(f"extend {study} --trials-of sgdm")[0] == 2


def test_clone(say: Say, say_json: Callable[..., Any], study: str) -> None:
    changes = ["--set", "optimizers.1.space.lr.low=1e-4", "--set", "priority=2"]
    cloned = say_json(f"clone {study} {study}-again", *changes)
    assert (cloned["name"], cloned["priority"]) == (f"{study}-again", 2)
    assert cloned["definition"]["optimizers"][1]["space"]["lr"]["low"] == 1e-4
    assert "submitted" in say(f"clone {study} {study}-third")[1]


def test_delete(say: Say, say_json: Callable[..., Any], study: str, monkeypatch: pytest.MonkeyPatch) -> None:
    code, _, err = say(f"delete {study} -y")
    assert code == 1
    assert f"'{study}' is QUEUED" in err
    say(f"cancel {study}")
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    code, out, _ = say(f"delete {study}")
    assert code == 1
    assert f"Delete study {study} (CANCELLED) with 0 finished trials?" in out
    assert say_json(f"delete {study} --yes")["deleted"]
    assert say(f"show {study}")[0] == 1


def test_a_broken_study_file_is_told_field_by_field(say: Say, tmp_path: Path) -> None:
    path = tmp_path / "broken.yaml"
    path.write_text("name: a b\ntask: {name: synthetic, epochs: .nan}\noptimizers: [{name: sgdm}]\n")
    assert "task.epochs = 'nan'" in say("submit", str(path))[2]
    path.write_text("name: a b\ntask: {name: synthetic, epochs: 0}\noptimizers: [{name: sgdm}]\n")
    code, _, err = say("submit", str(path))
    assert code == 1
    assert "2 rules are broken" in err
    assert "  task.epochs = 0: must be greater than or equal to 1" in err
    assert "  name = 'a b': must be 1 to 100" in err
    code, _, err = say("submit /nowhere.yaml")
    assert code == 1
    assert "No such file" in err
