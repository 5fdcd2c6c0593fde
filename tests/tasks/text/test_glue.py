"""GLUE's files with their quirks, the hub's layout through `datasets`, and what is said where there is neither."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import datasets
import pytest
import torch

from tasks.engine.task import load_task
from tasks.errors import DataError
from tasks.registry import TASKS, get, parse_config
from tasks.text.glue import GLUE, glue_files
from tests.tasks.shared_data import shared_data
from tests.tasks.text.conftest import reviews


def config(name: str, **fields: Any) -> Any:
    return parse_config({"name": name, "model": "tiny", **fields})


def test_the_eight_tasks_are_registered_with_the_papers_metrics_and_budgets() -> None:
    metrics = {name: get(name).default_metric for name in GLUE}
    assert metrics == {
        "cola": "val_mcc",
        "sst2": "val_accuracy",
        "mrpc": "val_f1",
        "stsb": "val_spearman",
        "qqp": "val_f1",
        "mnli": "val_accuracy",
        "qnli": "val_accuracy",
        "rte": "val_accuracy",
    }
    for name in GLUE:
        defaults = parse_config({"name": name})
        assert (defaults.model, defaults.batch_size, defaults.grad_clip) == ("bert-base-uncased", 32, 1.0)
        assert defaults.epochs == (5 if name == "mrpc" else 3)
        assert (defaults.schedule.name, defaults.schedule.warmup, defaults.schedule.final) == ("linear", 0.0, 0.0)
        assert TASKS[name].space == "finetune"
    assert "test_accuracy_mismatched" in get("mnli").test_metrics


SHARED = [  # rows of train and dev in these copies (MRPC's has one less than the 3,668 that are printed), and a row
    ("cola", "CoLA", 8551, 1043, 0, "1", "Our friends won't buy this analysis"),
    ("sst2", "SST-2", 67349, 872, 0, "0", "hide new secretions"),
    ("mrpc", "MRPC", 3667, 408, 0, "1", 'Amrozi accused his brother , whom he called " the witness "'),
    ("rte", "RTE", 2490, 277, 0, "not_entailment", "No Weapons of Mass Destruction Found"),
    ("stsb", "STS-B", 5749, 1500, 0, 5.0, "A plane is taking off."),
]


@pytest.mark.parametrize(
    ("name", "folder", "n_train", "n_dev", "row", "label", "text"), SHARED, ids=[s[0] for s in SHARED]
)
def test_glues_own_files_are_read_whole(
    name: str, folder: str, n_train: int, n_dev: int, row: int, label: Any, text: str
) -> None:
    data = shared_data(f"glue/{folder}").resolve()
    files = glue_files(config(name), data_dir=data)
    train, dev = files.read(files.paths["train"]), files.read(files.paths["test"])
    assert (len(train.first), len(dev.first), train.n_skipped) == (n_train, n_dev, 0)
    assert train.labels[row] == label
    assert train.first[row].startswith(text)
    if files.classes:
        assert set(map(str, train.labels)) == set(files.classes)
    assert glue_files(config(name, data_dir=f"glue/{folder}"), data_dir=data).paths == files.paths


def write(folder: Path, name: str, lines: list[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8-sig")


def mnli_row(n: int, label: str) -> str:
    return "\t".join([str(n), "p", "f", "( a )", "( b )", "(R a)", "(R b)", '"a dog', "runs", label])


def test_mnli_is_tested_on_both_genres_and_broken_rows_are_counted(tmp_path: Path) -> None:
    header = (
        "index\tpromptID\tgenre\tsentence1_binary_parse\tsentence2_binary_parse\tsentence1_parse\tsentence2_parse"
        "\tsentence1\tsentence2\tgold_label"
    )
    labels = ["entailment", "neutral", "contradiction"] * 40
    folder = tmp_path / "MNLI"
    write(folder, "train.tsv", [header, *(mnli_row(n, label) for n, label in enumerate(labels)), "7\tbroken"])
    for name, n in (("dev_matched.tsv", 9), ("dev_mismatched.tsv", 12)):
        write(folder, name, [header, *(mnli_row(i, labels[i]) for i in range(n))])
    task: Any = load_task(config("mnli", val_fraction=0.1), data_dir=tmp_path, device=torch.device("cpu"))
    assert task.data.classes == ("entailment", "neutral", "contradiction")
    assert (len(task.data.test), len(task.data.others["mismatched"])) == (9, 12)
    assert task.record()["n_skipped_rows"] == 1
    torch.manual_seed(0)
    with torch.no_grad():
        model = task.build_model().eval()
        assert set(task.evaluate(model, "val")) == {"accuracy", "loss"}
        test = task.evaluate(model, "test")
    assert set(test) == {"accuracy", "loss", "accuracy_mismatched", "loss_mismatched"}
    assert {f"test_{name}" for name in test} == set(get("mnli").test_metrics)


def test_a_missing_development_file_is_named(tmp_path: Path) -> None:
    write(tmp_path / "RTE", "train.tsv", ["index\tsentence1\tsentence2\tlabel"])
    with pytest.raises(DataError, match=r"RTE/dev\.tsv is missing; rte needs"):
        glue_files(config("rte"), data_dir=tmp_path)


def test_without_network_the_error_names_folder_and_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*args: Any, **kwargs: Any) -> Any:
        raise ConnectionError("Couldn't reach the hub\nwith a long tail")

    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    with pytest.raises(DataError) as caught:
        glue_files(config("mnli"), data_dir=tmp_path)
    message = str(caught.value)
    assert message.startswith(f"mnli is not in {tmp_path} and could not be fetched (ConnectionError: Couldn't reach")
    assert message.endswith("Put GLUE's MNLI/ with train.tsv, dev_matched.tsv, dev_mismatched.tsv there")


def test_a_folder_that_is_named_is_the_only_one_looked_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever names a folder of their own must not train on the hub's instead."""
    monkeypatch.setattr(datasets, "load_dataset", lambda *args, **kwargs: pytest.fail("asked the hub"))
    (tmp_path / "mine").mkdir()
    with pytest.raises(DataError, match=r"rte is not in .*mine .*data_dir is given"):
        glue_files(config("rte", data_dir="mine"), data_dir=tmp_path)


@pytest.mark.parametrize("name", ["cola", "stsb", "mnli"])
def test_the_hubs_layout_is_fetched_once_and_reads_as_the_files_do(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`datasets` itself reads a local data set of the hub's columns; a second load asks nobody."""
    task = GLUE[name]
    source = tmp_path / "hub"
    splits = {"train": 60, **{split: 12 for _, split in task.dev.values()}}
    source.mkdir()
    for split, n in splits.items():
        columns: dict[str, list[Any]] = {task.hub_first: [text for text, _, _ in reviews(n, seed=n)]}
        if task.hub_second:
            columns[task.hub_second] = [text[:20] for text in columns[task.hub_first]]
        labels = [i % len(task.classes) if task.classes else float(i % 6) for i in range(n)]
        datasets.Dataset.from_dict({**columns, "label": labels}).to_parquet(source / f"{split}.parquet")
    real = datasets.load_dataset

    def local(path: str, part: str, revision: str | None = None) -> Any:
        assert (path, part) == ("nyu-mll/glue", name)
        files = {split: str(source / f"{split}.parquet") for split in splits}
        return real("parquet", data_files=files, cache_dir=str(tmp_path / "datasets"))

    monkeypatch.setattr(datasets, "load_dataset", local)
    first = glue_files(config(name), data_dir=None)
    monkeypatch.setattr(datasets, "load_dataset", lambda *args, **kwargs: pytest.fail("asked again"))
    again = glue_files(config(name), data_dir=None)
    assert again.paths == first.paths
    rows = again.read(again.paths["train"])
    assert len(rows.first) == 60
    assert (rows.second is None) is (task.hub_second is None)
    assert rows.labels[1] == (task.classes[1] if task.classes else 1.0)
    loaded: Any = load_task(config(name), data_dir=None, device=torch.device("cpu"))
    assert len(loaded.data.train) + len(loaded.data.val) == 60
