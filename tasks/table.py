"""Tables on the engine: columns of numbers and of categories, a multilayer perceptron, a class or a number to predict.

What a column is follows from the training rows: numbers are standardised by them, and categories are embedded. A value
that is missing, or a category that those rows do not have, is the mean or the zero vector; a column of numbers with
missing values also gives the network an input that is 1 where the value is missing.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tasks.config import resolve_inside
from tasks.data.find import open_data_folder
from tasks.data.hold_out import Rows, hold_out
from tasks.data.trees import normalize_name
from tasks.engine.device import place_array
from tasks.engine.seeds import epoch_order
from tasks.engine.task import Batch, Split, Task
from tasks.errors import DataError
from tasks.metrics import class_scores, value_scores
from tasks.text.columns import (
    Columns,
    as_number,
    listed,
    number_classes,
    read_class_names,
    read_columns,
    read_numbers,
    shortened,
)
from tasks.text.config import TableConfig
from tasks.text.tokens import file_digest

TEST_SEED = 20240229  # the test rows never move, whatever split_seed says
EVAL_BATCH = 8192
MISSING = ("", "?", "na", "n/a", "nan", "null", "none")
"""Spellings of a missing value, in any case."""

DATA_FIELDS = {
    *("data_dir", "train_file", "val_file", "test_file", "val_fraction", "test_fraction", "split_seed"),
    *("label_column", "predict", "categorical_columns", "exclude_columns", "quotes"),
}
FARTHEST = 1e12
"""Standard deviations from the mean; a network's loss on what is farther away overflows."""
MANY = 20  # different texts: with more, a column in which most rows have one of their own is no category


class TableNet(nn.Module):
    """Embeddings of the categories beside the numbers, then linear layers, each with a ReLU and dropout, and an output.

    Args:
        n_numbers: columns of numbers.
        n_categories: of each categorical column, the unknown one included, whose vector is zero.
        hidden: widths of the hidden layers; none: a linear model.

    An embedding's size is fastai's rule for tables, 1.6·n^0.56 and at most 600, for n categories.
    """

    def __init__(
        self, *, n_numbers: int, n_categories: Sequence[int], hidden: Sequence[int], dropout: float, n_outputs: int
    ) -> None:
        super().__init__()
        sizes = [min(600, round(1.6 * n**0.56)) for n in n_categories]
        self.embeddings = nn.ModuleList(
            nn.Embedding(n, size, padding_idx=0) for n, size in zip(n_categories, sizes, strict=True)
        )
        widths = [n_numbers + sum(sizes), *hidden]
        self.layers = nn.Sequential()
        for n_in, n_out in pairwise(widths):
            self.layers.extend([nn.Linear(n_in, n_out), nn.ReLU(), nn.Dropout(dropout)])
        self.head = nn.Linear(widths[-1], n_outputs)

    def forward(self, numbers: Tensor, categories: Tensor) -> Tensor:
        """(n, numbers) float32 and (n, categorical columns) int64 to (n, outputs)."""
        embedded = [embedding(categories[:, index]) for index, embedding in enumerate(self.embeddings)]
        outputs: Tensor = self.head(self.layers(torch.cat([numbers, *embedded], dim=1)))
        return outputs


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column as its training rows have it.

    Attributes:
        categories: the texts in order, numbered from 1; None: a column of numbers.
        mean, std: of the numbers.
        n_missing: training rows without a value.
    """

    name: str
    categories: tuple[str, ...] | None = None
    mean: float = 0.0
    std: float = 1.0
    n_missing: int = 0

    def __str__(self) -> str:
        facts = [] if self.categories is None else [f"{len(self.categories)} categories"]
        facts += [f"{self.n_missing} missing"] if self.n_missing else []
        return shortened(self.name) + (f" ({', '.join(facts)})" if facts else "")


@dataclass(frozen=True, kw_only=True)
class TableSplit:
    """Rows: numbers (n, …) float32, categories (n, …) int64, and labels (n,): int64 of classes, float32 of numbers.

    Both kinds of numbers are standardised by the training rows.
    """

    numbers: Tensor
    categories: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True, kw_only=True)
class TableData:
    """The splits on the device, the columns, and the names of the classes (none where a number is predicted)."""

    train: TableSplit
    val: TableSplit
    test: TableSplit
    columns: tuple[Column, ...]
    classes: tuple[str, ...]
    digest: str


class TableTask(Task[TableConfig, TableData]):
    """Classes: cross-entropy. Numbers: the squared error of the labels standardised by the training rows.

    So the loss of numbers is a share of their variance, in any unit: always predicting the mean has a loss of 1.
    """

    @classmethod
    def cache_key(cls, config: TableConfig) -> Hashable:
        return config.model_dump_json(include=DATA_FIELDS)

    @classmethod
    def load(cls, config: TableConfig, *, data_dir: Path | None, device: torch.device) -> TableData:
        root = open_data_folder(config.name, data_dir=data_dir, inner=config.data_dir)
        named = {"train": config.train_file, "val": config.val_file, "test": config.test_file}
        paths = {split: resolve_inside(root, file) for split, file in named.items() if file is not None}
        files = {"train": _read(paths["train"], config, wanted=None)}
        files |= {
            split: _read(path, config, wanted=list(files["train"].values))
            for split, path in paths.items()
            if split != "train"
        }
        classes, labels = _labels(files, config)
        rows = _split_rows(labels, config, classes=classes)
        sources = {split: files.get(split, files["train"]) for split in rows}
        if not classes:
            labels = _standardised(labels, rows["train"], path=paths["train"])
        columns = tuple(
            _describe(files["train"], name, rows["train"], config)
            for name in files["train"].values
            if name != config.label_column
        )
        if not columns:
            raise DataError(f"{paths['train']} has no column besides {config.label_column!r} to predict it from")
        splits = {}
        for split, chosen in rows.items():
            arrays = _inputs(sources[split], columns, chosen)
            own = labels.get(split, labels["train"])[chosen]
            numbers, categories, placed = (place_array(array, device=device) for array in (*arrays, own))
            splits[split] = TableSplit(numbers=numbers, categories=categories, labels=placed)
        return TableData(**splits, columns=columns, classes=classes, digest=file_digest(*paths.values()))

    @property
    def n_train(self) -> int:
        return len(self.data.train)

    def build_model(self) -> nn.Module:
        return TableNet(
            n_numbers=self.data.train.numbers.shape[1],
            n_categories=[len(c.categories) + 1 for c in self.data.columns if c.categories is not None],
            hidden=self.config.hidden if self.config.model == "mlp" else (),
            dropout=self.config.dropout,
            n_outputs=len(self.data.classes) or 1,
        )

    def check_metric(self, metric: str) -> None:
        of_classes, of_numbers = ("accuracy", "f1", "mcc"), ("spearman", "pearson")
        if metric in (of_numbers if self.data.classes else of_classes):
            others = of_classes if self.data.classes else of_numbers
            raise DataError(
                f"val_{metric} is not of a {self.config.predict} ({self.config.label_column!r} is one, by predict); "
                f"choose val_{', val_'.join(others)} or val_loss"
            )
        values = torch.unique(self.data.val.labels)
        if metric in ("f1", "mcc", *of_numbers) and len(values) < 2:
            shown = repr(self.data.classes[int(values[0])]) if self.data.classes else "the same"
            raise DataError(
                f"{self.config.label_column} of all {len(self.data.val)} validation rows is {shown}, for which "
                f"val_{metric} is undefined; add other rows, or choose another objective"
            )

    def train_batches(self, *, seed: int, epoch: int) -> Iterator[Batch]:
        """Batches {"numbers", "categories", "labels"} in an order of the seed and the epoch; incomplete ones wait."""
        size, split = self.config.batch_size, self.data.train
        order = torch.from_numpy(epoch_order(self.n_train, seed=seed, epoch=epoch)).to(split.labels.device)
        for begin in range(0, self.batches_per_epoch * size, size):
            rows = order[begin : begin + size]
            parts = {"numbers": split.numbers, "categories": split.categories, "labels": split.labels}
            yield {name: tensor[rows].to(self.device, non_blocking=True) for name, tensor in parts.items()}

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        outputs = model(batch["numbers"], batch["categories"]).float()
        if self.data.classes:
            return nn.functional.cross_entropy(outputs, batch["labels"], label_smoothing=self.config.label_smoothing)
        return nn.functional.mse_loss(outputs.squeeze(1), batch["labels"])

    def evaluate(self, model: nn.Module, split: Split) -> dict[str, float]:
        part: TableSplit = getattr(self.data, split)
        pieces = [
            model(
                part.numbers[begin : begin + EVAL_BATCH].to(self.device),
                part.categories[begin : begin + EVAL_BATCH].to(self.device),
            )
            for begin in range(0, len(part), EVAL_BATCH)
        ]
        outputs, labels = torch.cat(pieces).float(), part.labels.to(self.device)
        if self.data.classes:
            return class_scores(outputs, labels, names=("macro_f1", "mcc"))
        return value_scores(outputs.squeeze(1), labels, target=labels)

    def record(self) -> dict[str, Any]:
        columns = self.data.columns
        return {
            **super().record(),
            "n_val": len(self.data.val),
            "n_test": len(self.data.test),
            "columns_of_numbers": _listed([c for c in columns if c.categories is None]),
            "columns_of_categories": _listed([c for c in columns if c.categories is not None]),
            "data_digest": self.data.digest,
        }


def _read(path: Path, config: TableConfig, *, wanted: Sequence[str] | None) -> Columns:
    """The wanted columns of a file, or all that are not excluded."""
    if wanted is not None:
        return read_columns(path, wanted, quotes=config.quotes)
    columns = read_columns(path, [config.label_column], quotes=config.quotes, rest_without=config.exclude_columns)
    known = {normalize_name(name) for name in columns.values}
    for name in config.categorical_columns:
        if normalize_name(name) not in known:
            raise DataError(f"categorical_columns names {name!r}, but {path} has {listed(list(columns.values))}")
    return columns


def _labels(files: Mapping[str, Columns], config: TableConfig) -> tuple[tuple[str, ...], Mapping[str, NDArray[Any]]]:
    """The classes, none of numbers, and the labels of each file's rows."""
    name = config.label_column
    if config.predict == "number":
        return (), {split: np.array(read_numbers(read, name)) for split, read in files.items()}
    names = {split: read_class_names(read, name) for split, read in files.items()}
    classes, n_rows = tuple(sorted(set(names["train"]))), len(names["train"])
    if len(classes) < 2:
        raise DataError(
            f"{files['train'].path}: {name} is {classes[0]!r} in every row; two classes are needed at least"
        )
    if len(classes) > max(MANY, n_rows / 2):
        raise DataError(
            f"{files['train'].path}: {name} has {len(classes)} different values in {n_rows} rows, too many for "
            "classes; set predict: number for a number, or name another label_column"
        )
    return classes, {
        split: number_classes(found, classes, path=files[split].path, lines=files[split].lines)
        for split, found in names.items()
    }


def _split_rows(
    labels: Mapping[str, NDArray[Any]], config: TableConfig, *, classes: tuple[str, ...]
) -> Mapping[str, Rows]:
    """The rows of each split in its file, or in the training file where it has none; class by class."""
    rows = {split: np.arange(len(found)) for split, found in labels.items()}
    groups = labels["train"] if classes else np.zeros(len(labels["train"]), dtype=np.int64)
    for split, purpose, fraction, seed in (
        ("test", "test", config.test_fraction, TEST_SEED),
        ("val", "validation", config.val_fraction, config.split_seed),
    ):
        if split not in rows:
            kept, held_out = hold_out(
                groups[rows["train"]],
                fraction=fraction,
                seed=seed,
                what="row",
                classes=classes,
                field=f"{split}_fraction",
                purpose=purpose,
                may_lack_classes=[purpose],
            )
            rows |= {"train": rows["train"][kept], split: rows["train"][held_out]}
    return rows


def _standardised(labels: Mapping[str, NDArray[Any]], rows: Rows, *, path: Path) -> dict[str, NDArray[np.float32]]:
    """Numbers to predict, by the mean and the deviation of the training rows; in float32 only then.

    Raises:
        DataError: all training rows have the same.
    """
    mean, std = _scale(labels["train"][rows])
    if not std:
        raise DataError(f"all training labels in {path} are {mean:g}; there is nothing to predict")
    return {split: ((found - mean) / std).astype(np.float32) for split, found in labels.items()}


def _scale(numbers: NDArray[np.float64]) -> tuple[float, float]:
    """Mean and standard deviation, which is 0 of equal numbers, whose mean may be rounded."""
    with np.errstate(over="ignore", invalid="ignore"):  # `read_numbers` refuses numbers that are too large
        std = float(numbers.std()) if numbers.min() < numbers.max() else 0.0
        return float(numbers.mean()), std


def _describe(read: Columns, name: str, rows: Rows, config: TableConfig) -> Column:
    """What a column is, by its training rows.

    Raises:
        DataError: it has no value, mixes numbers and texts, or has another text in most rows.
    """
    found = [(read.lines[row], read.values[name][row]) for row in rows]
    present = [(line, value) for line, value in found if not _is_missing(value)]
    n_missing = len(found) - len(present)
    if not present:
        raise DataError(f"{read.path}: no training row has a value of {name!r}; name it in exclude_columns")
    numbers = np.array([as_number(value) for _, value in present])
    n_numbers = int((~np.isnan(numbers)).sum())
    chosen = normalize_name(name) in map(normalize_name, config.categorical_columns)
    if n_numbers == len(present) and not chosen:
        mean, std = _scale(numbers)
        return Column(name=name, mean=mean, std=std or 1.0, n_missing=n_missing)
    if n_numbers >= len(present) / 2 and not chosen:
        line, value = present[int(np.isnan(numbers).argmax())]
        raise DataError(
            f"{read.path}, line {line}: {name} is {value!r}, where {n_numbers} of its {len(present)} values are "
            "numbers; correct it, or name the column in categorical_columns or exclude_columns"
        )
    texts = tuple(sorted({_spelled(value) for _, value in present}))
    if len(texts) > max(MANY, len(present) / 2) and not chosen:
        raise DataError(
            f"{read.path}: {name} has {len(texts)} different texts in {len(present)} rows, such as {texts[0]!r}; "
            "name it in exclude_columns, or in categorical_columns if they are categories"
        )
    return Column(name=name, categories=texts, n_missing=n_missing)


def _inputs(read: Columns, columns: Sequence[Column], rows: Rows) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """The standardised numbers of some rows, with an input for what is missing, and the categories' places."""
    numbers: list[NDArray[np.float64]] = []
    categories: list[NDArray[np.int64]] = []
    for column in columns:
        values = [read.values[column.name][row] for row in rows]
        missing = np.array([_is_missing(value) for value in values])
        if column.categories is not None:
            place = {text: index for index, text in enumerate(column.categories, start=1)}
            categories.append(
                np.array([0 if _is_missing(value) else place.get(_spelled(value), 0) for value in values])
            )
            continue
        known = [0.0 if absent else value for absent, value in zip(missing, values, strict=True)]
        lines = [read.lines[row] for row in rows]
        found = np.array(read_numbers(Columns(read.path, lines, {column.name: known}), column.name))
        scaled = np.where(missing, 0.0, (found - column.mean) / column.std)
        if (np.abs(scaled) > FARTHEST).any():
            row = int(np.abs(scaled).argmax())
            raise DataError(
                f"{read.path}, line {lines[row]}: {column.name} is {values[row]!r}, more than {FARTHEST:g} standard "
                "deviations from the mean of the training rows; correct it, or name the column in exclude_columns"
            )
        numbers.append(scaled)
        if column.n_missing:
            numbers.append(missing.astype(np.float64))
    empty = np.zeros((len(rows), 0))
    return (
        np.column_stack([empty, *numbers]).astype(np.float32),
        np.column_stack([empty, *categories]).astype(np.int64),
    )


def _is_missing(value: object) -> bool:
    return value is None or (isinstance(value, str | float) and str(value).strip().lower() in MISSING)


def _spelled(value: object) -> str:
    return normalize_name(str(value).strip())


def _listed(columns: Sequence[Column]) -> str:
    shown = ", ".join(map(str, columns[:MANY]))
    return f"{shown} and {len(columns) - MANY} more" if len(columns) > MANY else shown
