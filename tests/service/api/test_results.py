"""Exports read back by other readers, and importance."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator

import optuna
import pyarrow.parquet
import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select

from admeta.client.text import escape
from search.records import Point, RunOutcome
from search.states import Direction, FailureKind, RunState, Stage
from service.database.engine import make_engine, writing
from service.database.models import Study
from service.database.queries.scale import epochs_to
from service.database.store import SqlStore
from service.settings import Settings
from tests.service.database.fill import WIDTHS, complete, curve, definition, fill_ladder, leased, run


@pytest.fixture
def filled(settings: Settings) -> Iterator[SqlStore]:
    """Study 'digits': a complete trial, a diverged one and one pruned of admetar; sgdm confirmed with two seeds."""
    engine = make_engine(settings.database_url)
    store = SqlStore(engine)
    lease, (admetar, sgdm) = leased(store, definition())
    betas = {"lr": 0.01, "betas": [0.9, 0.99]}
    run(store, lease, admetar, 0, complete(0.9), params=betas, points=curve(0.5, 0.9))
    error = 'diverged at step 7: loss is nan, "so", said\nit'
    run(store, lease, admetar, 1, RunOutcome(state=RunState.FAIL, failure=FailureKind.DIVERGED, error=error))
    run(store, lease, admetar, 2, RunOutcome(state=RunState.PRUNED, value=0.3), points=curve(0.3))
    run(store, lease, sgdm, 0, complete(0.8))
    for seed, value in ((0, 0.81), (1, 0.83)):
        run(store, lease, sgdm, 0, complete(value, test_accuracy=value - 0.01), stage=Stage.CONFIRM, seed=seed)
    yield store
    engine.dispose()


@pytest.mark.usefixtures("filled")
def test_csv_has_a_row_a_run(api: TestClient) -> None:
    response = api.get("/v1/studies/digits/export")
    assert response.headers["content-type"] == "text/csv; charset=utf-8"
    assert 'filename="digits.csv"' in response.headers["content-disposition"]
    rows = list(csv.DictReader(io.StringIO(response.text)))
    assert [(row["label"], row["trial"], row["stage"], row["seed"], row["state"]) for row in rows] == [
        ("admetar", "0", "search", "100", "COMPLETE"),
        ("admetar", "1", "search", "100", "FAIL"),
        ("admetar", "2", "search", "100", "PRUNED"),
        ("sgdm", "0", "search", "100", "COMPLETE"),
        ("sgdm", "0", "confirm", "0", "COMPLETE"),
        ("sgdm", "0", "confirm", "1", "COMPLETE"),
    ]
    assert rows[1]["error"] == 'diverged at step 7: loss is nan, "so", said\nit'
    assert float(rows[4]["test_accuracy"]) == pytest.approx(0.80)
    assert float(rows[0]["settings.lr"]) == 0.01
    assert rows[4]["settings.lambd"] == ""


@pytest.mark.usefixtures("filled")
def test_parquet_has_the_same_rows_with_types(api: TestClient) -> None:
    response = api.get("/v1/studies/digits/export", params={"format": "parquet"})
    table = pyarrow.parquet.read_table(io.BytesIO(response.content))
    rows = table.to_pylist()
    assert len(rows) == 6
    assert rows[0]["settings.lr"] == 0.01
    assert (rows[0]["trial"], rows[0]["value"], rows[1]["value"]) == (0, 0.9, None)
    in_csv = list(csv.DictReader(io.StringIO(api.get("/v1/studies/digits/export").text)))
    assert list(in_csv[0]) == table.column_names


@pytest.mark.usefixtures("filled")
def test_json_is_what_the_pages_give(api: TestClient) -> None:
    exported = api.get("/v1/studies/digits/export", params={"format": "json"}).json()
    assert exported == api.get("/v1/studies/digits/trials").json()["items"]


@pytest.mark.usefixtures("filled")
def test_latex_is_the_comparison(api: TestClient) -> None:
    text = api.get("/v1/studies/digits/export", params={"format": "latex"}).text
    assert r"sgdm & 0.8200 $\pm$ 0.0141 & 0.8100 $\pm$ 0.0141 & 2 & 1 \\" in text
    assert r"val\_accuracy" in text
    assert text.count("{tabular}") == 2
    assert "itemize" not in text  # nothing to compare


@pytest.mark.parametrize("form", ["latex", "markdown"])
def test_verdicts_are_sentences_of_the_export(api: TestClient, settings: Settings, form: str) -> None:
    store = SqlStore(make_engine(settings.database_url))
    lease, (admetar, sgdm) = leased(store, definition("pair"))
    for search, value in ((admetar, 0.9), (sgdm, 0.8)):
        run(store, lease, search, 0, complete(value))
        for seed in range(3):
            failed = RunOutcome(state=RunState.FAIL, failure=FailureKind.DIVERGED, error="diverged")
            outcome = failed if search is sgdm and seed == 2 else complete(value + 0.001 * seed)
            run(store, lease, search, 0, outcome, stage=Stage.CONFIRM, seed=seed)
    response = api.get("/v1/studies/pair/export", params={"format": form})
    (pair,) = api.get("/v1/studies/pair/comparison").json()["pairs"]
    sentence = f"{pair['sentence']}."
    assert (r"\item " + escape(sentence) if form == "latex" else f"- {sentence}") in response.text.splitlines()
    assert "1 of 3 failed" in response.text
    ending = {"latex": "tex", "markdown": "md"}[form]
    assert f'filename="pair.{ending}"' in response.headers["content-disposition"]


def test_a_study_without_trials_exports_nothing(api: TestClient, settings: Settings) -> None:
    api.post("/v1/studies", json=definition("empty").to_json())
    assert api.get("/v1/studies/empty/export", params={"format": "json"}).json() == []
    assert len(api.get("/v1/studies/empty/export").text.splitlines()) == 1
    content = api.get("/v1/studies/empty/export", params={"format": "parquet"}).content
    assert pyarrow.parquet.read_table(io.BytesIO(content)).num_rows == 0


def test_unknown_study_and_format(api: TestClient) -> None:
    assert api.get("/v1/studies/none/export").status_code == 404
    assert api.get("/v1/studies/none/export", params={"format": "xls"}).status_code == 422


def test_importance_tells_what_mattered_or_why_not(api: TestClient, settings: Settings) -> None:
    store = SqlStore(make_engine(settings.database_url))
    leased(store, definition("digits"))
    study = optuna.create_study(study_name="digits/admetar", storage=store.optuna_storage(), direction="maximize")
    for i in range(12):
        trial = study.ask()
        lr, beta = trial.suggest_float("lr", 0, 1), trial.suggest_float("lambd", 0, 1)
        study.tell(trial, lr + 1e-3 * beta + 1e-6 * i)
    admetar, sgdm = api.get("/v1/studies/digits/importance").json()
    assert next(iter(admetar["shares"])) == "lr"
    assert admetar["n_trials"] == 12
    assert sum(admetar["shares"].values()) == pytest.approx(1)
    assert admetar["intervals"]["lr"][0] <= admetar["shares"]["lr"] <= admetar["intervals"]["lr"][1]
    assert (sgdm["shares"], sgdm["reason"]) == ({}, "no trial of search 'sgdm' has begun")
    assert json.dumps(admetar)


@pytest.fixture
def varied(settings: Settings) -> Iterator[SqlStore]:
    """Study 'varied': admetar's only trial at lr 0.1, confirmed, and runs at three other rates, the last diverged."""
    engine = make_engine(settings.database_url)
    store = SqlStore(engine)
    lease, (admetar, _) = leased(store, definition("varied", sensitivity={"points": 5}))
    run(store, lease, admetar, 0, complete(0.9), params={"lr": 0.1})
    for seed, value in ((0, 0.895), (1, 0.905)):
        run(store, lease, admetar, 0, complete(value), stage=Stage.CONFIRM, seed=seed, params={"lr": 0.1})
    diverged = RunOutcome(state=RunState.FAIL, failure=FailureKind.DIVERGED, error="loss is nan")
    for number, (lr, outcome) in enumerate([(0.01, complete(0.8)), (0.03, complete(0.898)), (1.0, diverged)]):
        run(store, lease, admetar, number, outcome, stage=Stage.SENSITIVITY, seed=0, params={"lr": lr})
    yield store
    engine.dispose()


@pytest.mark.usefixtures("varied")
def test_sensitivity(api: TestClient) -> None:
    answer = api.get("/v1/studies/varied/sensitivity")
    assert answer.status_code == 200
    found = answer.json()["curves"][0]
    assert [(point["value"], point["mean"], point["n_diverged"]) for point in found["points"]] == [
        (0.01, 0.8, 0), (0.03, 0.898, 0), (0.1, pytest.approx(0.9), 0), (1.0, None, 1),
    ]  # fmt: skip
    assert 0.01 < found["low"]["at"] < 0.03
    assert found["high"]["at"] == pytest.approx(0.1 * 10**0.5)
    wider = api.get("/v1/studies/varied/sensitivity?within=0.2").json()["curves"][0]
    assert (wider["low"]["at"], wider["low"]["is_open"]) == (pytest.approx(0.01), True)
    exact = api.get("/v1/studies/varied/sensitivity?margin=0.05&parameter=lr").json()["curves"][0]
    assert exact["tolerance"] == 0.05


@pytest.mark.usefixtures("varied")
def test_a_sensitivity_refuses(api: TestClient) -> None:
    long = "x" * 101
    for query in (
        "within=0", "within=1", "within=nan", "margin=-1", "margin=inf", "margin=x", f"parameter={long}", "n=1",
        "parameter=lrr",
    ):  # fmt: skip
        answer = api.get(f"/v1/studies/varied/sensitivity?{query}")
        assert answer.status_code == 422, query
        assert query.partition("=")[0] in answer.json()["detail"], query


def test_an_unreadable_definition_keeps_its_exports(api: TestClient, varied: SqlStore) -> None:
    with writing(varied.engine) as session:
        row = session.execute(select(Study)).scalar_one()
        row.definition = {**row.definition, "sampler": {"name": "of another version"}}
    for form in ("markdown", "latex", "csv", "json", "parquet"):
        assert api.get("/v1/studies/varied/export", params={"format": form}).status_code == 200
    assert api.get("/studies/varied").status_code == 200
    answer = api.get("/v1/studies/varied/sensitivity")
    assert answer.status_code == 422
    assert "cannot be read by this version" in answer.json()["detail"]


def test_a_study_whose_task_is_not_installed_keeps_its_exports(api: TestClient, traded: SqlStore) -> None:
    with writing(traded.engine) as session:
        row = session.execute(select(Study)).scalar_one()
        row.task, row.definition = "gone", {**row.definition, "task": {**row.definition["task"], "name": "gone"}}
    for form in ("markdown", "latex", "csv", "json", "parquet"):
        assert api.get("/v1/studies/traded/export", params={"format": form}).status_code == 200
    assert api.get("/v1/studies/traded/pareto").json()["searched"] is True


@pytest.mark.usefixtures("varied")
def test_exports_have_the_sensitivity(api: TestClient) -> None:
    rows = list(csv.DictReader(io.StringIO(api.get("/v1/studies/varied/export").text)))
    varied = [row for row in rows if row["stage"] == "sensitivity"]
    assert [(row["trial"], row["settings.lr"], row["failure"]) for row in varied] == [
        ("", "0.01", ""), ("", "0.03", ""), ("", "1.0", "diverged"),
    ]  # fmt: skip
    parquet = pyarrow.parquet.read_table(
        io.BytesIO(api.get("/v1/studies/varied/export", params={"format": "parquet"}).content)
    )
    assert parquet.column("stage").to_pylist().count("sensitivity") == 3
    markdown = api.get("/v1/studies/varied/export", params={"format": "markdown"}).text
    assert "lr for which val_accuracy is within 1 % of its best" in markdown
    assert "| admetar | 0.1 |" in markdown
    latex = api.get("/v1/studies/varied/export", params={"format": "latex"}).text
    assert latex.count(r"\begin{tabular}") == 2
    assert r"$\times$ 3.2" in latex


@pytest.fixture
def traded(settings: Settings) -> Iterator[SqlStore]:
    """Study 'traded', searched for accuracy and seconds: two trials on admetar's front and one beside it."""
    engine = make_engine(settings.database_url)
    store = SqlStore(engine)
    lease, (admetar, _) = leased(store, definition("traded", objectives=["train_s"]))
    for number, (value, seconds) in enumerate([(0.9, 3.0), (0.8, 1.0), (0.7, 2.0)]):
        points = curve(value, value, train_s=seconds)
        run(store, lease, admetar, number, complete(value), params={"lr": 0.1 / (number + 1)}, points=points)
    yield store
    engine.dispose()


@pytest.mark.usefixtures("traded")
def test_a_pareto_front(api: TestClient) -> None:
    found = api.get("/v1/studies/traded/pareto").json()
    assert found["searched"] is True
    front = found["fronts"][0]
    assert [(one["trial"], one["values"], one["on_front"], one["leads"]) for one in front["trials"]] == [
        (0, [0.9, 6.0], True, True), (1, [0.8, 2.0], True, True), (2, [0.7, 4.0], False, False),
    ]  # fmt: skip
    assert front["trials"][0]["settings"]["lr"] == 0.1
    assert (found["ideal"], found["reference"]) == ([0.9, 2.0], [0.7, 6.0])
    assert front["hypervolume"] == pytest.approx(0.5)  # trial 1 is half as much better as the box is high
    of_memory = api.get("/v1/studies/traded/pareto?objective=peak_memory_bytes&objective=gpu_s").json()
    assert [one["metric"] for one in of_memory["objectives"]] == ["val_accuracy", "peak_memory_bytes", "gpu_s"]
    assert of_memory["searched"] is False
    best = api.get("/v1/best?task=digits&optimizer=admetar").json()
    assert [one["trial"] for one in best["front"]] == [0, 1]


@pytest.mark.usefixtures("traded")
def test_a_pareto_front_refuses(api: TestClient) -> None:
    long = "x" * 101
    for query in (
        "objective=speed", "objective=", "objective=train_s&objective=train_s", "x=1",
        "objective=gpu_s&objective=train_s&objective=eval_s", f"objective={long}",
    ):  # fmt: skip
        answer = api.get(f"/v1/studies/traded/pareto?{query}")
        assert answer.status_code == 422, query
        assert query.partition("=")[0] in answer.json()["detail"], query
    assert api.get("/v1/studies/none/pareto").status_code == 404


@pytest.mark.usefixtures("traded")
def test_exports_have_the_pareto_front(api: TestClient) -> None:
    markdown = api.get("/v1/studies/traded/export", params={"format": "markdown"}).text
    assert "| admetar | admetar/1 | 0.8 | 2 | yes | lr=0.05" in markdown
    assert "the reference, the worst ones (val_accuracy 0.7, train_s 6)" in markdown
    latex = api.get("/v1/studies/traded/export", params={"format": "latex"}).text
    assert latex.count(r"\begin{tabular}") == 2


def test_a_study_that_names_unknown_objectives_is_refused(api: TestClient) -> None:
    body = definition("wrong").to_json() | {"objectives": ["train_sec"], "pruner": {"name": "none"}}
    answer = api.post("/v1/studies", json=body)
    assert answer.status_code == 422
    (field,) = answer.json()["fields"]
    assert field["field"] == "objectives.0.metric"
    assert "did you mean 'train_s'?" in field["rule"]
    made = api.post("/v1/studies", json={**body, "objectives": ["train_s"]})
    assert made.status_code == 201
    assert made.json()["definition"]["objectives"] == [{"metric": "train_s", "direction": "minimize"}]


@pytest.fixture
def ladder(settings: Settings) -> Iterator[SqlStore]:
    """Study 'ladder' of `tests.service.database.fill`."""
    engine = make_engine(settings.database_url)
    store = SqlStore(engine)
    fill_ladder(store)
    yield store
    engine.dispose()


@pytest.mark.usefixtures("ladder")
def test_a_ladder_of_sizes(api: TestClient) -> None:
    found = api.get("/v1/studies/ladder/scale").json()
    assert (found["field"], found["values"], found["predict"], found["against"]) == (
        "width",
        list(WIDTHS),
        512,
        "adamw",
    )
    adamw, admetar = found["curves"]
    [fit] = admetar["fits"]
    assert [one["value"] for one in fit["best"]] == pytest.approx([0.01, 0.01 / 2**0.5, 0.005], rel=0.01)
    assert fit["slope"] == pytest.approx(-0.5, abs=0.01)
    assert fit["low"] < 0.01 / 8**0.5 < fit["high"]
    assert fit["sentence"].startswith("lr ∝ width^-0.5 (")
    assert admetar["sweep"]["predicted"] == pytest.approx(0.003536, rel=0.01)
    assert admetar["sweep"]["ratio"] == pytest.approx(1, abs=0.02)
    assert admetar["sweep"]["refuted"] is not True
    assert adamw["speedups"] == []
    assert [one["size"] for one in admetar["speedups"]] == [*WIDTHS, 512]
    assert all(one["speedup"] == pytest.approx(5 / 4, rel=0.01) and one["n"] == 2 for one in admetar["speedups"])


def test_a_ladder_that_a_later_rule_refuses_is_shown(api: TestClient, ladder: SqlStore) -> None:
    with writing(ladder.engine) as session:
        row = session.execute(select(Study)).scalar_one()
        scale = {**row.definition["scale"], "verify": 4, "later": 1}
        confirm = {**row.definition["confirm"], "confidence": 0.2, "later": 1}
        row.definition = {**row.definition, "scale": scale, "confirm": confirm}
    for address in ("/studies/ladder", "/v1/studies/ladder/comparison", "/v1/studies/ladder/pareto", "/v1/profiles"):
        assert api.get(address).status_code == 200, address
    for form in ("markdown", "latex", "csv", "json", "parquet"):
        assert api.get("/v1/studies/ladder/export", params={"format": form}).status_code == 200


@pytest.mark.usefixtures("ladder")
def test_sizes_are_not_compared_with_one_another(api: TestClient) -> None:
    found = api.get("/v1/studies/ladder/comparison").json()
    sizes = {row["label"]: row["size"] for row in found["rows"]}
    assert [row["size"] for row in found["rows"]] == [64, 64, 128, 128, 256, 256, 512, 512]
    assert [row["rank"] for row in found["rows"]] == [1, 2] * 4
    assert {row["listed_as"] for row in found["rows"]} == {"adamw", "admetar"}
    assert len(found["pairs"]) == 4
    assert all(sizes[pair["a"]] == sizes[pair["b"]] for pair in found["pairs"])


@pytest.mark.usefixtures("ladder")
def test_a_ladder_is_exported_and_on_its_page(api: TestClient) -> None:
    text = api.get("/v1/studies/ladder/export?format=markdown").text
    assert "| optimizer | parameter | width 64 | width 128 | width 256 | predicted at 512 | found at 512 |" in text
    assert "- admetar: lr ∝ width^-0.5" in text
    assert "predicted at 512" in api.get("/v1/studies/ladder/export?format=latex").text
    rows = list(csv.DictReader(io.StringIO(api.get("/studies/ladder/scale.csv").text)))
    assert [row["what"] for row in rows] == [*["best"] * 3, "predicted", "found"] * 2
    page = api.get("/studies/ladder").text
    assert "Best settings by width" in page
    assert "admetar to the final val_loss of adamw, in epochs: × 1.25" in page
    assert "64, 128, 256; predicts 512, verified by 3 trials of each optimizer" in page


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([3.0, 1.0], 1.5),
        ([3.0, None, 1.0], 2.0),
        ([3.0, None, 2.0, 2.0], 3.0),  # the same value twice, the first one after a value that is missing
        ([None, 2.0], 2.0),
        ([None, None], None),
        ([3.0, 2.5], None),
    ],
)
def test_epochs_to_a_result_where_values_are_missing(values: list[float | None], expected: float | None) -> None:
    curve = [Point(epoch=i, step=i, value=value, metrics={}) for i, value in enumerate(values, start=1)]
    assert epochs_to(curve, 2.0, Direction.MINIMIZE) == expected


@pytest.mark.usefixtures("filled")
def test_a_study_of_one_size_has_no_ladder(api: TestClient) -> None:
    answer = api.get("/v1/studies/digits/scale")
    assert answer.status_code == 409
    assert "trains one size of its model" in answer.json()["detail"]
    assert api.get("/v1/studies/nothing/scale").status_code == 404


@pytest.mark.usefixtures("ladder")
def test_a_ladder_is_in_no_table_over_studies(api: TestClient) -> None:
    assert api.get("/v1/best?task=gpt&optimizer=adamw").status_code == 404
    assert api.get("/v1/profiles?study=ladder").json()["left_out"][0]["reason"].startswith("is of several sizes")
