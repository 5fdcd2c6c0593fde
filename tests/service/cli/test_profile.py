"""`admeta profile`: from the service, and from curves of others without one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.verdicts.across import PUBLISHED
from tests.tasks.shared_data import shared_public

Say = Callable[..., tuple[int, str, str]]
CURVES = "optimizer,task,seed,step,value,target\n" + "".join(
    f"{name},w{task},{seed},{step},{value},0.9\n"
    for name, reached in (("fast", 10), ("slow", 20))
    for task in range(6)
    for seed in range(3)
    for step, value in ((5, 0.5), (reached, 0.95))
)


def test_algoperfs_published_scores_come_out(say_json: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADMETA_URL", "http://127.0.0.1:9")  # nobody answers there
    found = say_json(f"profile --curves {shared_public('algoperf-curves.csv.xz')}")
    scores = {view["group"]: {one["name"]: one["by_time"]["area"] for one in view["optimizers"]} for view in found}
    for rules, published in PUBLISHED.items():
        assert {name: round(score, 4) for name, score in scores[f"v05 {rules}"].items()} == published
    external = next(view for view in found if view["group"] == "v05 external_tuning")
    assert external["ranks"]["n_tasks"] == 8
    assert external["ranks"]["p_value"] < 0.05


def test_curves_of_a_file(say: Say, say_json: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "c.csv").write_text(CURVES)
    code, out, err = say(f"profile --curves {tmp_path / 'c.csv'}")
    assert (code, err) == (0, "")
    assert "fast is shown to rank better than slow" in out
    assert "0.6717" in out  # twice as slow: (4 - 2) / (4 - 1) = 0.6667, by the trapezoid rule on 100 points
    (view,) = say_json(f"profile --curves {tmp_path / 'c.csv'}")
    slow = [one for one in view["results"] if one["optimizer"] == "slow"]
    assert {(one["ratio"], one["time"], one["rank"], one["n"], one["n_reached"]) for one in slow} == {(2, 20, 2, 3, 3)}


@pytest.mark.parametrize(
    ("line", "code", "part"),
    [
        ("profile --curves {dir}/none.csv", 1, "cannot be read"),
        ("profile --curves {dir}/c.csv", 1, "no file *targets.json. Give --targets FILE"),
        ("profile --curves {dir}/c.csv --targets {dir}/c.csv", 1, "holds no targets"),
        ("profile --curves {dir}/c.csv --study x", 2, "--study has no effect"),
        ("profile --targets {dir}/c.csv", 2, "needs --curves"),
        ("profile --time hours", 2, "hours"),
    ],
)
def test_mistakes(say: Say, tmp_path: Path, line: str, code: int, part: str) -> None:
    (tmp_path / "c.csv").write_text("optimizer,task,step,value\na,w,1,1\n")
    found, _, err = say(line.format(dir=tmp_path))
    assert found == code
    assert part in " ".join(err.replace("\u2502", "").split())


def test_from_the_service(say: Say, say_json: Callable[..., Any], filled: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADMETA_URL", filled)
    code, out, err = say("profile")
    assert (code, err) == (0, "")
    assert "With 2 optimizers no order can be shown by fewer than 6 tasks." in out
    assert "not by time: no optimizer reached the target" in out
    assert "has results on 1 of the 2 recipes" in out
    view = say_json("profile --task digits --optimizer admetar --optimizer sgdm --time steps")
    assert ([one["name"] for one in view["optimizers"]], view["time"]) == (["admetar", "sgdm"], "steps")
    for line, part in (
        ("--study digits-fou", "Did you mean 'digits-four'?"),
        ("--optimizer x --optimizer y", "no completed study of those chosen has an optimizer 'x'"),
        ("--task nothing", "unknown task 'nothing'"),
        ("--recipe 0", "no study has a recipe that begins with '0'"),
    ):
        code, _, err = say(f"profile {line}")
        assert code == 1
        assert part in err
    assert json.loads(say("profile --tag none -o json")[1])["optimizers"] == []
