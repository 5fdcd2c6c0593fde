"""Nodes that cannot train are named before a study starts."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from ray import cloudpickle
from ray.exceptions import RuntimeEnvSetupError

from service.ray import cluster
from service.ray.cluster import Nodes, installed, judge

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
    told = cloudpickle.dumps(cluster._make_check())
    done = subprocess.run([sys.executable, "-c", script], input=told, capture_output=True, check=True)
    found = json.loads(done.stdout)
    assert found.pop("error").startswith("ModuleNotFoundError")
    assert found == installed(("ray", "no-such-package"))


def test_a_node_that_cannot_prepare_the_environment_is_named_and_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    node = {"NodeID": "n1", "NodeManagerAddress": "10.0.0.2", "Alive": True, "Resources": {"CPU": 4.0}}
    answers: list[Any] = [RuntimeEnvSetupError("pip found no admeta-search"), installed(cluster._PACKAGES)]

    def get(asked: int) -> dict[str, str]:
        if isinstance(answers[asked], Exception):
            raise answers[asked]
        versions: dict[str, str] = answers[asked]
        return versions

    numbers = iter(range(2))
    monkeypatch.setattr(cluster, "CHECK_AGAIN_S", 3600.0)
    monkeypatch.setattr(cluster, "_ask", lambda node: next(numbers))
    monkeypatch.setattr("ray.nodes", lambda: [node])
    monkeypatch.setattr("ray.wait", lambda asked, timeout: (asked, []))
    monkeypatch.setattr("ray.get", get)
    nodes = Nodes(prepares=True)
    for _ in range(2):  # the second look is too early to ask again
        (problem,) = nodes.problems()
        assert problem.startswith("node 10.0.0.2 cannot prepare the runtime environment: ")
        assert "pip found no admeta-search" in problem
    monkeypatch.setattr(cluster, "CHECK_AGAIN_S", 0.0)
    assert nodes.problems() == []
