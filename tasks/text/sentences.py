"""Classification and regression of sentences, or of pairs of them: data from files to the device, loss and scores.

Also the tasks on a user's own texts: CSV, TSV or JSONL files with named columns.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Generic

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tasks.config import resolve_inside
from tasks.data.find import open_data_folder
from tasks.data.hold_out import hold_out
from tasks.engine.task import Batch, Split
from tasks.errors import DataError
from tasks.metrics import class_scores, value_scores
from tasks.text.columns import number_classes, read_class_names, read_columns, read_numbers, read_texts
from tasks.text.config import OwnTextConfig, TextClassificationConfig, TextConfig, TextRegressionConfig
from tasks.text.task import TextConfigT, TextData, TextSplit, TextTask, prepare
from tasks.text.tokens import Tokenized, TokenTable, encode


@dataclass(frozen=True)
class Sentences:
    """The rows of one file.

    Attributes:
        first, second: the texts; second None where there are no pairs.
        labels: class names, or numbers of a regression.
        lines: the line of each row, for error messages.
        n_skipped: rows left out because they were incomplete.
    """

    first: list[str]
    second: list[str] | None
    labels: Sequence[str] | Sequence[float]
    lines: Sequence[int]
    n_skipped: int = 0


@dataclass(frozen=True, kw_only=True)
class SentenceFiles:
    """The files of a data set and how each is read.

    Attributes:
        paths: by split: "train", "test", perhaps "val", and further test sets.
        read: reads one of them.
        options: JSON values that `read` depends on besides the files.
        classes: the class names in order; None: those of the training set, sorted; () for a regression.
    """

    paths: Mapping[str, Path]
    read: Callable[[Path], Sentences]
    options: Mapping[str, Any]
    classes: tuple[str, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class SentenceData(TextData):
    """As `TextData`, with the class names (none for a regression) and further test sets."""

    classes: tuple[str, ...]
    others: Mapping[str, TextSplit] = field(default_factory=dict)


def load_sentences(
    files: SentenceFiles, config: TextConfig, *, data_dir: Path | None, device: torch.device
) -> SentenceData:
    """Read and tokenise, or map what was kept; split validation off by `config.split_seed`; put all on the device.

    Raises:
        DataError: files missing or broken, a class that is not in the training set, too few rows.
    """
    prepared = prepare(
        config,
        list(files.paths.values()),
        data_dir=data_dir,
        texts=lambda: _all_texts(files.read(files.paths["train"])),
        parts={"splits": sorted(files.paths), "options": dict(files.options), "classes": files.classes},
        build=lambda tokenizer: _tokenize(files, tokenizer, max_length=config.max_length),
    )
    splits = {name: prepared.place(name, device=device) for name in prepared.tables}
    classes = tuple(prepared.facts["classes"])
    train = splits.pop("train")
    if (val := splits.pop("val", None)) is None:
        labels = prepared.tables["train"].row_columns["labels"]
        kept, held_out = hold_out(
            labels if classes else np.zeros(len(labels), dtype=np.int64),
            fraction=config.val_fraction,
            seed=config.split_seed,
            what="training row",
            classes=classes,
            may_lack_classes=["validation"],
        )
        train, val = train.take(kept), train.take(held_out)
    return SentenceData(
        source=prepared.source,
        pad_token_id=prepared.pad_token_id,
        inputs=prepared.inputs,
        train=train,
        val=val,
        test=splits.pop("test"),
        others=splits,
        classes=classes,
        facts={"data_digest": prepared.digest, **{k: v for k, v in prepared.facts.items() if k.startswith("n_")}},
    )


def _all_texts(sentences: Sentences) -> list[str]:
    return sentences.first + (sentences.second or [])


def _tokenize(files: SentenceFiles, tokenizer: Any, *, max_length: int) -> Tokenized:
    read = {split: files.read(path) for split, path in files.paths.items()}
    classes = _classes(files, read["train"])
    tables: dict[str, TokenTable] = {}
    n_truncated = n_skipped = 0
    for split, rows in read.items():
        labels = _numbered(rows, classes, path=files.paths[split])
        table, n_cut = encode(tokenizer, rows.first, rows.second, max_length=max_length, row_columns={"labels": labels})
        tables[split] = table
        n_truncated += n_cut
        n_skipped += rows.n_skipped
    return Tokenized(
        tables=tables, facts={"classes": classes, "n_truncated_texts": n_truncated, "n_skipped_rows": n_skipped}
    )


def _classes(files: SentenceFiles, train: Sentences) -> tuple[str, ...]:
    if files.classes == ():
        return ()
    found = sorted({str(label) for label in train.labels})
    if len(found) < 2:
        raise DataError(f"{files.paths['train']} has one class, {found[0]!r}; a classification needs at least two")
    return tuple(found) if files.classes is None else files.classes


def _numbered(rows: Sentences, classes: tuple[str, ...], *, path: Path) -> NDArray[Any]:
    """Labels as class numbers, int64, or as float32 of a regression; (n,)."""
    if not classes:
        return np.asarray(rows.labels, dtype=np.float32)
    return number_classes([str(label) for label in rows.labels], classes, path=path, lines=rows.lines)


class SentenceTask(TextTask[TextConfigT, SentenceData], Generic[TextConfigT]):
    """What classification and regression have in common."""

    auto_class = "AutoModelForSequenceClassification"

    @classmethod
    def load(cls, config: TextConfigT, *, data_dir: Path | None, device: torch.device) -> SentenceData:
        return load_sentences(cls.files(config, data_dir=data_dir), config, data_dir=data_dir, device=device)

    @classmethod
    @abstractmethod
    def files(cls, config: TextConfigT, *, data_dir: Path | None) -> SentenceFiles:
        """The data set's files."""

    def evaluate(self, model: nn.Module, split: Split) -> dict[str, float]:
        part = self.split(split)
        metrics = self.scores(self.logits(model, part), part)
        if split == "test":
            for name, other in self.data.others.items():
                scores = self.scores(self.logits(model, other), other)
                metrics |= {f"{metric}_{name}": value for metric, value in scores.items()}
        return metrics

    @abstractmethod
    def scores(self, logits: Tensor, part: TextSplit) -> dict[str, float]:
        """Metrics of a split from its logits, (n, outputs) float32 on the device, in the order of its rows."""

    def labels(self, part: TextSplit) -> Tensor:
        """The labels of a split's rows on the device."""
        return part.table.column("labels")[torch.from_numpy(part.rows).to(self.device)]


class ClassificationTask(SentenceTask[TextConfigT], Generic[TextConfigT]):
    """Which class a sentence or a pair is of; `metrics` are the names that `tasks.metrics.class_scores` takes."""

    metrics: ClassVar[tuple[str, ...]] = ()

    def head(self) -> Mapping[str, Any]:
        return {"num_labels": len(self.data.classes), "problem_type": "single_label_classification"}

    def check_metric(self, metric: str) -> None:
        classes = torch.unique(self.labels(self.data.val))
        if metric in ("f1", "mcc") and len(classes) < 2:
            raise DataError(
                f"all {len(self.data.val)} validation rows are of class {self.data.classes[int(classes[0])]!r}, for "
                f"which val_{metric} is undefined; add rows of other classes, or choose another objective"
            )

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        logits = self.outputs(model, batch).logits.float()
        return nn.functional.cross_entropy(logits, batch["labels"], label_smoothing=self.config.label_smoothing)

    def scores(self, logits: Tensor, part: TextSplit) -> dict[str, float]:
        return class_scores(logits, self.labels(part), names=self.metrics)


class RegressionTask(SentenceTask[TextConfigT], Generic[TextConfigT]):
    """A number for a sentence or a pair: squared error, and the correlations."""

    def head(self) -> Mapping[str, Any]:
        return {"num_labels": 1, "problem_type": "regression"}

    def target(self, labels: Tensor) -> Tensor:
        """What the model's one output should be for these labels, float32."""
        return labels

    def check_metric(self, metric: str) -> None:
        values = torch.unique(self.labels(self.data.val))
        if metric in ("spearman", "pearson") and len(values) < 2:
            raise DataError(
                f"all {len(self.data.val)} validation labels are {float(values[0]):g}, for which val_{metric} is "
                "undefined; add rows with other labels, or choose another objective"
            )

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        outputs = self.outputs(model, batch).logits.float().squeeze(1)
        return nn.functional.mse_loss(outputs, self.target(batch["labels"]))

    def scores(self, logits: Tensor, part: TextSplit) -> dict[str, float]:
        return value_scores(logits.squeeze(1), self.labels(part), target=self.target(self.labels(part)))


def own_files(config: OwnTextConfig, *, data_dir: Path | None) -> SentenceFiles:
    """The files that the configuration names.

    Raises:
        DataError: one does not exist, or is outside the data folder.
    """
    root = open_data_folder(config.name, data_dir=data_dir, inner=None)
    named = {"train": config.train_file, "test": config.test_file}
    if config.val_file is not None:
        named["val"] = config.val_file
    inner = "" if config.data_dir is None else f"{config.data_dir}/"
    options = config.model_dump(include={"name", "text_column", "pair_column", "label_column", "quotes"})
    return SentenceFiles(
        paths={split: resolve_inside(root, f"{inner}{file}") for split, file in named.items()},
        read=partial(_read, config=config),
        options=options,
        classes=() if isinstance(config, TextRegressionConfig) else None,
    )


def _read(path: Path, *, config: OwnTextConfig) -> Sentences:
    pair, label = config.pair_column, config.label_column
    wanted = [name for name in (config.text_column, pair, label) if name is not None]
    columns = read_columns(path, wanted, quotes=config.quotes)
    read_labels = read_numbers if isinstance(config, TextRegressionConfig) else read_class_names
    return Sentences(
        first=read_texts(columns, config.text_column),
        second=None if pair is None else read_texts(columns, pair),
        labels=read_labels(columns, label),
        lines=columns.lines,
    )


class TextClassificationTask(ClassificationTask[TextClassificationConfig]):
    """Any number of classes; F1 is the mean over classes."""

    metrics: ClassVar[tuple[str, ...]] = ("macro_f1", "mcc")

    @classmethod
    def cache_key(cls, config: TextClassificationConfig) -> tuple[object, ...]:
        return (super().cache_key(config), *_fields(config))

    @classmethod
    def files(cls, config: TextClassificationConfig, *, data_dir: Path | None) -> SentenceFiles:
        return own_files(config, data_dir=data_dir)


class TextRegressionTask(RegressionTask[TextRegressionConfig]):
    """The model learns the labels minus their training mean, divided by their training standard deviation.

    So the loss is a share of their variance, in any unit: always predicting the mean has a loss of 1.
    """

    def __init__(self, config: TextRegressionConfig, data: SentenceData, *, device: torch.device) -> None:
        super().__init__(config, data, device=device)
        labels = self.labels(data.train).double()
        self._mean, self._std = float(labels.mean()), float(labels.std(correction=0))

    @classmethod
    def cache_key(cls, config: TextRegressionConfig) -> tuple[object, ...]:
        return (super().cache_key(config), *_fields(config))

    @classmethod
    def files(cls, config: TextRegressionConfig, *, data_dir: Path | None) -> SentenceFiles:
        return own_files(config, data_dir=data_dir)

    def target(self, labels: Tensor) -> Tensor:
        return (labels - self._mean) / self._std

    def check_fit(self) -> None:
        super().check_fit()
        if self._std == 0.0:
            raise DataError(
                f"all training labels in {self.config.train_file} are {self._mean:g}; a regression needs two values"
            )


def _fields(config: OwnTextConfig) -> tuple[object, ...]:
    return (
        config.train_file,
        config.test_file,
        config.val_file,
        config.text_column,
        config.pair_column,
        config.label_column,
        config.quotes,
    )
