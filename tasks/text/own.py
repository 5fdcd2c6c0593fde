"""Anyone's own texts: classification and regression from CSV, TSV or JSONL files with named columns."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from tasks.config import resolve_inside
from tasks.data.find import open_data_folder
from tasks.errors import DataError
from tasks.text.columns import read_class_names, read_columns, read_numbers, read_texts
from tasks.text.config import OwnTextConfig, TextClassificationConfig, TextRegressionConfig
from tasks.text.sentences import ClassificationTask, RegressionTask, SentenceData, SentenceFiles, Sentences


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
    quotes = config.quotes
    if quotes == "auto":
        quotes = "none" if path.suffix.lower() == ".tsv" else "csv"
    columns = read_columns(path, wanted, quotes=quotes)
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
    """The model learns the labels less their training mean, over their training standard deviation.

    So the loss is a share of their variance: 1 is what the mean alone reaches, whatever the labels' unit.
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
