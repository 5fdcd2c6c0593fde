"""Tasks × optimizers: our best results, and the paper's tables with ours beside."""

from __future__ import annotations

import csv
import io
import re

import pytest
from fastapi.testclient import TestClient

from search.records import RunOutcome
from search.states import FailureKind, RunState, Stage
from service.dashboard.results import paper_table
from service.database import SqlStore
from service.database.engine import make_engine
from service.settings import Settings
from tests.service.database.fill import complete, definition, leased, run


def test_the_matrix_has_the_best_of_every_task_and_optimizer(pages: TestClient) -> None:
    found = pages.get("/results.json").json()
    best = {(one["task"], one["optimizer"], one["variant"]): one for one in found}
    assert best["digits", "admetar", None]["study"] == "digits-four"
    assert best["cifar10", "admetas", None]["validation"]["mean"] == pytest.approx(0.9421)
    assert best["cifar10", "admetas", "-LF"]["label"] == "admetas-no-lf"
    assert len(best) == len(found)


def test_the_page_marks_the_best_and_holds_the_settings(pages: TestClient) -> None:
    text = pages.get("/results").text
    assert len(re.findall(r'class="cell leads"', text)) == 2  # one a task
    assert "AdmetaS(\n    model.parameters(),\n" in text
    ids = re.findall(r'popover id="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'popovertarget="([^"]+)"', text)) == set(ids)


def test_the_papers_table_has_ours_beside(pages: TestClient) -> None:
    rows = {
        (row["row"], row["column"]): row for row in csv.DictReader(io.StringIO(pages.get("/results/cifar.csv").text))
    }
    cell = rows["AdmetaS", "CIFAR-10 ResNet-110"]
    assert (cell["paper"], cell["ours_n"]) == ("0.9412", "3")
    assert float(cell["ours"]) == pytest.approx(0.9401)
    assert rows["Adam", "CIFAR-10 ResNet-110"]["ours"] == ""
    assert "AdmetaS & 94.12$\\pm$0.17 / 94.01$\\pm$0.10 (n=3)" in pages.get("/results/cifar.tex").text
    assert "/ 94.01±0.10 (n=3)" in pages.get("/results/cifar.md").text
    ablation = pages.get("/results/ablation.json").json()
    assert [row for row, cells in zip(ablation["rows"], ablation["cells"], strict=True) if cells[0]["ours"]] == [
        ["SGDM"], ["AdmetaS"], ["-LF"],
    ]  # fmt: skip


def test_a_table_without_our_results_keeps_the_papers_layout() -> None:
    table = paper_table("glue", [])
    assert table.spans is not None
    assert sum(width for _, width in table.spans) == len(table.heads) == 10
    assert table.rows[0][0] == [("BERT-base", 5), ("AdamW", 1)]
    assert table.rows[1][0][0] == ("BERT-base", 0)


def test_latex_of_the_matrix(pages: TestClient) -> None:
    lines = pages.get("/results.tex").text.splitlines()
    assert lines[0] == r"\begin{tabular}{lcccc}"
    values = r"0.9366 $\pm$ 0.0010 & \textbf{0.9421 $\pm$ 0.0010}"
    assert lines[4].startswith(rf"cifar10 resnet110 160 epochs val\_accuracy & {values}")
    assert pages.get("/results/nothing.csv").status_code == 404


def test_seeds_that_failed_are_told_and_never_lead(api: TestClient, settings: Settings) -> None:
    engine = make_engine(settings.database_url)
    store = SqlStore(engine)
    lease, searches = leased(store, definition("few"))
    failed = RunOutcome(state=RunState.FAIL, failure=FailureKind.DIVERGED)
    run(store, lease, searches[1], 0, complete(0.8))
    run(store, lease, searches[0], 0, complete(0.9))
    for seed, outcome in enumerate((complete(0.99), failed, failed)):
        run(store, lease, searches[0], 0, outcome, stage=Stage.CONFIRM, seed=seed)
    engine.dispose()
    text = api.get("/results").text
    assert '<span class="bad unit">2 of 3 failed</span>' in text
    assert re.findall(r'class="(cell[^"]*)"[^>]*>([\d.]+)', text) == [("cell leads single", "0.8"), ("cell", "0.99")]
    assert (
        r"digits convnet 20 epochs val\_accuracy & \textbf{0.8000} & 0.9900 (2 of 3 failed)"
        in api.get("/results.tex").text
    )


def test_rows_that_differ_in_nothing_shown_name_their_recipe(api: TestClient, settings: Settings) -> None:
    """Two data sets of one function's model, or two batch sizes: their rows would read the same."""
    engine = make_engine(settings.database_url)
    store = SqlStore(engine)
    for name, changes in (("a", {}), ("b", {"batch_size": 32}), ("c", {"epochs": 3})):
        lease, (search, _) = leased(store, definition(name, task={"name": "digits", **changes}))
        run(store, lease, search, 0, complete(0.8))
    engine.dispose()
    titles = re.findall(r"digits convnet (.*?) val", api.get("/results.tex").text)
    assert titles[0] == "3 epochs"
    assert all(re.fullmatch("20 epochs recipe [0-9a-f]{8}", title) for title in titles[1:])
    assert len(set(titles)) == 3
    assert len(re.findall(r">recipe [0-9a-f]{8}</span>", api.get("/results").text)) == 2


def test_nothing_measured_says_what_to_do(api: TestClient) -> None:
    assert "Submit a study" in api.get("/results").text
    assert api.get("/results.json").json() == []
