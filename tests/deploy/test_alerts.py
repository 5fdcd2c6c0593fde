"""The alerting rules: of metrics that there are, each told in the documentation, and firing when they should."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from fastapi.testclient import TestClient

from service.app import create_app
from tests.service.fakes import FakeSupervisor, settings_in

ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy" / "alerts.yaml"
TOLD = (ROOT / "docs" / "cluster.md").read_text().partition("## What to watch")[2].partition("\n## ")[0]


@pytest.fixture
def rules() -> list[dict[str, Any]]:
    [group] = yaml.safe_load(RULES.read_text())["groups"]
    found: list[dict[str, Any]] = group["rules"]
    return found


def test_their_metrics_are_the_services(tmp_path: Path, rules: list[dict[str, Any]]) -> None:
    with TestClient(create_app(settings_in(tmp_path), supervisor=FakeSupervisor()), base_url="http://localhost") as api:
        text = api.get("/metrics").text
    known = set(re.findall(r"# TYPE (admeta_\w+)", text))
    for rule in rules:
        used = set(re.findall(r"admeta_\w+", rule["expr"]))
        assert {re.sub("_(bucket|count)$", "", name) for name in used} <= known, rule["alert"]
        assert used or rule["alert"] == "AdmetaDown"


def test_each_is_told_with_what_to_do(rules: list[dict[str, Any]]) -> None:
    names = [rule["alert"] for rule in rules]
    assert re.findall(r"`(Admeta\w+)`", TOLD) == names
    for rule in rules:
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert rule["annotations"]["summary"].endswith(".")


def test_they_fire_in_a_bad_hour_and_not_in_a_good_one(tmp_path: Path) -> None:
    if (promtool := shutil.which("promtool")) is None:
        pytest.skip("promtool, of Prometheus's package, is not installed")
    cases = (Path(__file__).parent / "alerts.yaml").read_text()
    (tmp_path / "cases.yaml").write_text(cases.replace("[RULES]", f"[{RULES}]"))
    done = subprocess.run([promtool, "test", "rules", tmp_path / "cases.yaml"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
