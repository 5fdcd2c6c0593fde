"""What all text tasks share: a checkpoint, token tables on the device, batches by length, a model with a head.

Subclasses define what they read (`load`), the head, the loss and the scores.
"""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from tasks.data.hold_out import Rows
from tasks.data.pretrained import (
    ModelSource,
    build_model,
    check_length,
    choose_model,
    load_config,
    load_tokenizer,
    tokenizer_digest,
)
from tasks.engine.task import Batch, Split, Task, find_longest_stack
from tasks.errors import ConfigError
from tasks.text.config import TextConfig
from tasks.text.tokens import BUCKET, PaddedRows, Tokenized, TokenTable, file_digest, load_or_build

TextConfigT = TypeVar("TextConfigT", bound=TextConfig)
TextDataT = TypeVar("TextDataT", bound="TextData")

SHORT = 64  # tokens; the longest rows measured
COMPILED_WIDTHS = 8  # torch._dynamo.config.recompile_limit: further shapes are not compiled


@dataclass(frozen=True, kw_only=True)
class TextSplit:
    """Some rows of a table on the device; training and validation may share one."""

    table: PaddedRows
    rows: Rows

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, rows: Rows) -> TextSplit:
        """Some of them."""
        return TextSplit(table=self.table, rows=self.rows[rows])


@dataclass(frozen=True, kw_only=True)
class TextData:
    """A data set as the model's tokens.

    Attributes:
        source: the checkpoint whose tokenizer made them.
        pad_token_id: what input_ids are padded with.
        inputs: names of the token columns that the model takes, attention_mask aside.
        train, val, test: the splits.
        facts: for the run's record: sizes, how many rows were cut at max_length.
    """

    source: ModelSource
    pad_token_id: int
    inputs: tuple[str, ...]
    train: TextSplit
    val: TextSplit
    test: TextSplit
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A data set's tables of tokens and the checkpoint whose tokenizer made them; not on a device yet.

    Attributes:
        digest: of the data set's files.
        pad_token_id, inputs: as in `TextData`.
    """

    source: ModelSource
    digest: str
    pad_token_id: int
    inputs: tuple[str, ...]
    tables: Mapping[str, TokenTable]
    facts: Mapping[str, Any]

    def place(self, name: str, *, device: torch.device, fills: Mapping[str, int] | None = None) -> TextSplit:
        """All rows of a table on a device; `fills` pad the token columns that are not the model's inputs."""
        own = {column: 0 for column in self.inputs} | {"input_ids": self.pad_token_id}
        table = self.tables[name]
        rows = PaddedRows(table, fills={**own, **(fills or {})}, device=device)
        return TextSplit(table=rows, rows=np.arange(len(table)))


def prepare(
    config: TextConfig,
    paths: Sequence[Path],
    *,
    data_dir: Path | None,
    texts: Callable[[], Sequence[str]],
    parts: Mapping[str, Any],
    build: Callable[[Any], Tokenized],
) -> Prepared:
    """Find the checkpoint, and tokenize the data set or map the tables that an earlier run tokenized.

    Args:
        paths: the data set's files.
        texts: gives the training texts, for the vocabulary of `tiny`.
        parts: JSON values that the tables depend on besides files, tokenizer and length.
        build: reads the files and tokenizes them with the tokenizer that it is given.

    Raises:
        DataError: files missing or broken, or the checkpoint cannot be found.
        ConfigError: the checkpoint has no fast tokenizer, or fewer positions than `max_length`.
    """
    digest = file_digest(*paths)
    source = choose_model(config.model, data_dir=data_dir, digest=digest, texts=texts)
    tokenizer = load_tokenizer(source)
    check_length(source, tokenizer=tokenizer, max_length=config.max_length)
    key = {**parts, "data": digest, "tokenizer": tokenizer_digest(source), "max_length": config.max_length}
    tokenized = load_or_build(key, lambda: build(tokenizer))
    return Prepared(
        source=source,
        digest=digest,
        pad_token_id=int(tokenizer.pad_token_id),
        inputs=tuple(name for name in tokenizer.model_input_names if name != "attention_mask"),
        tables=tokenized.tables,
        facts=tokenized.facts,
    )


@contextlib.contextmanager
def attention_for(width: int) -> Iterator[None]:
    """Choose among torch's attention kernels for rows of so many tokens.

    cuDNN's work on blocks of 64 and more tokens and cost short rows more than the memory-efficient one does: on an
    H200, BERT-base, 32 rows of 8 to 64 tokens, a step's forward and backward pass takes 0.3 ms more by them, of 2.9 to
    5.4 (docs/benchmarks.md).
    """
    before = torch.backends.cuda.cudnn_sdp_enabled()  # type: ignore[no-untyped-call]
    torch.backends.cuda.enable_cudnn_sdp(before and width > SHORT)
    try:
        yield
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)


def compiled_width(width: int, *, most: int) -> int:
    """The least of `COMPILED_WIDTHS` equally spaced widths, multiples of `BUCKET`, that rows of so many tokens fit.

    Padding to an eighth of 128 tokens costs 3 to 15 % of a cohort's tokens; to powers of two it costs 24 to 50 %.

    Args:
        most: tokens of the longest row.
    """
    last = -(-most // BUCKET)
    step = -(-last // COMPILED_WIDTHS)
    return min(-(-width // (step * BUCKET)) * step, last) * BUCKET


class TextTask(Task[TextConfigT, TextDataT], Generic[TextConfigT, TextDataT]):
    """Fine-tuning of a transformers checkpoint; the model's forward is its own, padding is masked."""

    bf16_weights = "all"
    compile_shapes = "many"
    auto_class: ClassVar[str]
    """The head, by the name of its class in transformers."""

    @classmethod
    def cache_key(cls, config: TextConfigT) -> Hashable:
        return (super().cache_key(config), config.model, config.max_length, config.val_fraction)

    @property
    def n_train(self) -> int:
        return len(self.data.train)

    def head(self) -> Mapping[str, Any]:
        """Fields of the model's configuration that this task sets: num_labels, problem_type, …"""
        return {}

    def build_model(self) -> nn.Module:
        return build_model(
            self.data.source,
            auto_class=self.auto_class,
            lora=self.config.lora,
            pad_token_id=self.data.pad_token_id,
            **self.head(),
        )

    def compile_regions(self, model: nn.Module) -> Sequence[nn.Module]:
        return find_longest_stack(model)

    def train_batches(self, *, seed: int, epoch: int) -> Iterator[Batch]:
        """Batches {"input_ids", "attention_mask", …: (batch, width) int64, labels}; rows beyond whole steps wait."""
        split = self.data.train
        return split.table.train_batches(
            split.rows,
            batch_size=self.config.batch_size,
            accumulation=self.config.accumulation,
            seed=seed,
            epoch=epoch,
        )

    def outputs(self, model: nn.Module, batch: Batch) -> Any:
        """The model's answer to a batch, in transformers' form: `.logits` and so on."""
        inputs = {name: batch[name] for name in self.data.inputs}
        width = batch["attention_mask"].shape[-1]
        # The compiler takes no such switch; a compiled stack has its kernels chosen around it, in
        # `tasks.engine.stacked_model`.
        with contextlib.nullcontext() if torch.compiler.is_compiling() else attention_for(width):
            return model(**inputs, attention_mask=batch["attention_mask"])

    def align(self, batches: Sequence[Batch]) -> Sequence[Batch]:
        """Pad the batches to the width of the widest; where they are compiled, to one of `COMPILED_WIDTHS` widths."""
        width = max(batch["attention_mask"].shape[-1] for batch in batches)
        if self.config.acceleration == "compile":
            width = compiled_width(width, most=self.config.max_length)
        return [self.data.train.table.widen(batch, width) for batch in batches]

    @contextlib.contextmanager
    def in_a_stack(self) -> Iterator[None]:
        """transformers reads masks, to leave them out where nothing is masked; a stack's cannot be read."""
        from transformers import masking_utils

        read = masking_utils.is_tracing
        masking_utils.is_tracing = lambda *_: True
        try:
            yield
        finally:
            masking_utils.is_tracing = read

    @abstractmethod
    def loss(self, model: nn.Module, batch: Batch) -> Tensor: ...

    def logits(self, model: nn.Module, split: TextSplit) -> Tensor:
        """One vector a row, float32 (n, …), in the order of `split.rows`; batches hold hardly any padding."""
        parts, order = [], []
        for rows, batch in split.table.eval_batches(split.rows):
            parts.append(self.outputs(model, batch).logits.float())
            order.append(rows)
        place = np.argsort(np.concatenate(order), kind="stable")
        rank = np.argsort(np.argsort(split.rows, kind="stable"), kind="stable")
        return torch.cat(parts)[torch.from_numpy(place[rank]).to(self.device)]

    def split(self, split: Split) -> TextSplit:
        """The split of that name."""
        part: TextSplit = getattr(self.data, split)
        return part

    def record(self) -> dict[str, Any]:
        sizes = {"n_val": len(self.data.val), "n_test": len(self.data.test)}
        return {**super().record(), **sizes, **self.data.source.record, **self.data.facts}

    def check_fit(self) -> None:
        super().check_fit()
        vocabulary = getattr(load_config(self.data.source), "vocab_size", None)
        for split in (self.data.train, self.data.test):
            largest = split.table.largest("input_ids")
            if vocabulary is not None and largest >= vocabulary:
                raise ConfigError(
                    f"{self.data.source.origin}: its tokenizer gives token {largest}, its model has {vocabulary}; "
                    "the folder's tokenizer and weights are of different models"
                )
