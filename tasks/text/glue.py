"""GLUE: eight tasks, from its own TSV files in the data folder, or fetched once a node from the hub.

Its test labels are not public: the development set is our test set, and validation is split off the training set.

Source: Wang et al., "GLUE: A Multi-Task Benchmark and Analysis Platform", ICLR 2019; the files' quirks are the files'.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from tasks.data.find import Fail, find_or_fetch, load_from_hub
from tasks.text.columns import read_class_names, read_columns, read_numbers, read_texts
from tasks.text.config import GlueConfig
from tasks.text.sentences import ClassificationTask, RegressionTask, SentenceFiles, Sentences

HUB_NAME = "nyu-mll/glue"
FORMAT = 1  # of the fetched files; raise it when their layout changes
ENTAILMENT = ("entailment", "not_entailment")


@dataclass(frozen=True, kw_only=True)
class GlueFiles:
    """Where one task is in GLUE's archive and on the hub.

    Attributes:
        folder: its folder in the archive.
        first, second, label: columns of the TSV files; second None for single sentences.
        hub_first, hub_second: columns on the hub.
        classes: in the hub's order; () for a regression.
        dev: our name of each development set → (TSV file, split on the hub).
        header: column names where the files have none.
    """

    folder: str
    first: str
    second: str | None = None
    label: str = "label"
    hub_first: str = "sentence"
    hub_second: str | None = None
    classes: tuple[str, ...] = ("0", "1")
    dev: Mapping[str, tuple[str, str]] = field(default_factory=lambda: {"test": ("dev.tsv", "validation")})
    header: tuple[str, ...] | None = None


MNLI_DEV = {
    "test": ("dev_matched.tsv", "validation_matched"),
    "mismatched": ("dev_mismatched.tsv", "validation_mismatched"),
}

_PAIR: Mapping[str, Any] = {
    "first": "sentence1",
    "second": "sentence2",
    "hub_first": "sentence1",
    "hub_second": "sentence2",
}

GLUE: Mapping[str, GlueFiles] = {
    "cola": GlueFiles(folder="CoLA", first="sentence", header=("source", "label", "mark", "sentence")),
    "sst2": GlueFiles(folder="SST-2", first="sentence"),
    "mrpc": GlueFiles(folder="MRPC", label="Quality", **{**_PAIR, "first": "#1 String", "second": "#2 String"}),
    "stsb": GlueFiles(folder="STS-B", label="score", classes=(), **_PAIR),
    "qqp": GlueFiles(
        folder="QQP",
        first="question1",
        second="question2",
        label="is_duplicate",
        hub_first="question1",
        hub_second="question2",
    ),
    "mnli": GlueFiles(
        folder="MNLI",
        label="gold_label",
        classes=("entailment", "neutral", "contradiction"),
        dev=MNLI_DEV,
        **{**_PAIR, "hub_first": "premise", "hub_second": "hypothesis"},
    ),
    "qnli": GlueFiles(
        folder="QNLI",
        first="question",
        second="sentence",
        hub_first="question",
        hub_second="sentence",
        classes=ENTAILMENT,
    ),
    "rte": GlueFiles(folder="RTE", classes=ENTAILMENT, **_PAIR),
}


def glue_files(config: GlueConfig, *, data_dir: Path | None) -> SentenceFiles:
    """The task's files: GLUE's own in the data folder (or in `config.data_dir`), or the hub's, fetched once a node.

    Raises:
        DataError: not found and not fetched; the message names the folder and the files expected.
    """
    name, task = config.name, GLUE[config.name]
    own = {"train": "train.tsv", **{split: file for split, (file, _) in task.dev.items()}}
    paths = find_or_fetch(
        name,
        data_dir=data_dir,
        inner=config.data_dir,
        folders=[task.folder, f"glue/{task.folder}", f"GLUE/{task.folder}"],
        layouts=[own],
        advice=f"Put GLUE's {task.folder}/ with {', '.join(own.values())} there",
        fetch=partial(_fetch, name=name),
        fetched={split: f"{split}.jsonl" for split in own},
        version=FORMAT,
    )
    is_own = paths["train"].suffix == ".tsv"
    names = (task.first, task.second, task.label) if is_own else ("first", task.hub_second and "second", "label")
    return SentenceFiles(
        paths=paths,
        read=partial(_read, names=names, task=task),
        options={"layout": "tsv" if is_own else "hub"},
        classes=task.classes,
    )


def _read(path: Path, *, names: tuple[str, str | None, str], task: GlueFiles) -> Sentences:
    """The sentences of a file whose columns have these names: the first text, the second or None, the label."""
    first, second, label = names
    wanted = [name for name in (first, second, label) if name is not None]
    # Some rows of QQP break off early; everyone's loader leaves them out.
    columns = read_columns(path, wanted, quotes="none", header=task.header, bad_rows="skip")
    return Sentences(
        first=read_texts(columns, first),
        second=None if second is None else read_texts(columns, second),
        labels=read_class_names(columns, label) if task.classes else read_numbers(columns, label),
        lines=columns.lines,
        n_skipped=columns.n_skipped,
    )


def _fetch(folder: Path, fail: Fail, *, name: str) -> None:
    """Write the hub's splits as JSONL files, so that later runs need neither the network nor `datasets`."""
    task = GLUE[name]
    loaded = load_from_hub(HUB_NAME, name, fail=fail)
    for split, hub_split in {"train": "train", **{ours: hub for ours, (_, hub) in task.dev.items()}}.items():
        with (folder / f"{split}.jsonl").open("w", encoding="utf-8") as file:
            for row in loaded[hub_split]:
                file.write(json.dumps(_own_row(row, task), ensure_ascii=False) + "\n")


def _own_row(row: Mapping[str, Any], task: GlueFiles) -> dict[str, Any]:
    own: dict[str, Any] = {"first": row[task.hub_first]}
    if task.hub_second is not None:
        own["second"] = row[task.hub_second]
    own["label"] = task.classes[row["label"]] if task.classes else float(row["label"])
    return own


class GlueClassification(ClassificationTask[GlueConfig]):
    """Any of the seven; `ClassificationTask.metrics` says which scores."""

    @classmethod
    def files(cls, config: GlueConfig, *, data_dir: Path | None) -> SentenceFiles:
        return glue_files(config, data_dir=data_dir)


class ColaTask(GlueClassification):
    """Warstadt et al., "Neural Network Acceptability Judgments", TACL 2019: judged by the Matthews correlation."""

    metrics: ClassVar[tuple[str, ...]] = ("mcc",)


class ParaphraseTask(GlueClassification):
    """MRPC and QQP: judged by the F1 of the paraphrases."""

    metrics: ClassVar[tuple[str, ...]] = ("f1",)


class StsbTask(RegressionTask[GlueConfig]):
    """Cer et al., "SemEval-2017 Task 1": judged by Spearman's correlation; trained on the scores as they are."""

    @classmethod
    def files(cls, config: GlueConfig, *, data_dir: Path | None) -> SentenceFiles:
        return glue_files(config, data_dir=data_dir)
