"""Commands that read, against a live service with studies in every state."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import yaml

from admeta.cli.output import show_comparison
from admeta.cli.results import _best_of_each
from admeta.client import Client
from admeta.client.models import ComparisonView, EdgeView, LogView, RecipeView

Say = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def _service(filled: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADMETA_URL", filled)


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("list", ["digits-four", "running", "FAILED", "64/64"]),
        ("list --state completed --optimizer admetas --task digits", ["digits-four"]),
        ("list --name GITS", ["digits-four"]),
        ("show digits-four", ["COMPLETED", "admetar", "16/16", "3/3"]),
        ("compare digits-four", ["admetar", "±", "diverged", "admetar − admetas", "p (adjusted)", "admetar is better"]),
        ("compare digits-four --test wilcoxon", ["admetar"]),
        ("compare digits-four running", ["(best)", "budget.trials_per_optimizer", "16", "There are no verdicts"]),
        ("compare digits-four --curves", ["best of", "16", "to target", "met it"]),
        ("compare digits-four --searches each", ["admetar"]),
        ("best --task digits --optimizer admetar", ["confirmed", "lr=", "digits-four"]),
        ("recommend --task digits --gpu-hours 1", ["admetar", "probability", "Spend the hours on", "AdmetaR("]),
        ("recommend --task cifar100", ["other recipes", "With --gpu-hours H it also says"]),
        ("best --task digits", ["admetar", "admetas", "sgdm", "adamw"]),
        ("trials digits-four --order best --limit 3", ["admetar", "COMPLETE", "lambd="]),
        ("trials digits-four --optimizer sgdm --state PRUNED", ["sgdm", "PRUNED"]),
        ("trials digits-four admetar/7", ["admetar/7", "confirm", "val_accuracy", "COMPLETE"]),
        ("runs digits-four --stage confirm --optimizer admetar", ["admetar/7", "confirm", "COMPLETE"]),
        ("runs digits-four --failure diverged", ["diverged", "FloatingPointError"]),
        ("runs running --state running", ["RUNNING"]),
        ("run 8", ["run 8 of study digits-four", "admetar/7", "COMPLETE", "attempt", "val_accuracy"]),
        ("run 11", ["FAIL (diverged)", "FloatingPointError"]),
        ("importance digits-four", ["admetar", "has begun"]),
        ("sensitivity digits-four", ["chosen lr", "sgdm", "× ", "lr may be off by"]),
        ("sensitivity digits-four --parameter lambd --margin 0.1", ["lambd", "a range needs 3"]),
        ("pareto digits-four", ["admetar/7", "train_s", "lr=", "Hypervolume: admetar", "the reference, the worst"]),
        ("pareto digits-four --objective peak_memory_bytes", ["peak_memory_bytes"]),
        ("tasks", ["digits", "synthetic"]),
        ("tasks digits", ["epochs", "batch_size", "convnet"]),
        ("optimizers", ["admetar", "lr [", "log"]),
        ("optimizers admetar", ["lambd", "default"]),
        ("cluster", ["Ray is ok", "10.0.0.1", "6.5/8", "1. waiting"]),
        ("version", ["."]),
    ],
)
def test_tables_json_and_yaml(say: Say, line: str, shown: list[str]) -> None:
    code, table, err = say(line)
    assert (code, err) == (0, "")
    assert [text for text in shown if text not in table] == []
    _, out, _ = say(line, "--output", "json")
    assert yaml.safe_load(say(line, "-o", "yaml")[1]) == json.loads(out)


def test_what_json_says_is_what_rest_says(say_json: Callable[..., Any]) -> None:
    assert {study["name"] for study in say_json("list")["items"]} >= {"digits-four", "broken", "waiting"}
    assert say_json("show digits-four")["definition"]["budget"]["trials_per_optimizer"] == 16
    assert say_json("best --task digits --optimizer admetar")["settings"].keys() >= {"lr", "lambd"}
    best = say_json("best --task digits --optimizer admetar")
    assert say_json(f"best --task digits --optimizer admetar --recipe {best['recipe'][:9]}") == best
    assert [best["optimizer"] for best in say_json("best --task digits")] == ["adamw", "admetar", "admetas", "sgdm"]
    assert len(say_json("trials digits-four admetar/7")["curve"]) == 12
    runs = say_json("runs digits-four --trial 7 --optimizer admetar")["items"]
    assert [run["stage"] for run in runs] == ["search", "confirm", "confirm", "confirm"]


def test_a_best_value_at_the_end_of_its_space_is_told_with_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    edge = EdgeView(
        label="sgdm", parameter="lr", value=0.5, end="high", bound=0.5, wider=5.0,
        change="optimizers.1.space.lr.high=5.0", sentence="sgdm: the best lr = 0.5 lies at the upper end",
    )  # fmt: skip
    view = ComparisonView(
        study="digits", task="digits", metric="val_accuracy", direction="maximize", complete=True, rows=[], pairs=[],
        edges=[edge], wider={"name": "digits-wider"},
    )  # fmt: skip
    show_comparison(view)
    said = capsys.readouterr().out
    assert "sgdm: the best lr = 0.5 lies at the upper end.\n" in said
    assert "admeta clone digits digits-wider --set optimizers.1.space.lr.high=5.0" in said


def test_recipes_are_told_with_what_a_verdict_then_compares(capsys: pytest.CaptureFixture[str]) -> None:
    nothing = {"mean": None, "std": None, "n": 0, "n_failed": 0}
    row = {
        "label": "sgdm", "optimizer": "sgdm", "rank": 1, "trial": 2, "settings": {"lr": 0.1}, "search_value": 0.9,
        "training": {"batch_size": 32, "schedule.name": "cosine"}, "validation": nothing, "test": nothing,
        "test_metric": None, "divergence": {"count": 0, "n": 0, "rate": None, "low": None, "high": None},
        "expected_best": [], "best_of_n": {"median": [], "low": [], "high": []},
        **dict.fromkeys(("n_trials", "n_complete", "n_pruned", "n_failed", "n_diverged"), 1),
        **dict.fromkeys(("train_s", "gpu_s", "optimizer_s"), 0.0),
    }  # fmt: skip
    view = ComparisonView.model_validate(
        {
            "study": "own", "task": "digits", "metric": "val_accuracy", "direction": "maximize", "complete": True,
            "rows": [row], "pairs": [], "remarks": ["Each optimizer has its own batch_size."],
        }
    )  # fmt: skip
    show_comparison(view)
    said = capsys.readouterr().out
    assert "batch_size=32 schedule.name=cosine" in said
    assert "Each optimizer has its own batch_size.\n" in said


@pytest.mark.parametrize("line", ["list", "trials digits-four", "runs digits-four"])
def test_a_list_is_the_page_that_rest_answers(filled: str, say_json: Callable[..., Any], line: str) -> None:
    address = {"list": "", "trials digits-four": "/digits-four/trials", "runs digits-four": "/digits-four/runs"}[line]
    for limit in (2, 500):
        rest = httpx.get(f"{filled}/v1/studies{address}?limit={limit}", timeout=120).json()
        if rest["next_cursor"] is None or limit < 100:
            assert say_json(f"{line} --limit {limit}") == rest


def test_a_list_says_when_there_is_more(say: Say) -> None:
    code, out, err = say("list --limit 1")
    assert (code, len(out.splitlines())) == (0, 2)
    assert "There are more" in err


def test_a_study_that_goes_on_is_compared_as_it_stands(say: Say) -> None:
    assert "is not COMPLETED: these are the results that it has" in say("compare running")[2]


def test_logs(say: Say, say_json: Callable[..., Any]) -> None:
    run = say_json("runs digits-four --limit 1")["items"][0]["id"]
    assert say(f"logs {run}") == (0, "epoch 1\nepoch 2\nthe end\n", "")
    assert say(f"logs {run} --tail 1") == (0, "the end\n", "")
    assert say(f"logs {run} -f -n 2") == (0, "epoch 2\nthe end\n", "")
    part = say_json(f"logs {run} --attempt 1")
    assert (part["text"], part["ended"]) == ("epoch 1\nepoch 2\nthe end\n", True)
    code, _, err = say(f"logs {run} --attempt 9")
    assert code == 1
    assert "there is no attempt 9" in err
    assert say("logs 999999")[0] == 1


def test_a_log_that_was_cut_says_what_is_missing(say: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    cut = LogView(run=1, attempt=1, text="late\n", offset=3 << 20, ended=True)
    monkeypatch.setattr(Client, "logs", lambda self, run, **_: cut)
    assert say("logs 1") == (0, "late\n", "the first 3.0 MiB are not kept: a log of more than 2 MiB is cut\n")
    assert say("logs 1 --tail 1") == (0, "late\n", "")


def test_events(say: Say, say_json: Callable[..., Any]) -> None:
    code, out, _ = say("events broken")
    assert code == 0
    assert "study.created   broken: QUEUED" in out.splitlines()[0]
    assert "broken: FAILED (the driver ended" in out.splitlines()[-1]
    _, lines, _ = say("events broken --after 0 -o json")
    kinds = [json.loads(line)["kind"] for line in lines.splitlines()]
    assert kinds == ["study.created", "study.state", "study.state"]
    assert [event["kind"] for event in yaml.safe_load(say("events broken -o yaml")[1])] == kinds
    assert say("events nope")[0] == 1


def test_watch_of_studies_that_have_ended(say: Say, say_json: Callable[..., Any]) -> None:
    code, out, err = say("watch digits-four")
    assert code == 0
    assert "admetar  16/16 trials" in err
    assert "±" in out
    assert say_json("watch digits-four")["state"] == "COMPLETED"
    code, _, err = say("watch broken")
    assert code == 1
    assert "study broken is FAILED: the driver ended" in err


def test_watch_for_so_long(say: Say) -> None:
    code, _, err = say("watch waiting --timeout 0.2")
    assert code == 4
    assert "still QUEUED after 0.2 s" in err


def test_export_by_the_name_of_the_file(say: Say, tmp_path: Path) -> None:
    for name in ("out.csv", "out.json", "out.parquet", "out.tex"):
        assert say("export digits-four", str(tmp_path / name))[0] == 0
        assert (tmp_path / name).stat().st_size > 100
    code, _, err = say("export digits-four", str(tmp_path / "out.xls"))
    assert code == 1
    assert "has no known ending" in err
    assert say("export none", str(tmp_path / "none.csv"))[0] == 1
    assert list(tmp_path.glob("none*")) == []
    assert say("export digits-four", str(tmp_path / "no" / "x.csv"))[0] == 1


@pytest.mark.parametrize(
    ("line", "code", "part"),
    [
        ("show none", 1, "hint: `admeta list` lists"),
        ("show digits-for", 1, "hint: Did you mean 'digits-four'? `admeta list` lists"),
        ("trials digitsfour admetar/7", 1, "hint: Did you mean 'digits-four'?"),
        ("best --task digits --optimizer admetarr", 1, "did you mean 'admetar'"),
        ("best --task synthetic --optimizer admetar", 1, "no finished trial"),
        ("best --task digits --optimizer lion", 1, "on task 'digits' yet; the task has results of adamw, admetar"),
        ("best --task synthetic", 1, "no finished trial on task 'synthetic'"),
        ("best --task digits --recipe 0000", 1, "no finished trial on task 'digits' with recipe '0000'"),
        ("compare digits-four running --curves", 2, "no effect on several studies"),
        ("compare digits-four running --searches each", 2, "no effect on several studies"),
        ("compare digits-four digits-four", 1, "hint: Name each study once"),
        ("trials digits-four seven", 2, "admetar/3"),
        ("trials digits-four admetar/99", 1, "hint:"),
        ("list --state DONE", 2, "is not one of"),
        ("list --url http://127.0.0.1:9", 3, "hint: Start one with `admeta serve`"),
        ("list --url nonsense", 3, "no service answers at nonsense"),
        ("nonsense", 2, "No such command"),
        ("best", 2, "--task"),
    ],
)
def test_errors_and_exit_codes(say: Say, line: str, code: int, part: str) -> None:
    found, _, err = say(line)
    assert found == code
    assert part in err


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["show", "dig"], ["digits-four"]),
        (["best", "--task", "syn"], ["synthetic"]),
        (["optimizers", "admeta"], ["admetar", "admetas"]),
        (["list", "--state", "CAN"], ["CANCELLED"]),
        (["tok"], ["token"]),
        (["trials", "digits-four", "admetar/7"], ["admetar/7"]),
        (["trials", "digits-four", "adamw/1"], ["adamw/1", *(f"adamw/{n}" for n in range(10, 16))]),
        (["cancel", "digits-four", "--trial", "sgdm/15"], ["sgdm/15"]),
        (["compare", "digits-four", "run"], ["running"]),
    ],
)
def test_completion(
    say: Say, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str], offered: list[str]
) -> None:
    monkeypatch.setenv("_ADMETA_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", " ".join(["admeta", *words]))
    monkeypatch.setenv("COMP_CWORD", str(len(words)))
    assert say("")[:2] == (0, "\n".join(offered) + "\n")
    monkeypatch.setenv("ADMETA_URL", "http://127.0.0.1:9")
    assert say("")[0] == 0  # no service: nothing is offered, and no error is shown


def test_best_lists_what_the_studies_searched(filled: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Import paths and joint names, which no list of optimizers has."""
    asked = ["adamw", "muon+lion", "of_a_package_that_went", "torch.optim:NAdam"]

    def studies(self: Client, *, task: str) -> list[Any]:
        assert task == "digits"
        return [SimpleNamespace(searches=[SimpleNamespace(optimizer=name)]) for name in [*asked, *asked]]

    def best(self: Client, *, optimizer: str, **_: Any) -> Any:
        return optimizer if optimizer in asked[1::2] else real(self, optimizer=optimizer, **_)

    real = Client.best
    monkeypatch.setattr(Client, "studies", studies)
    monkeypatch.setattr(Client, "best", best)
    with Client(filled) as client:
        found = _best_of_each(client, "digits", model=None, metric=None)
    assert [getattr(one, "optimizer", one) for one in found] == ["adamw", "muon+lion", "torch.optim:NAdam"]


def test_best_settings_of_several_recipes_say_so(say: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values of a training of 12 epochs and of one of 30 are not comparable, although they stand in one table."""
    code, alone, _ = say("best --task digits")
    assert code == 0
    assert "recipes" not in alone
    real, other = Client.best, RecipeView(recipe="ab" * 32, model="mlp", epochs=3, study="short")

    def best(self: Client, *, optimizer: str, **filters: Any) -> Any:
        found = real(self, optimizer=optimizer, **filters)
        changes = {"recipe": "cd" * 32, "epochs": 30} if optimizer == "sgdm" else {"other_recipes": [other]}
        return found.model_copy(update=changes)

    monkeypatch.setattr(Client, "best", best)
    _, out, _ = say("best --task digits")
    assert "cdcdcdcd convnet 30 epochs" in out
    assert "These results are of 2 recipes" in out
    assert "other recipes, which cannot be compared with these: abababab mlp 3 epochs (study short)." in out
    assert "(study short)" in say("best --task digits --optimizer adamw")[1]


def test_a_recommendation_takes_fields_of_the_task(say: Say) -> None:
    code, out, _ = say("recommend --task digits --set epochs=7 --set batch_size=32 --output json")
    assert code == 0
    found = json.loads(out)
    assert found["source"] == "alike"  # no study of digits has these fields
    assert (found["task_config"]["epochs"], found["task_config"]["batch_size"]) == (7, 32)
    code, _, err = say("recommend --task digits --set epochs=0")
    assert code == 1
    assert "task.epochs" in err
    code, _, err = say("recommend --task digits --set epochs")
    assert code == 1
    assert "must be path=value" in err


def test_the_recommended_plan_is_written_for_submit(say: Say, tmp_path: Path) -> None:
    file = tmp_path / "plan.yaml"
    code, out, err = say(f"recommend --task cifar100 --gpu-hours 1 --plan {file}")
    assert (code, err.strip()) == (0, f"wrote {file}")
    assert "Spend the hours on search" in out
    assert yaml.safe_load(file.read_text())["warm_start"]["from"] == "everything"
    code, _, err = say(f"recommend --task cifar100 --plan {file}")
    assert code == 1
    assert "there is no plan to write" in err
