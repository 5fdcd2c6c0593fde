"""Classification and regression of sentences, or of pairs of them: data from files to the device, loss and scores."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Generic

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tasks.data.hold_out import Rows, stratified_split
from tasks.data.pretrained import check_length, choose_model, load_tokenizer, tokenizer_digest
from tasks.engine.task import Batch, Split
from tasks.errors import DataError
from tasks.metrics import confusion, f1_of, macro_f1, matthews, pearson, spearman
from tasks.text.config import TextConfig
from tasks.text.task import TextConfigT, TextData, TextSplit, TextTask
from tasks.text.tokens import PaddedRows, Tokenized, TokenTable, encode, file_digest, kept


@dataclass(frozen=True)
class Sentences:
    """The rows of one file.

    Attributes:
        first, second: the texts; second None where there are no pairs.
        labels: class names, or numbers of a regression.
        lines: the line of each row, for complaints.
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
        DataError: files missing or broken, a class that is nowhere in the training set, too few rows.
    """
    digest = file_digest(*files.paths.values())
    source = choose_model(
        config.model, data_dir=data_dir, digest=digest, texts=lambda: _all_texts(files.read(files.paths["train"]))
    )
    tokenizer = load_tokenizer(source)
    check_length(source, tokenizer=tokenizer, max_length=config.max_length)
    parts = {
        "data": digest,
        "splits": sorted(files.paths),
        "options": dict(files.options),
        "classes": files.classes,
        "tokenizer": tokenizer_digest(source),
        "max_length": config.max_length,
    }
    tokenized = kept(parts, lambda: _tokenize(files, tokenizer, max_length=config.max_length))
    fills = {name: 0 for name in tokenized.tables["train"].token_columns} | {"input_ids": int(tokenizer.pad_token_id)}
    placed = {name: PaddedRows(table, fills=fills, device=device) for name, table in tokenized.tables.items()}
    whole = {name: TextSplit(table=table, rows=np.arange(len(table))) for name, table in placed.items()}
    classes = tuple(tokenized.facts["classes"])
    train = whole.pop("train")
    if (val := whole.pop("val", None)) is None:
        labels = tokenized.tables["train"].row_columns["labels"]
        kept_rows, held_out = _split(labels, config=config, classes=classes)
        train, val = TextSplit(table=train.table, rows=kept_rows), TextSplit(table=train.table, rows=held_out)
    return SentenceData(
        source=source,
        pad_token_id=int(tokenizer.pad_token_id),
        inputs=tuple(fills),
        train=train,
        val=val,
        test=whole.pop("test"),
        others=whole,
        classes=classes,
        facts={"data_digest": digest, **{k: v for k, v in tokenized.facts.items() if k.startswith("n_")}},
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
    number = {name: index for index, name in enumerate(classes)}
    for line, label in zip(rows.lines, rows.labels, strict=True):
        if label not in number:
            shown = ", ".join(repr(name) for name in classes[:20]) + (", …" if len(classes) > 20 else "")
            raise DataError(
                f"{path}, line {line}: class {label!r} is not one of the classes {shown}, which the task or the "
                "training set has; mend the row, or add the class to the training set"
            )
    return np.asarray([number[str(label)] for label in rows.labels], dtype=np.int64)


def _split(labels: NDArray[Any], *, config: TextConfig, classes: tuple[str, ...]) -> tuple[Rows, Rows]:
    n_val = round(config.val_fraction * len(labels))
    if not 0 < n_val < len(labels):
        raise DataError(
            f"val_fraction {config.val_fraction} of {len(labels)} training rows leaves no validation or no training "
            "set; add rows or change it"
        )
    strata = labels if classes else np.zeros(len(labels), dtype=np.int64)
    train, val = stratified_split(strata, n_held_out=n_val, seed=config.split_seed)
    counts = np.bincount(strata[train], minlength=len(classes))
    if counts.min() == 0:
        klass = int(counts.argmin())
        raise DataError(
            f"class {classes[klass]!r} has {int((labels == klass).sum())} training row(s), too few to be in training "
            f"at val_fraction {config.val_fraction}; add rows, lower it, or give a val_file"
        )
    return train, val


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
    """Which class a sentence or a pair is of.

    `metrics` names what is reported besides accuracy and the cross-entropy: "f1" is that of class 1 of two, "macro_f1"
    the mean over classes (reported as f1), "mcc" the Matthews correlation.
    """

    metrics: ClassVar[tuple[str, ...]] = ()

    def head(self) -> Mapping[str, Any]:
        return {"num_labels": len(self.data.classes), "problem_type": "single_label_classification"}

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        logits = self.outputs(model, batch).logits.float()
        return nn.functional.cross_entropy(logits, batch["labels"], label_smoothing=self.config.label_smoothing)

    def scores(self, logits: Tensor, part: TextSplit) -> dict[str, float]:
        labels = self.labels(part)
        loss = float(nn.functional.cross_entropy(logits, labels))
        matrix = confusion(logits.argmax(dim=1).cpu().numpy(), labels.cpu().numpy(), n_classes=len(self.data.classes))
        scores = {"accuracy": float(np.trace(matrix) / matrix.sum()), "loss": loss}
        if "f1" in self.metrics:
            scores["f1"] = f1_of(matrix, 1)
        if "macro_f1" in self.metrics:
            scores["f1"] = macro_f1(matrix)
        if "mcc" in self.metrics:
            scores["mcc"] = matthews(matrix)
        return scores


class RegressionTask(SentenceTask[TextConfigT], Generic[TextConfigT]):
    """A number for a sentence or a pair: squared error, and the correlations."""

    def head(self) -> Mapping[str, Any]:
        return {"num_labels": 1, "problem_type": "regression"}

    def target(self, labels: Tensor) -> Tensor:
        """What the model's one output should be for these labels, float32."""
        return labels

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        outputs = self.outputs(model, batch).logits.float().squeeze(1)
        return nn.functional.mse_loss(outputs, self.target(batch["labels"]))

    def scores(self, logits: Tensor, part: TextSplit) -> dict[str, float]:
        labels, predicted = self.labels(part), logits.squeeze(1)
        loss = float(nn.functional.mse_loss(predicted, self.target(labels)))
        a, b = predicted.cpu().numpy(), labels.cpu().numpy()
        return {"spearman": spearman(a, b), "pearson": pearson(a, b), "loss": loss}
