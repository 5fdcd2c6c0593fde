"""Tables: real small ones beside scikit-learn's networks, kinds of columns, missing values, resume, refusals."""

from __future__ import annotations

import csv
import io
import json
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from sklearn import datasets
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPClassifier, MLPRegressor

import admeta
from tasks.engine.run import TrainingRun
from tasks.engine.task import load_task, release_data
from tasks.errors import ConfigError, DataError
from tasks.registry import get, parse_config
from tasks.runs import check, data_fingerprint, open_run
from tasks.table import TableTask

COLOURS = ("red", "green", "blue")


def write_csv(path: Path, header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        writer.writerows(rows)


def shop(n: int = 200, *, seed: int = 0) -> list[list[object]]:
    """Rows of number, size (with missing values), colour, zip code and a class that colour and size decide."""
    rng = np.random.default_rng(seed)
    rows: list[list[object]] = []
    for index in range(n):
        size, colour, code = rng.normal(50, 9), COLOURS[rng.integers(3)], ("01", "20", "75")[rng.integers(3)]
        klass = "buys" if (size > 50) == (colour == "red") else "leaves"
        rows.append([index, "NA" if index % 10 == 0 else round(size, 2), colour, code, klass])
    return rows


HEADER = ("row", "size", "colour", "code", "label")


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """A data folder with shop/train.csv of 200 rows."""
    write_csv(tmp_path / "data/shop/train.csv", HEADER, shop())
    return tmp_path / "data"


def config(**fields: Any) -> Any:
    base = {"name": "table", "data_dir": "shop", "exclude_columns": ["row"], "categorical_columns": ["code"]}
    return parse_config({**base, "epochs": 3, "hidden": [32], **fields})


def load(data_dir: Path, **fields: Any) -> TableTask:
    task = load_task(config(**fields), data_dir=data_dir, device=torch.device("cpu"))
    assert isinstance(task, TableTask)
    return task


def start(data_dir: Path, cfg: Any, *, optimizer: str = "adamw", lr: float = 1e-3, device: str = "cpu") -> TrainingRun:
    params = {"lr": lr, **({"others.lr": lr} if admeta.get(optimizer).others else {})}
    run = open_run(cfg, optimizer=optimizer, params=params, seed=0, data_dir=data_dir, device=device)
    assert isinstance(run, TrainingRun)
    return run


@pytest.mark.parametrize("name", ["wine", "breast_cancer", "diabetes"])
def test_real_tables_reach_what_scikit_learns_networks_do(tmp_path: Path, name: str) -> None:
    """On the same rows; a test row of wine is 2.8 % of its accuracy, one of breast cancer 0.9 %."""
    found = getattr(datasets, f"load_{name}")()
    predict = "number" if name == "diabetes" else "class"
    labels = found.target if predict == "number" else found.target_names[found.target]
    write_csv(
        tmp_path / "train.csv",
        [*found.feature_names, "label"],
        [[*x, y] for x, y in zip(found.data, labels, strict=True)],
    )
    cfg = parse_config({"name": "table", "predict": predict, "epochs": 40})
    check(cfg, data_dir=tmp_path, metric="val_loss")
    run = start(tmp_path, cfg)
    while not run.done:
        run.advance()
    train, test = ((part.numbers.numpy(), part.labels.numpy()) for part in (run._task.data.train, run._task.data.test))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        if predict == "class":
            theirs = MLPClassifier(random_state=0).fit(*train).score(*test)
            assert run.test()["test_accuracy"] > theirs - 0.03
            assert theirs > 0.9
        else:
            mean, std = train[1].mean(), train[1].std()
            network = MLPRegressor(random_state=0, max_iter=400).fit(train[0], (train[1] - mean) / std)
            theirs = float(np.corrcoef(network.predict(test[0]), test[1])[0, 1])
            assert run.test()["test_pearson"] > theirs - 0.03
            assert theirs > 0.6


def test_kinds_of_columns_are_found_and_shown(data_dir: Path) -> None:
    task = load(data_dir)
    record = task.record()
    assert record["columns_of_numbers"].startswith("size (")
    assert record["columns_of_numbers"].endswith(" missing)")
    assert record["columns_of_categories"] == "colour (3 categories), code (3 categories)"
    assert (record["n_train"], record["n_val"], record["n_test"]) == (128, 32, 40)
    size, colour, code = task.data.columns
    assert code.categories == ("01", "20", "75")
    train = task.data.train
    present = train.numbers[:, 1] == 0.0  # the second input is 1 where the size is missing
    assert size.n_missing == int((~present).sum()) > 0
    assert float(train.numbers[present, 0].mean()) == pytest.approx(0.0, abs=1e-6)
    assert float(train.numbers[present, 0].std(correction=0)) == pytest.approx(1.0, abs=1e-6)
    assert train.numbers[~present, 0].eq(0.0).all()
    assert colour.categories == tuple(sorted(COLOURS))
    assert task.data.classes == ("buys", "leaves")
    unread = load(data_dir, categorical_columns=[]).record()
    assert unread["columns_of_numbers"].endswith(", code")


def test_splits_are_stratified_and_the_test_rows_stay(data_dir: Path) -> None:
    first, other = load(data_dir), load(data_dir, split_seed=1)
    assert torch.equal(first.data.test.labels, other.data.test.labels)
    assert torch.equal(first.data.test.categories, other.data.test.categories)
    assert not torch.equal(first.data.val.categories, other.data.val.categories)
    shares = [float(part.labels.double().mean()) for part in (first.data.train, first.data.val, first.data.test)]
    assert shares == pytest.approx([shares[0]] * 3, abs=0.02)


def test_files_of_their_own_may_have_unknown_categories_and_other_orders(data_dir: Path) -> None:
    rows = [["violet", "75", 51.0, "buys"], ["red", "", "?", "leaves"]]
    write_csv(data_dir / "shop/test.csv", ("colour", "code", "size", "label"), rows)
    lines = [dict(zip(HEADER, row, strict=True)) for row in shop(20, seed=1)]
    (data_dir / "shop/val.jsonl").write_text("\n".join(json.dumps({**row, "size": None}) for row in lines))
    data = load(data_dir, test_file="test.csv", val_file="val.jsonl").data
    assert [len(part) for part in (data.train, data.val, data.test)] == [200, 20, 2]
    assert data.test.categories.tolist() == [[0, 3], [3, 0]]
    assert data.test.numbers[1].tolist() == [0.0, 1.0]
    assert data.val.numbers.eq(torch.tensor([0.0, 1.0])).all()


@pytest.mark.parametrize(("optimizer", "lr"), [("adamw", 1e-2), ("admetas", 3e-2), ("muon", 1e-2)])
def test_it_learns_and_resumes_exactly(data_dir: Path, optimizer: str, lr: float) -> None:
    cfg = config(epochs=12)
    run = start(data_dir, cfg, optimizer=optimizer, lr=lr)
    for _ in range(4):
        run.advance()
    kept = io.BytesIO()
    torch.save(run.state_dict(), kept)
    while not run.done:
        last = run.advance()
    assert last.metrics["val_accuracy"] >= 0.7  # half of them are of one class
    assert set(last.metrics) == {"val_accuracy", "val_f1", "val_mcc", "val_loss", "train_loss"}
    kept.seek(0)
    again = start(data_dir, cfg, optimizer=optimizer, lr=lr)
    again.load_state_dict(torch.load(kept, weights_only=True))
    while not again.done:
        repeated = again.advance()
    assert repeated.metrics == last.metrics
    assert all(map(torch.equal, run.model.parameters(), again.model.parameters()))
    for embedding in run.model.embeddings:  # type: ignore[union-attr]
        assert embedding.weight[0].eq(0.0).all()  # type: ignore[union-attr, index]


def test_the_linear_model_and_what_a_changed_file_changes(data_dir: Path) -> None:
    model = load(data_dir, model="linear").build_model()
    assert [name for name, _ in model.named_parameters() if "layers" in name] == []
    before = data_fingerprint(config(), data_dir=data_dir)
    write_csv(data_dir / "shop/train.csv", HEADER, shop(seed=2))
    assert before is not None
    assert data_fingerprint(config(), data_dir=data_dir) != before


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"exclude_columns": []}, "row has 128 different texts in 128 rows, such as 'r0'; name it in exclude_columns"),
    ({"exclude_columns": ["gone"]}, r"shop/train\.csv has no column 'gone'; its columns, divided by ',', are 'row'"),
    ({"categorical_columns": ["gone"]}, "categorical_columns names 'gone', but .* has 'label', 'size', 'colour'"),
    ({"label_column": "klass"}, r"train\.csv has no column 'klass'"),
    (
        {"label_column": "size"},
        r"train\.csv: size has \d+ different values in 200 rows, too many for classes; set",
    ),
    ({"predict": "number"}, r"train\.csv, line 2: label is '(buys|leaves)'; it must be a finite number"),
    ({"val_fraction": 0.001}, "val_fraction 0.001 of 160 rows gives 0 for validation"),
]


@pytest.mark.parametrize(("fields", "message"), REFUSED, ids=[str(fields) for fields, _ in REFUSED])
def test_what_does_not_fit_the_file_is_refused(data_dir: Path, fields: dict[str, Any], message: str) -> None:
    write_csv(data_dir / "shop/train.csv", HEADER, [[f"r{row[0]}", *row[1:]] for row in shop()])
    with pytest.raises(DataError, match=message):
        check(config(**fields), data_dir=data_dir)


def test_a_bad_value_is_named_by_file_line_column_and_value(data_dir: Path) -> None:
    rows = shop()
    train_row = next(r for r in range(200) if r % 10 and r in _training_rows(data_dir))
    rows[train_row][1] = "12,5"
    write_csv(data_dir / "shop/train.csv", HEADER, rows)
    message = rf"train\.csv, line {train_row + 2}: size is '12,5', where \d+ of its \d+ values are numbers; correct it"
    with pytest.raises(DataError, match=message):
        check(config(), data_dir=data_dir)
    write_csv(data_dir / "shop/train.csv", HEADER, shop())
    write_csv(data_dir / "shop/test.csv", HEADER, [[0, "inf", "red", "01", "buys"]])
    with pytest.raises(DataError, match=r"test\.csv, line 2: size is 'inf'; it must be a finite number"):
        check(config(test_file="test.csv"), data_dir=data_dir)
    write_csv(data_dir / "shop/test.csv", HEADER, [[0, 1.0, "red", "01", "steals"]])
    with pytest.raises(
        DataError, match=r"test\.csv, line 2: class 'steals' is not one of the classes 'buys', 'leaves'"
    ):
        check(config(test_file="test.csv"), data_dir=data_dir)
    write_csv(data_dir / "shop/test.csv", HEADER[1:], [[1.0, "red", "01"]])
    with pytest.raises(DataError, match=r"test\.csv, line 2: 3 fields where the header has 4"):
        check(config(test_file="test.csv"), data_dir=data_dir)


def test_numbers_that_rounding_would_spoil(data_dir: Path) -> None:
    """Equal numbers whose mean is rounded, labels that differ beyond float32's digits, and codes such as 1_2."""
    rows = [[i, 0.1, i % 7, f"1_{i % 3}", 1_700_000_000 + i] for i in range(200)]
    write_csv(data_dir / "shop/times.csv", HEADER, rows)
    write_csv(data_dir / "shop/test.csv", HEADER, [[0, 0.2, 1, "1_2", 1_700_000_001], [0, 0.1, 1, "", 1_700_000_002]])
    fields = {"predict": "number", "train_file": "times.csv", "test_file": "test.csv", "categorical_columns": []}
    task = load(data_dir, **fields)
    assert [column.categories for column in task.data.columns] == [None, None, ("1_0", "1_1", "1_2")]
    assert float(task.data.test.numbers.abs().max()) < 2
    assert len(torch.unique(task.data.train.labels)) == len(task.data.train)
    assert float(task.data.train.labels.std(correction=0)) == pytest.approx(1.0, abs=1e-6)
    release_data()
    write_csv(data_dir / "shop/test.csv", HEADER, [[0, 0.1, 1e30, "1_2", 1_700_000_001]])
    with pytest.raises(DataError, match=r"test\.csv, line 2: colour is '1e\+30', more than 1e\+12 standard deviations"):
        check(config(**fields), data_dir=data_dir)
    (data_dir / "shop/odd.jsonl").write_text('{"\\ud800": 1, "label": "a"}\n')
    with pytest.raises(DataError, match="has an unpaired surrogate"):
        check(config(train_file="odd.jsonl", exclude_columns=[], categorical_columns=[]), data_dir=data_dir)
    (data_dir / "shop/odd.csv").write_text("x" * 1_000_000)
    with pytest.raises(DataError, match="x…") as caught:
        check(config(train_file="odd.csv"), data_dir=data_dir)
    assert len(str(caught.value)) < 1000


def _training_rows(data_dir: Path) -> set[int]:
    """Of shop/train.csv: rows whose size is in the training split."""
    sizes = load(data_dir).data.train.numbers[:, 0]
    column = load(data_dir).data.columns[0]
    found = {round(float(value) * column.std + column.mean, 2) for value in sizes}
    release_data()
    return {index for index, row in enumerate(shop()) if row[1] in found}


def test_metrics_of_the_other_kind_and_undefined_ones_are_refused(data_dir: Path) -> None:
    with pytest.raises(DataError, match=r"val_pearson is not of a class .* choose val_accuracy, val_f1, val_mcc or"):
        check(config(), data_dir=data_dir, metric="val_pearson")
    with pytest.raises(DataError, match="val_accuracy is not of a number"):
        check(
            config(label_column="size", predict="number", train_file="full.csv"),
            data_dir=_full(data_dir),
            metric="val_accuracy",
        )
    with pytest.raises(DataError, match=r"all training labels in .*same\.csv are 3; there is nothing to predict"):
        check(config(predict="number", train_file="same.csv"), data_dir=_full(data_dir))
    with pytest.raises(ConfigError, match="more than the 128 training samples of 'table'"):
        check(config(batch_size=200), data_dir=data_dir)
    assert get("table").default_metric == "val_loss"


def _full(data_dir: Path) -> Path:
    write_csv(data_dir / "shop/full.csv", HEADER, [[*row[:1], float(str(i)), *row[2:]] for i, row in enumerate(shop())])
    write_csv(data_dir / "shop/same.csv", HEADER, [[*row[:4], 3] for row in shop()])
    return data_dir


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"categorical_columns": ["label"]}, "also among the categorical or excluded"),
        ({"exclude_columns": ["code"]}, "'code' is categorical and excluded"),
        ({"predict": "number", "label_smoothing": 0.1}, "label_smoothing 0.1 is for classes"),
        ({"hidden": []}, "at least 1 item"),
        ({"train_file": "../x.csv"}, "not a path inside the data folder"),
    ],
)
def test_configurations_that_contradict_themselves_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        config(**fields)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA card")
def test_captured_steps_are_the_eager_steps(data_dir: Path) -> None:
    losses = {}
    for acceleration in ("eager", "graph"):
        cfg = config(acceleration=acceleration, deterministic=True, precision="fp32", dropout=0.0)
        run = start(data_dir, cfg, device="cuda")
        losses[acceleration] = [run.advance().metrics["train_loss"] for _ in range(3)]
        status = run.step_status
        run.close()
    assert status == "graph: 1 shape(s)"
    assert losses["graph"] == pytest.approx(losses["eager"], rel=5e-3)
