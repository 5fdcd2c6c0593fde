"""Nodes that cannot train are named before a study starts."""

from __future__ import annotations

import json
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from ray import cloudpickle
from ray.exceptions import RuntimeEnvSetupError

from service.ray import node_checks
from service.ray.node_checks import Nodes, installed, judge

OURS = {
    "python": "3.12.4",
    "admeta-search": "0.1.0",
    "torch": "2.14.1",
    "ray": "2.60.0",
    "numpy": "2.3.0",
    "pydantic": "2.14.4",
}


def test_a_node_like_the_service_is_fine() -> None:
    assert judge("10.0.0.2", OURS, expected=OURS) == ("", "")
    assert judge("10.0.0.2", {**OURS, "python": "3.12.9"}, expected=OURS) == ("", "")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"torch": ""}, "node 10.0.0.2 has no torch; install"),
        ({"torch": "", "admeta-search": ""}, "has no admeta-search and no torch"),
        ({"ray": "2.59.0"}, r"has ray 2.59.0 \(the service: 2.60.0\)"),
        ({"admeta-search": "0.0.9"}, r"has admeta-search 0.0.9 \(the service: 0.1.0\)"),
        ({"python": "3.11.2"}, r"has python 3.11.2 \(the service: 3.12.4\)"),
        ({"error": "ImportError: libcudart.so"}, "cannot load what a trial needs: ImportError: libcudart.so"),
    ],
)
def test_a_node_that_would_fail_every_trial(change: dict[str, str], words: str) -> None:
    problem, _ = judge("10.0.0.2", {**OURS, **change}, expected=OURS)
    assert words.replace("\\", "") in problem


def test_another_torch_is_worth_a_word() -> None:
    problem, difference = judge("10.0.0.2", {**OURS, "torch": "2.11.0+cu130"}, expected=OURS)
    assert problem == ""
    assert "torch 2.11.0+cu130 (the service: 2.14.1): trials may differ between nodes" in difference


def test_what_is_installed_here() -> None:
    versions = installed(("torch", "no-such-package"))
    assert versions["torch"]
    assert versions["no-such-package"] == ""
    assert versions["python"].startswith("3.")


def test_a_node_without_our_packages_understands_the_question() -> None:
    script = (
        "import json, pickle, sys\n"
        "sys.modules.update(dict.fromkeys(('admeta', 'search', 'service', 'tasks')))\n"
        "ask = pickle.load(sys.stdin.buffer)\n"
        "print(json.dumps(ask(('ray', 'no-such-package'), ('search.trainable',))))\n"
    )
    told = cloudpickle.dumps(node_checks._make_check())
    done = subprocess.run([sys.executable, "-c", script], input=told, capture_output=True, check=True)
    found = json.loads(done.stdout)
    assert found.pop("error").startswith("ModuleNotFoundError")
    assert found == installed(("ray", "no-such-package"))


def test_a_node_that_cannot_prepare_the_environment_is_named_and_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    node = {"NodeID": "n1", "NodeManagerAddress": "10.0.0.2", "Alive": True, "Resources": {"CPU": 4.0}}
    answers: list[Any] = [RuntimeEnvSetupError("pip found no admeta-search"), installed(node_checks._PACKAGES)]

    def get(asked: int) -> dict[str, str]:
        if isinstance(answers[asked], Exception):
            raise answers[asked]
        versions: dict[str, str] = answers[asked]
        return versions

    numbers = iter(range(2))
    monkeypatch.setattr(node_checks, "CHECK_AGAIN_S", 3600.0)
    monkeypatch.setattr(node_checks, "_ask", lambda node: next(numbers))
    monkeypatch.setattr("ray.nodes", lambda: [node])
    monkeypatch.setattr("ray.wait", lambda asked, timeout: (asked, []))
    monkeypatch.setattr("ray.get", get)
    nodes = Nodes(prepares=True)
    for _ in range(2):  # the second look is too early to ask again
        (problem,) = nodes.problems()
        assert problem.startswith("node 10.0.0.2 cannot prepare the runtime environment: ")
        assert "pip found no admeta-search" in problem
    monkeypatch.setattr(node_checks, "CHECK_AGAIN_S", -1.0)
    assert nodes.problems() == []


def test_a_node_with_a_problem_is_checked_again_and_can_train_once_that_has_passed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A network disk was away for a moment: all studies of the cluster waited until the node was restarted."""
    node = {"NodeID": "n1", "NodeManagerAddress": "10.0.0.2", "Alive": True, "Resources": {"CPU": 4.0}}
    good = installed(node_checks._PACKAGES)
    answers = [{**good, "error": "OSError: [Errno 116] Stale file handle"}, good]
    asked: list[int] = []
    clock, answered = [0.0], [True]
    monkeypatch.setattr(node_checks, "time", SimpleNamespace(monotonic=lambda: clock[0]))

    def ask(_: str) -> int:
        asked.append(len(asked))
        return asked[-1]

    monkeypatch.setattr(node_checks, "_ask", ask)
    monkeypatch.setattr("ray.nodes", lambda: [node])
    monkeypatch.setattr("ray.wait", lambda asked, timeout: (asked, []) if answered[0] else ([], asked))
    monkeypatch.setattr("ray.get", lambda asked: answers[asked])
    nodes = Nodes()
    for clock[0] in (0.0, node_checks.CHECK_AGAIN_S):
        assert ["Stale file handle" in problem for problem in nodes.problems()] == [True]
    assert asked == [0]
    clock[0], answered[0] = 2 * node_checks.CHECK_AGAIN_S, False
    assert ["Stale file handle" in problem for problem in nodes.problems()] == [True]  # known until the node answers
    answered[0] = True
    for clock[0] in (3 * node_checks.CHECK_AGAIN_S, 9 * node_checks.CHECK_AGAIN_S):
        assert nodes.problems() == []
    assert asked == [0, 1]


def test_studies_wait_for_a_slow_check_for_a_while_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it finds counts whenever it comes."""
    node = {"NodeID": "n1", "NodeManagerAddress": "10.0.0.2", "Alive": True, "Resources": {"CPU": 4.0}}
    clock, answered = [0.0], [False]
    monkeypatch.setattr(node_checks, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(node_checks, "_ask", lambda node: 0)
    monkeypatch.setattr("ray.nodes", lambda: [node])
    monkeypatch.setattr("ray.wait", lambda asked, timeout: (asked, []) if answered[0] else ([], asked))
    monkeypatch.setattr("ray.get", lambda asked: {**installed(node_checks._PACKAGES), "torch": ""})
    nodes = Nodes()
    assert nodes.problems() == ["node 10.0.0.2 is being checked"]
    clock[0] = node_checks.CHECK_TIMEOUT_S + 1
    assert nodes.problems() == []
    answered[0] = True
    assert ["no torch" in problem for problem in nodes.problems()] == [True]
