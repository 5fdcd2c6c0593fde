"""AlgoPerf's scores from curves, and what the files may look like; the published scores are in tests/service/cli."""

from __future__ import annotations

import csv
import json
import lzma
from pathlib import Path
from typing import Any

import pytest

from search.analysis import AnalysisError
from search.analysis.algoperf import find_targets, read_curves, scores, targets_of
from search.states import Direction

ROWS = [
    {"optimizer": name, "task": task, "seed": seed, "step": step, "metric": "val_loss", "value": value, "target": 1.0}
    for name, first in (("fast", 10), ("slow", 20), ("never", 99))
    for task in ("w", "x")
    for seed in (0, 1, 2)
    for step, value in ((5, 2.0), (first, 0.9 if first < 99 and (name, task) != ("slow", "x") else None))
]
"""`slow` needs twice the steps on w and misses x; a value of None is not finite."""


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    with lzma.open(path, "wt", newline="") if path.suffix == ".xz" else path.open("w", newline="") as file:
        if ".jsonl" in path.name:
            file.write("".join(json.dumps(row) + "\n" for row in rows))
        else:
            table = csv.DictWriter(file, rows[0].keys())
            table.writeheader()
            table.writerows(rows)
    return path


@pytest.mark.parametrize("name", ["c.csv", "c.csv.xz", "c.jsonl", "c.jsonl.xz"])
def test_any_form_of_file_gives_the_same_scores(tmp_path: Path, name: str) -> None:
    rows = list(read_curves(write(tmp_path / name, ROWS)))
    targets = targets_of(rows)
    assert targets is not None
    assert targets.by_workload["w"].direction is Direction.MINIMIZE  # by the metric's name
    found = scores(rows, targets)
    assert {name: one.score for name, one in found.items()} == pytest.approx(
        {"fast": 1, "slow": 1 / 3, "never": 0}, abs=0.01
    )
    assert (found["slow"].times["w"], found["slow"].n_studies["w"], found["slow"].n_reached["x"]) == (20, 3, 0)


def test_a_stated_direction_comes_before_the_metrics_name(tmp_path: Path) -> None:
    path = write(tmp_path / "c.csv", [{**ROWS[0], "direction": "maximize"}])
    assert [row.target.direction for row in read_curves(path) if row.target] == [Direction.MAXIMIZE]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("c.csv", "optimizer,task,value\na,w,1\n", "lacks the columns 'score_s' or 'seconds' or 'step'; it has"),
        ("c.csv", "optimizer,task,step,value\na,w,x,1\n", "line 2 of .* has step 'x'"),
        ("c.csv", "optimizer,task,step,value,target,direction\na,w,1,1,1,up\n", "minimize or maximize"),
        ("c.csv", "optimizer,task,step,value\n", "has no rows of curves"),
        ("c.jsonl", "[1]\n", "line 1 of .* is no JSON object"),
        ("c.jsonl", "{\n", "cannot be read"),
        ("c.csv.xz", "not xz", "cannot be read"),
    ],
)
def test_a_file_that_breaks_a_rule(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(AnalysisError, match=message):
        list(read_curves(tmp_path / name))
    with pytest.raises(AnalysisError, match="cannot be read"):
        list(read_curves(tmp_path / "missing.csv"))


def test_a_workload_has_one_target(tmp_path: Path) -> None:
    rows = read_curves(write(tmp_path / "c.csv", [ROWS[0], {**ROWS[0], "target": 2.0}]))
    with pytest.raises(AnalysisError, match=r"has the targets 1\.0 and 2\.0"):
        targets_of(rows)


def test_targets_lie_beside_the_curves(tmp_path: Path) -> None:
    curves = tmp_path / "c.csv"
    with pytest.raises(AnalysisError, match="Give --targets FILE"):
        find_targets(curves, group="v1 rules")
    (tmp_path / "a-v1-targets.json").touch()
    assert find_targets(curves, group="").name == "a-v1-targets.json"
    (tmp_path / "a-v2-targets.json").touch()
    assert find_targets(curves, group="v2 rules").name == "a-v2-targets.json"
    with pytest.raises(AnalysisError, match="'v3' in its name"):
        find_targets(curves, group="v3 rules")
