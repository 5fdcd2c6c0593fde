"""Own texts on the engine: learning, exact resume, the textbook's loop, bad data, cached tokens."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch import nn

from tasks.engine import checkpoint
from tasks.engine.run import TrainingRun
from tasks.engine.seeds import derive_seed
from tasks.engine.task import load_task, release_data
from tasks.errors import ConfigError, DataError, TaskError
from tasks.registry import parse_config
from tasks.runs import check, open_run
from tests.tasks.shared_data import shared_case
from tests.tasks.text.conftest import reviews, write_csv


def config(**fields: Any) -> Any:
    raw = {"name": "text_classification", "model": "tiny", "data_dir": "reviews", "epochs": 2, "batch_size": 16}
    return parse_config({**raw, **fields})


def regression(**fields: Any) -> Any:
    return config(name="text_regression", label_column="score", **fields)


def start(data_dir: Path, cfg: Any = None, *, seed: int = 0, lr: float = 3e-3) -> TrainingRun:
    run = open_run(cfg or config(), optimizer="adamw", params={"lr": lr}, seed=seed, data_dir=data_dir, device="cpu")
    assert isinstance(run, TrainingRun)
    return run


def weights(run: TrainingRun) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in run.model.parameters()]


def test_classes_are_learnt_and_recorded(data_dir: Path) -> None:
    run = start(data_dir, config(epochs=4))
    while not run.done:
        evaluation = run.advance()
    assert set(evaluation.metrics) == {"val_accuracy", "val_f1", "val_mcc", "val_loss", "train_loss"}
    assert evaluation.metrics["val_accuracy"] >= 0.9
    assert run.test()["test_accuracy"] >= 0.9
    record = run.environment()
    assert (record["n_train"], record["n_val"], record["n_test"]) == (144, 16, 60)
    assert (record["n_truncated_texts"], record["model_weights"]) == (0, "random")


def test_numbers_are_learnt_whatever_their_unit(data_dir: Path) -> None:
    run = start(data_dir, regression(epochs=5))
    while not run.done:
        evaluation = run.advance()
    assert set(evaluation.metrics) == {"val_spearman", "val_pearson", "val_loss", "train_loss"}
    test = run.test()
    assert test["test_pearson"] > 0.8
    assert test["test_loss"] < 0.5  # of the labels' variance, though they are about 1000


@pytest.mark.parametrize("cfg", [{}, {"accumulation": 2, "precision": "bf16"}], ids=["plain", "bf16-accumulated"])
def test_resume_is_bit_for_bit(data_dir: Path, tmp_path: Path, cfg: dict[str, Any]) -> None:
    whole = start(data_dir, config(**cfg))
    evaluations = [whole.advance(), whole.advance()]
    first = start(data_dir, config(**cfg))
    first.advance()
    checkpoint.save(tmp_path / "run", {"run": first.state_dict()}, epoch=1)
    torch.rand(7)
    state = checkpoint.load_latest(tmp_path / "run")
    assert state is not None
    second = start(data_dir, config(**cfg))
    second.load_state_dict(state["run"])
    assert second.advance().metrics == evaluations[1].metrics
    assert all(torch.equal(a, b) for a, b in zip(weights(whole), weights(second), strict=True))
    assert second.test() == whole.test()


def test_the_loop_is_the_textbooks(data_dir: Path) -> None:
    """An epoch equals a loop written by hand over the same batches: linear decay, clipping at 1, AdamW."""
    params = {"lr": 3e-3, "weight_decay": 0.0}
    run = open_run(config(epochs=1), optimizer="adamw", params=params, seed=0, data_dir=data_dir, device="cpu")
    assert isinstance(run, TrainingRun)
    torch.manual_seed(derive_seed(0, "weights"))
    model = run._task.build_model().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.0)
    decay = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / 9)
    torch.manual_seed(derive_seed(0, "noise", 0))
    for batch in run._task.train_batches(seed=0, epoch=0):
        logits = model(**{name: batch[name] for name in ("input_ids", "token_type_ids", "attention_mask")}).logits
        nn.functional.cross_entropy(logits, batch["labels"]).backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        decay.step()
        optimizer.zero_grad()
    run.advance()
    for a, b in zip(run.model.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=2e-5)


def test_padding_changes_no_prediction(data_dir: Path) -> None:
    task = load_task(config(), data_dir=data_dir, device=torch.device("cpu"))
    torch.manual_seed(0)
    model = task.build_model().eval()
    part = task.data.test
    with torch.no_grad():
        together = task.logits(model, part)  # type: ignore[attr-defined]
        for row in (0, 17, 59):
            length = int(part.table.lengths[row])
            alone = task.outputs(model, part.table.pad(torch.tensor([row]), length)).logits  # type: ignore[attr-defined]
            torch.testing.assert_close(together[row], alone[0], rtol=1e-4, atol=1e-5)


def test_tokens_are_kept_by_content(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def load() -> Any:
        release_data()
        return load_task(config(), data_dir=data_dir, device=torch.device("cpu")).data

    first = load()
    monkeypatch.setattr("tasks.text.sentences._tokenize", lambda *args, **kwargs: pytest.fail("tokenised again"))
    again = load()
    assert again.facts == first.facts
    assert (again.train.rows == first.train.rows).all()
    pad = torch.arange(5)
    assert torch.equal(again.test.table.pad(pad, 32)["input_ids"], first.test.table.pad(pad, 32)["input_ids"])
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(data_dir / "cache"))
    write_csv(data_dir / "reviews" / "test.csv", reviews(61, seed=2))
    assert len(load().test) == 61


def test_a_val_file_and_pairs_and_other_columns(data_dir: Path) -> None:
    folder = data_dir / "pairs"
    folder.mkdir()
    for name, n in (("a.jsonl", 40), ("b.jsonl", 20), ("c.jsonl", 21)):
        rows = [
            f'{{"q": "{text}", "a": "{text[:9]}", "same": {str(label == "yes").lower()}}}'
            for text, label, _ in reviews(n, seed=n)
        ]
        (folder / name).write_text("\n".join(rows))
    files = {"data_dir": "pairs", "train_file": "a.jsonl", "val_file": "b.jsonl", "test_file": "c.jsonl"}
    cfg = config(**files, text_column="q", pair_column="a", label_column="same")
    task = load_task(cfg, data_dir=data_dir, device=torch.device("cpu"))
    assert task.data.classes == ("false", "true")
    assert [len(part) for part in (task.data.train, task.data.val, task.data.test)] == [40, 20, 21]
    batch = next(iter(task.train_batches(seed=0, epoch=0)))
    assert batch["token_type_ids"].max() == 1


def test_long_texts_are_cut_and_counted(data_dir: Path) -> None:
    run = start(data_dir, config(max_length=16))
    record = run.environment()
    assert 20 < record["n_truncated_texts"] < 220
    assert run._task.data.train.table.lengths.max() == 16


def edited(data_dir: Path, name: str, content: str) -> None:
    (data_dir / "reviews" / name).write_text(content)


ONE_CLASS = "text,label\na,yes\nb,yes\n"
BAD_DATA: list[tuple[str, str, dict[str, Any], str]] = [
    ("train.csv", "", {}, r"train\.csv is empty"),
    ("train.csv", "text,label\n", {}, r"train\.csv holds no row"),
    ("train.csv", ONE_CLASS, {}, r"train\.csv has one class, 'yes'; a classification needs at least two"),
    (
        "test.csv",
        "text,label\na,maybe\n",
        {},
        r"line 2: class 'maybe' is not one of the classes 'no', 'yes'",
    ),
    ("test.csv", "words,label\na,yes\n", {}, r"test\.csv has no column 'text'; its columns, .* are 'words', 'label'"),
    ("train.csv", "text,label\na,yes\nb,no\n", {}, "gives 0 for validation and 2 for training"),
    ("train.csv", "text,label\n" + "a,yes\n" * 9 + "b,no\n", {"val_fraction": 0.8}, "class 'no' has 1 training row"),
]


@pytest.mark.parametrize(("name", "content", "fields", "message"), BAD_DATA, ids=[message for *_, message in BAD_DATA])
def test_bad_data_fails_the_study_once_with_the_reason(
    data_dir: Path, name: str, content: str, fields: dict[str, Any], message: str
) -> None:
    edited(data_dir, name, content)
    with pytest.raises(DataError, match=message):
        check(config(**fields), data_dir=data_dir)


def test_bad_numbers_and_missing_files(data_dir: Path) -> None:
    with pytest.raises(DataError, match=r"train\.csv, line 2: label is '(no|yes)'; it must be a finite number"):
        check(config(name="text_regression"), data_dir=data_dir)
    edited(data_dir, "train.csv", "text,score\n" + "a,2\n" * 40)
    edited(data_dir, "test.csv", "text,score\na,2\n")
    with pytest.raises(TaskError, match=r"all training labels in train\.csv are 2; a regression needs two values"):
        check(regression(), data_dir=data_dir)
    with pytest.raises(DataError, match=r"'reviews/gone\.csv' is not in the data folder"):
        check(config(train_file="gone.csv"), data_dir=data_dir)
    (data_dir / "reviews" / "folder.csv").mkdir()
    with pytest.raises(DataError, match=r"folder\.csv cannot be read: Is a directory"):
        check(config(train_file="folder.csv"), data_dir=data_dir)
    with pytest.raises(DataError, match="needs a data folder: set ADMETA_DATA or --data"):
        check(config(), data_dir=None)


def test_a_model_that_cannot_be_built_fails_the_study_before_its_first_trial(data_dir: Path) -> None:
    check(config(), data_dir=data_dir)
    source = load_task(config(), data_dir=data_dir, device=torch.device("cpu")).data.source
    shutil.copytree(source.folder, data_dir / "mine")
    (data_dir / "mine" / "model.safetensors").write_bytes(b"torn")
    with pytest.raises(ConfigError, match="folder mine cannot be loaded from"):
        check(config(model="mine"), data_dir=data_dir)


def test_what_does_not_fit_is_refused(data_dir: Path) -> None:
    with pytest.raises(ConfigError, match="more than the 144 training samples"):
        check(config(batch_size=145), data_dir=data_dir)
    with pytest.raises(ConfigError, match="max_length 513 is more than the 512 tokens"):
        check(config(max_length=513), data_dir=data_dir)
    with pytest.raises(ValidationError, match="must name different columns"):
        config(text_column="label")
    with pytest.raises(ValidationError, match="less than or equal to 0"):
        regression(label_smoothing=0.1)


@pytest.mark.parametrize("model", ["../x", "/etc", "a b", "-x", "a/../b", "", "x" * 200, "a//b", "a/"])
def test_model_names_that_could_lead_elsewhere_are_refused(model: str) -> None:
    with pytest.raises(ValidationError, match="unknown model"):
        config(model=model)


def test_predictions_come_back_in_the_order_of_rows(data_dir: Path) -> None:
    task: Any = load_task(config(), data_dir=data_dir, device=torch.device("cpu"))

    class Echo(nn.Module):
        def forward(self, input_ids: torch.Tensor, **kwargs: Any) -> Any:
            return type("Output", (), {"logits": input_ids[:, 1:2].float()})

    for part in (task.data.val, task.data.train, task.data.test):
        found = task.logits(Echo(), part)[:, 0]
        expected = part.table.pad(torch.from_numpy(np.asarray(part.rows)), 64)["input_ids"][:, 1].float()
        assert torch.equal(found, expected)


def test_labels_in_two_unicode_forms_are_one_class_and_csv_may_be_written_large(data_dir: Path) -> None:
    folder = data_dir / "reviews"
    for split in ("train", "test"):
        text = (folder / f"{split}.csv").read_text()
        half = len(text) // 2
        text = text[:half].replace(",yes", ",caf\u00e9") + text[half:].replace(",yes", ",cafe\u0301")
        (folder / f"{split}.CSV").write_text(text)
    cfg = config(train_file="train.CSV", test_file="test.CSV")
    data = load_task(cfg, data_dir=data_dir, device=torch.device("cpu")).data
    assert data.classes == ("caf\u00e9", "no")


def test_a_real_file_with_labels_in_two_forms(tmp_path: Path) -> None:
    folder = tmp_path / "cases"
    folder.mkdir()
    shutil.copy(shared_case("labels_two_forms.csv"), folder / "train.csv")
    shutil.copy(folder / "train.csv", folder / "test.csv")
    cfg = config(data_dir="cases", batch_size=2)
    assert load_task(cfg, data_dir=tmp_path, device=torch.device("cpu")).data.classes == ("caf\u00e9", "tea")


@pytest.mark.parametrize("metric", ["val_mcc", "val_f1"])
def test_a_validation_set_of_one_class_is_refused_for_a_metric_it_leaves_undefined(data_dir: Path, metric: str) -> None:
    write_csv(data_dir / "reviews" / "val.csv", [row for row in reviews(60, seed=2) if row[1] == "yes"])
    cfg = config(val_file="val.csv")
    check(cfg, data_dir=data_dir, metric="val_accuracy")
    with pytest.raises(DataError, match=rf"validation rows are of class 'yes', for which {metric} is undefined"):
        check(cfg, data_dir=data_dir, metric=metric)


def test_validation_labels_that_are_equal_have_no_correlation(data_dir: Path) -> None:
    write_csv(data_dir / "reviews" / "val.csv", [(text, klass, 2.0) for text, klass, _ in reviews(20, seed=2)])
    with pytest.raises(DataError, match="20 validation labels are 2, for which val_spearman is undefined"):
        check(regression(val_file="val.csv"), data_dir=data_dir, metric="val_spearman")


def test_predictions_of_one_class_tell_nothing_of_the_labels(data_dir: Path) -> None:
    run = start(data_dir, lr=0.0)
    with torch.no_grad():
        run.model.classifier.weight.zero_()  # type: ignore[operator, union-attr]
    evaluation = run.advance()
    assert evaluation.metrics["val_mcc"] == 0.0
    assert 0.0 < evaluation.metrics["val_accuracy"] < 1.0


def test_an_error_of_a_library_in_the_check_is_the_studys_reason(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: Any, **options: Any) -> Any:
        raise ValueError("array is too big")

    monkeypatch.setattr("tasks.text.sentences.read_columns", broken)
    with pytest.raises(DataError, match=r"data set of text_classification cannot be loaded \(ValueError: array is"):
        check(config(), data_dir=data_dir)
