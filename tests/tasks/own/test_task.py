"""Own data sets and models in the engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tasks import runs
from tasks.config import TaskConfig
from tasks.engine.task import load_task, release_data
from tasks.errors import ConfigError, DataError, TaskError
from tasks.registry import parse_config
from tests.tasks.own.data import _blobs

HERE = "tests.tasks.own.data"


def config(data: str = "blobs", model: str = "Net", **fields: Any) -> TaskConfig:
    values = {"epochs": 3, "batch_size": 20, **fields}
    return parse_config({"name": "own", "data": f"{HERE}:{data}", "model": f"{HERE}:{model}", **values})


def train(made: TaskConfig, **options: Any) -> list[dict[str, float]]:
    run = runs.open_run(made, optimizer="adamw", params={"lr": 0.03}, seed=0, device="cpu", **options)
    found = [dict(run.advance().metrics) for _ in range(run.n_epochs)]
    found.append(run.test())
    run.close()
    return found


def test_classes_are_learnt(tmp_path: Path) -> None:
    runs.check(config(), metric="val_accuracy")
    *_, last, test = train(config(settings={"width": 16}))
    assert last["val_accuracy"] > 0.8
    assert test["test_accuracy"] > 0.8
    torch.save(list(_blobs(200, 0)), tmp_path / "blobs.pt")
    assert train(config("from_folder"), data_dir=tmp_path)[-2]["val_accuracy"] > 0.8


def test_values_are_learnt_and_have_no_accuracy() -> None:
    made = config("values", "line", epochs=100)
    first, *_, last, test = train(made)
    assert last["val_loss"] < 0.1 < first["val_loss"]
    assert set(test) == {"test_loss"}
    runs.check(made, metric="val_loss")
    with pytest.raises(DataError, match=r"val_accuracy is of classes, and the labels of .* are values"):
        runs.check(made, metric="val_accuracy")


def test_metrics_equal_torchs_own() -> None:
    task = load_task(config("with_val"), data_dir=None, device=torch.device("cpu"))
    model = task.build_model().eval()
    inputs, labels = _blobs(40, 2)
    with torch.no_grad():
        logits = model(inputs)
        found = task.evaluate(model, "val")
    assert found["loss"] == pytest.approx(nn.functional.cross_entropy(logits, labels).item())
    assert found["accuracy"] == pytest.approx((logits.argmax(1) == labels).float().mean().item())


def test_a_validation_set_of_its_own_is_used_and_otherwise_held_out_by_class() -> None:
    cpu = torch.device("cpu")
    given = load_task(config("with_val"), data_dir=None, device=cpu).data
    assert (len(given.train), len(given.val), len(given.test)) == (200, 40, 50)
    held = load_task(config(), data_dir=None, device=cpu).data
    assert (len(held.train), len(held.val)) == (180, 20)
    rows = torch.cat([held.train.inputs, held.val.inputs])
    assert torch.equal(rows.sort(0).values, _blobs(200, 0)[0].sort(0).values)


def test_batches_are_a_function_of_seed_and_epoch() -> None:
    task = load_task(config(), data_dir=None, device=torch.device("cpu"))
    first, again, other = ([*task.train_batches(seed=1, epoch=epoch)] for epoch in (0, 0, 1))
    assert len(first) == task.batches_per_epoch == 9
    assert all(torch.equal(a["inputs"], b["inputs"]) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first[0]["inputs"], other[0]["inputs"])


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"data": "raises"}, r"raises' raised FileNotFoundError: no blobs\.csv \(data\.py, line \d+, in raises\)"),
        (
            {"data": "opens"},
            r"No such file or directory: 'blobs.csv' .*; relative paths begin at /.* in a worker: keep",
        ),
        (
            {"data": "gaps"},
            r"'(train|val)' of .* has NaN or infinite values in [12] of \d+ inputs, and .* returns none",
        ),
        ({"data": "unknown_labels", "model": "line"}, "'test' of .* has NaN or infinite values in 50 of 100 labels"),
        ({"data": "asks_for_arguments"}, "asks_for_arguments' raised SystemExit: 2"),
        ({"model": "asks_for_arguments", "settings": {"folder": 1}}, "raised SystemExit: 2"),
        ({"data": "absent"}, "task.data: .* has no 'absent'"),
        ({"data": "without_test"}, r"must return a dict of train, test and perhaps val; it returned \['train'\]"),
        ({"data": "of_lists"}, "must be two tensors, inputs and labels"),
        ({"data": "uneven"}, "has 3 inputs and 2 labels"),
        ({"data": "of_int32"}, "classes are int64"),
        ({"data": "different"}, "differ in the shape or the type"),
        ({"model": "absent"}, "task.model: .* has no 'absent'"),
        ({"model": "no_module"}, "made a str; it must make a torch.nn.Module"),
        ({"model": "untrainable"}, "has no parameter to train; make its layers attributes"),
        ({"model": "made"}, "is a model already; name its class, or a function that makes one"),
        (
            {"settings": {"depth": 3}},
            r"called with \(depth=3\) raised TypeError: .*'depth'",
        ),
        ({"settings": {"n_out": 2}}, r"returned \(2, 2\) for a batch of shape \(2, 4\); it must return \(2, 3\)"),
        ({"model": "line"}, r"does not take a batch of shape \(2, 4\): RuntimeError: mat1 and mat2"),
    ],
)
def test_what_cannot_train_is_told_before_the_first_trial(fields: dict[str, Any], reason: str) -> None:
    release_data()
    with pytest.raises(TaskError, match=reason):
        runs.check(config(**fields))


def test_a_model_may_take_inputs_that_are_not_finite() -> None:
    runs.check(config("gaps", model="Masked"))


@pytest.mark.parametrize("task", ["digits", "cifar10", "image_folder"])
def test_image_tasks_take_a_model_by_import_path(task: str) -> None:
    folder = {"data_dir": "x"} if task == "image_folder" else {}
    made = parse_config({"name": task, "model": f"{HERE}:SmallImages", **folder})
    assert made.imports() == {"model": f"{HERE}:SmallImages"}
    assert parse_config({"name": task, **folder}).imports() == {}


def test_digits_train_a_model_of_ones_own() -> None:
    made = parse_config({"name": "digits", "model": f"{HERE}:SmallImages", "epochs": 1})
    runs.check(made)
    assert "val_accuracy" in train(made)[0]
    with pytest.raises(ConfigError, match=r"returned \(2, 3\) for a batch of shape|does not take a batch"):
        runs.check(parse_config({"name": "digits", "model": f"{HERE}:Net"}))


def test_an_image_model_is_checked_for_its_classes() -> None:
    from tasks.vision.models import check_model

    check_model(f"{HERE}:SmallImages", n_classes=4, image_size=8, batch_size=8)
    with pytest.raises(ConfigError, match="does not take batches of 8 images"):
        check_model(f"{HERE}:Net", n_classes=4, image_size=8, batch_size=8)
    with pytest.raises(ConfigError, match="made a str"):
        check_model(f"{HERE}:no_module", n_classes=4, image_size=8, batch_size=8)
