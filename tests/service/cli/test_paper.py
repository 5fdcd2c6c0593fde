"""`admeta paper`: the paper's tables with ours beside, and its studies; `submit --space`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from search.paper import tables

Say = Callable[..., tuple[int, str, str]]


@pytest.fixture
def reading(filled: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADMETA_URL", filled)


@pytest.fixture
def writing(empty: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADMETA_URL", empty)


@pytest.mark.usefixtures("reading")
@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("paper tables", ["cifar", "CIFAR-100 test sets", "squad-v2-bert-large"]),
        ("paper tables cifar", ["AdmetaS", "94.12±0.17 / 94.01±0.10 (n=3)", "91.89±0.23 / –", "CIFAR-10 ResNet-110"]),
        ("paper tables glue", ["BERT-base AdmetaR", "62.07 / –", "CoLA MCC"]),
        ("paper studies", ["cola-bert-base", "cifar10-ablation", "admetas-no-lb-lf"]),
        ("paper studies cifar10-finetune", ["after", "cifar10-finetune-start", "Table 11", "sgdm, admetas"]),
        ("paper studies cola-bert-large --smoke", ["paper-cola-bert-large-smoke", "cola, tiny"]),
    ],
)
def test_tables_json_and_yaml(say: Say, line: str, shown: list[str]) -> None:
    code, table, err = say(line)
    assert code == 0, err
    assert [text for text in shown if text not in table] == []
    assert yaml.safe_load(say(line, "-o", "yaml")[1]) == json.loads(say(line, "-o", "json")[1])


@pytest.mark.usefixtures("reading")
def test_a_table_as_markdown_and_latex_is_as_the_pages_give_it(say: Say) -> None:
    code, text, _ = say("paper tables cifar -o markdown")
    assert code == 0
    lines = text.splitlines()
    assert lines[0].startswith("|  | CIFAR-10 ResNet-110 | CIFAR-10 PyramidNet |")
    assert lines[-1].startswith("| AdmetaS | 94.12±0.17 / 94.01±0.10 (n=3) | 95.30±0.08 / – |")
    assert len(lines) == 2 + len(tables.result_tables()["cifar"].rows)
    _, text, _ = say("paper tables cifar -o latex")
    assert "AdmetaS & 94.12$\\pm$0.17 / 94.01$\\pm$0.10 (n=3)" in text
    assert text.startswith(r"\begin{tabular}{lcccc}")


@pytest.mark.usefixtures("reading")
def test_what_json_says_of_a_cell(say_json: Callable[..., Any]) -> None:
    table = say_json("paper tables ablation")
    rows = {" ".join(head): row[0] for head, row in zip(table["rows"], table["cells"], strict=True)}
    ours = {head: cell["ours"]["label"] for head, cell in rows.items() if cell["ours"]}
    assert ours == {"SGDM": "sgdm", "AdmetaS": "admetas", "-LF": "admetas-no-lf"}
    cell = rows["-LF"]
    assert cell["paper"]["variant"] == "-LF"
    assert cell["difference"] == pytest.approx(cell["ours"]["mean"] - cell["paper"]["value"])
    assert table["n_ours"] == 3
    for listed in say_json("paper tables"):
        whole = say_json(f"paper tables {listed['name']}")
        assert {name: whole[name] for name in listed} == listed


@pytest.mark.usefixtures("reading")
@pytest.mark.parametrize(
    ("line", "code", "part"),
    [
        ("paper tables cifr", 1, "hint: `admeta paper tables` lists them."),
        ("paper studies cola-bert", 1, "did you mean 'cola-bert-base'?"),
        ("paper run cola", 1, "hint: `admeta paper studies` lists them."),
        ("paper tables -o latex", 2, "latex works for one table"),
        ("paper studies --smoke", 2, "--smoke works for one study"),
        ("paper", 2, ""),
    ],
)
def test_errors_and_exit_codes(say: Say, line: str, code: int, part: str) -> None:
    found, _, err = say(line)
    assert found == code
    assert part in err


@pytest.mark.usefixtures("writing")
def test_a_study_of_the_paper_is_submitted(say: Say, say_json: Callable[..., Any]) -> None:
    code, out, err = say("paper run cifar10-ablation --smoke --set budget.trials_per_optimizer=1")
    assert code == 0, err
    assert "paper-cifar10-ablation-smoke" in out
    assert "submitted: QUEUED" in out
    assert "exists already" in say("paper run cifar10-ablation --smoke --set budget.trials_per_optimizer=1")[1]
    shown = say_json("show paper-cifar10-ablation-smoke")["definition"]
    assert len(shown["optimizers"]) == 16
    assert (shown["task"]["model"], shown["resources"]["gpus"]) == ("resnet20", 0)
    assert say_json("paper run mrpc-bert-base --set name=mine")["model"] == "bert-base-uncased"
    assert say("show mine")[0] == 0


@pytest.mark.usefixtures("writing")
def test_submit_beginning_with_the_papers_best(say: Say, say_json: Callable[..., Any], study_file: Path) -> None:
    code, _, err = say("submit", str(study_file), "--space", "paper-best")
    assert code == 1
    assert "the paper has no settings of admetar on synthetic" in err
    changes = ["--set", "task={name: cifar10, model: resnet110}", "--name", "seeded", "--space", "paper-best"]
    assert say("submit", str(study_file), *changes)[0] == 0
    found = say_json("show seeded")["definition"]["optimizers"]
    assert [search["first"] for search in found] == [[{"lambd": 0.1, "lr": 0.05}], [{"lr": 0.1}]]
