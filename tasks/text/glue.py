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

from tasks.config import resolve_inside
from tasks.data.cache import built_once
from tasks.data.find import NAMED_FOLDER, load_from_hub, nowhere
from tasks.errors import DataError
from tasks.text.columns import class_names, numbers, read_columns, texts
from tasks.text.config import GlueConfig
from tasks.text.sentences import ClassificationTask, RegressionTask, SentenceFiles, Sentences

HUB_NAME = "nyu-mll/glue"
FORMAT = 1  # of the fetched files; raise it when their layout changes
ENTAILMENT = ("entailment", "not_entailment")


@dataclass(frozen=True, kw_only=True)
class GlueFiles:
    """How one task lies in GLUE's archive and on the hub.

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

GLUE: Mapping[str, GlueFiles] = {
    "cola": GlueFiles(folder="CoLA", first="sentence", header=("source", "label", "mark", "sentence")),
    "sst2": GlueFiles(folder="SST-2", first="sentence"),
    "mrpc": GlueFiles(
        folder="MRPC",
        first="#1 String",
        second="#2 String",
        label="Quality",
        hub_first="sentence1",
        hub_second="sentence2",
    ),
    "stsb": GlueFiles(
        folder="STS-B",
        first="sentence1",
        second="sentence2",
        label="score",
        hub_first="sentence1",
        hub_second="sentence2",
        classes=(),
    ),
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
        first="sentence1",
        second="sentence2",
        label="gold_label",
        hub_first="premise",
        hub_second="hypothesis",
        classes=("entailment", "neutral", "contradiction"),
        dev=MNLI_DEV,
    ),
    "qnli": GlueFiles(
        folder="QNLI",
        first="question",
        second="sentence",
        hub_first="question",
        hub_second="sentence",
        classes=ENTAILMENT,
    ),
    "rte": GlueFiles(
        folder="RTE",
        first="sentence1",
        second="sentence2",
        hub_first="sentence1",
        hub_second="sentence2",
        classes=ENTAILMENT,
    ),
}


def glue_files(config: GlueConfig, *, data_dir: Path | None) -> SentenceFiles:
    """The task's files: looked for in the data folder (or `config.data_dir` in it), or else fetched once a node.

    Raises:
        DataError: not there, and no network or a folder of one's own named; the message names the folder and the files
            expected.
    """
    task = GLUE[config.name]
    root = (
        None if data_dir is None else data_dir if config.data_dir is None else resolve_inside(data_dir, config.data_dir)
    )
    if root is not None and (folder := _local(root, task, given=config.data_dir is not None)) is not None:
        paths = {"train": folder / "train.tsv", **{split: folder / file for split, (file, _) in task.dev.items()}}
        if missing := [path for path in paths.values() if not path.is_file()]:
            raise DataError(
                f"{missing[0]} is missing; {config.name} needs {', '.join(sorted(map(str, paths.values())))}"
            )
        read = partial(_read_tsv, task=task)
        return SentenceFiles(paths=paths, read=read, options={"layout": "tsv"}, classes=task.classes)
    missing_text = _missing_text(config.name, root=root)
    if config.data_dir is not None:
        raise nowhere(missing_text, reason=NAMED_FOLDER)
    folder = built_once("glue", f"{config.name}-{FORMAT}", lambda folder: _fetch(folder, config.name, missing_text))
    paths = {split: folder / f"{split}.jsonl" for split in ("train", *task.dev)}
    read = partial(_read_jsonl, task=task)
    return SentenceFiles(paths=paths, read=read, options={"layout": "hub"}, classes=task.classes)


def _local(root: Path, task: GlueFiles, *, given: bool) -> Path | None:
    candidates = [root / task.folder, root / "glue" / task.folder, root / "GLUE" / task.folder]
    if given:
        candidates.append(root)
    return next((folder for folder in candidates if (folder / "train.tsv").is_file()), None)


def _read_tsv(path: Path, *, task: GlueFiles) -> Sentences:
    wanted = [name for name in (task.first, task.second, task.label) if name is not None]
    # Some rows of QQP break off early; everyone's loader leaves them out.
    columns = read_columns(path, wanted, quotes="none", header=task.header, bad_rows="skip")
    return Sentences(
        first=texts(columns, task.first),
        second=None if task.second is None else texts(columns, task.second),
        labels=class_names(columns, task.label) if task.classes else numbers(columns, task.label),
        lines=columns.lines,
        n_skipped=columns.n_skipped,
    )


def _read_jsonl(path: Path, *, task: GlueFiles) -> Sentences:
    wanted = ["first", "label"] if task.hub_second is None else ["first", "second", "label"]
    columns = read_columns(path, wanted, quotes="none")
    return Sentences(
        first=texts(columns, "first"),
        second=None if task.hub_second is None else texts(columns, "second"),
        labels=class_names(columns, "label") if task.classes else numbers(columns, "label"),
        lines=columns.lines,
    )


def _missing_text(name: str, *, root: Path | None) -> str:
    """What to say where a task is nowhere; `{reason}` in it is to be replaced."""
    task = GLUE[name]
    where = root if root is not None else "the data folder (set ADMETA_DATA or --data)"
    files = ", ".join(["train.tsv", *(file for file, _ in task.dev.values())])
    return (
        f"{name} is not in {where} and could not be fetched ({{reason}}). Put GLUE's {task.folder}/ with {files} there"
    )


def _fetch(folder: Path, name: str, missing: str) -> None:
    """Write the hub's splits as JSONL files of our own, so that later runs need neither network nor `datasets`."""
    task = GLUE[name]
    loaded = load_from_hub(HUB_NAME, name, missing=missing)
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
