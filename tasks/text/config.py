"""The configurations of all tasks on text, language modelling included, and on tables: models, lengths, budgets.

No torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field, model_validator

from tasks.config import (
    BaseWidth,
    BatchSize,
    Count,
    Epochs,
    GradClip,
    NamedSchedule,
    Number,
    Parametrization,
    Part,
    RelativePath,
    Schedule,
    Shape,
    TaskConfig,
    ValFraction,
    WeightDecayOn,
    Width,
    shape_of,
)

TEXT_MODELS = ("tiny", "minilm", "bert-base-uncased", "bert-large-uncased")
CHECKPOINT_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}(/[A-Za-z0-9][A-Za-z0-9._-]{0,95}){0,5}"
"""A hub name (bert-base-uncased, org/name) or a folder inside the data folder."""
TRANSFORMERS = (
    "transformers.modeling_utils",
    "transformers.models.auto.modeling_auto",
    "transformers.models.auto.tokenization_auto",
    "transformers.tokenization_utils_tokenizers",
)
"""What takes four seconds of processor to import where a checkpoint is loaded; the model's own module takes little."""


def _as_list(value: object) -> object:
    """A layer's name alone is a list of it."""
    return [value] if isinstance(value, str) and value not in ("attention", "linear") else value


LayerNames = Annotated[
    tuple[Annotated[str, Field(min_length=1, max_length=200)], ...], Field(min_length=1, max_length=1000)
]


class Lora(Part):
    """Low-rank adapters: the checkpoint is frozen, and only small matrices beside its layers and the head are trained.

    Source: Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", ICLR 2022; by the package peft.
    """

    rank: Count = Field(8, ge=1, le=4096, description="of the product of two matrices that is added to a layer's")
    alpha: Number = Field(16.0, gt=0.0, description="the product is multiplied by alpha / rank")
    dropout: Number = Field(0.0, ge=0.0, lt=1.0, description="of the adapters' inputs")
    layers: Annotated[Literal["attention", "linear"] | LayerNames, BeforeValidator(_as_list)] = Field(
        "attention",
        description="attention: the layers of query and value; linear: every linear layer except the head; or ends of "
        "their names, such as [query, key]",
    )


class TextConfig(TaskConfig):
    """What every task on text has besides the common fields.

    The defaults are the paper's for BERT: linear decay without warm-up and the gradient clipped at 1, as its authors'
    configurations have them; weight decay, where a trial has any, is kept off biases and norms, as is usual there.

    Source: Chen et al., ICML 2023, appendix, Natural Language Understanding.
    """

    models: ClassVar[tuple[str, ...]] = TEXT_MODELS
    open_models: ClassVar[str | None] = CHECKPOINT_NAME

    model: str = Field(
        "bert-base-uncased",
        description="a transformers checkpoint: its hub name, or its folder inside the data folder; "
        "minilm: a package's; tiny: random weights, for trying",
    )
    epochs: Epochs = 3
    batch_size: BatchSize = 32
    schedule: NamedSchedule = Schedule(name="linear")
    grad_clip: GradClip = 1.0
    weight_decay_on: WeightDecayOn = "matrices"
    max_length: Count = Field(128, ge=8, le=8192, description="tokens, special ones included; longer texts are cut")
    val_fraction: ValFraction = 0.1
    lora: Lora | None = Field(None, description="train adapters and the head alone; {} is rank 8 on query and value")

    def libraries(self) -> tuple[str, ...]:
        return (*super().libraries(), *TRANSFORMERS)

    def space(self, own: str, *, recipe: Iterable[str] = ()) -> str:
        """Adapters take larger rates, 2e-4 to 5e-4 with AdamW in Hu et al., appendix D; whole models 1e-5 to 2e-4."""
        adapts = self.lora is not None or any(name.partition(".")[0] == "lora" for name in recipe)
        return "default" if adapts else own

    @model_validator(mode="after")
    def _adapters_are_of_trained_weights(self) -> TextConfig:
        if self.lora is not None and self.model == "tiny":
            raise ValueError(
                "lora freezes a checkpoint's weights, and those of 'tiny' are random; choose minilm or another "
                "checkpoint, or leave lora out"
            )
        return self


class GlueConfig(TextConfig):
    """GLUE's tasks. Test labels are not public, so its development set is the test set, and validation is held out.

    Source: Wang et al., "GLUE", ICLR 2019.
    """


class ColaConfig(GlueConfig):
    """CoLA: 8,551 English sentences, acceptable or not; Matthews correlation."""

    name: Literal["cola"] = "cola"


class Sst2Config(GlueConfig):
    """SST-2: 67,349 phrases of film reviews, positive or not; accuracy."""

    name: Literal["sst2"] = "sst2"
    val_fraction: ValFraction = 0.03


class MrpcConfig(GlueConfig):
    """MRPC: 3,668 pairs of sentences, paraphrases or not; F1."""

    name: Literal["mrpc"] = "mrpc"
    epochs: Epochs = 5


Quoting = Annotated[
    Literal["auto", "csv", "none"],
    Field(description="csv: fields may be in double quotes; none: quotes are text; auto: none for .tsv files only"),
]
NoSmoothing = Annotated[float, Field(strict=True, ge=0.0, le=0.0, description="0: a regression has no classes")]


class StsbConfig(GlueConfig):
    """STS-B: 5,749 pairs of sentences and how similar they are; Spearman correlation."""

    name: Literal["stsb"] = "stsb"
    label_smoothing: NoSmoothing = 0.0


class QqpConfig(GlueConfig):
    """QQP: 363,846 pairs of questions, duplicates or not; F1."""

    name: Literal["qqp"] = "qqp"
    val_fraction: ValFraction = 0.02


class MnliConfig(GlueConfig):
    """MNLI: 392,702 pairs: entailment, neutral or contradiction; matched and mismatched accuracy."""

    name: Literal["mnli"] = "mnli"
    val_fraction: ValFraction = 0.02


class QnliConfig(GlueConfig):
    """QNLI: 104,743 pairs of a question and a sentence, which answers it or not; accuracy."""

    name: Literal["qnli"] = "qnli"
    val_fraction: ValFraction = 0.03


class RteConfig(GlueConfig):
    """RTE: 2,490 pairs of texts, the first entailing the second or not; accuracy."""

    name: Literal["rte"] = "rte"


class OwnTextConfig(TextConfig):
    """Anyone's texts in CSV, TSV or JSONL files with named columns."""

    same_for_all: ClassVar[frozenset[str]] = TaskConfig.same_for_all | {
        "text_column",
        "pair_column",
        "label_column",
        "quotes",
    }

    data_dir: RelativePath | None = Field(None, description="the files' folder, inside the data folder; null: itself")
    train_file: RelativePath = Field(
        "train.csv", description="in data_dir; .csv, .tsv or .jsonl; the first row of .csv and .tsv names the columns"
    )
    test_file: RelativePath = Field("test.csv", description="the same columns; only reported on")
    val_file: RelativePath | None = Field(
        None, description="selects among trials; null: val_fraction of the training set"
    )
    text_column: str = Field("text", min_length=1, max_length=200)
    pair_column: str | None = Field(None, min_length=1, max_length=200, description="the second text of a pair")
    label_column: str = Field("label", min_length=1, max_length=200)
    quotes: Quoting = "auto"

    @model_validator(mode="after")
    def _columns_differ(self) -> OwnTextConfig:
        columns = [self.text_column, self.pair_column, self.label_column]
        if len(set(columns)) != len(columns):
            raise ValueError(f"text_column, pair_column and label_column {columns} must name different columns")
        return self


class TextClassificationConfig(OwnTextConfig):
    """Own texts, classes: your texts, or pairs of them, with classes, from CSV, TSV or JSONL; F1 is macro-averaged."""

    name: Literal["text_classification"] = "text_classification"


class TextRegressionConfig(OwnTextConfig):
    """Own texts, numbers: your texts, or pairs of them, with a number each, from CSV, TSV or JSONL."""

    name: Literal["text_regression"] = "text_regression"
    label_smoothing: NoSmoothing = 0.0


class Conll2003Config(TextConfig):
    """CoNLL-2003 named entities: 14,041 / 3,250 / 3,453 sentences from the news; F1 of whole entities. The shared
    task's files, or your own of that layout.

    Source: Chen et al., ICML 2023, appendix, Natural Language Understanding.
    """

    name: Literal["conll2003"] = "conll2003"
    batch_size: BatchSize = 8
    max_length: Count = Field(
        256, ge=8, le=8192, description="tokens, special ones included; words beyond are taken as no entity"
    )
    val_fraction: Number = Field(
        0.1, gt=0.0, lt=1.0, description="of the training sentences, where there is no validation file"
    )


MAX_QUESTION = 64  # tokens of a question; the rest is cut off
SPECIAL = 8  # special tokens around question and passage, at most


class SquadConfig(TextConfig):
    """What both versions have in common: passages longer than `max_length` are read in windows that overlap.

    The paper's batch is 12 on each of two cards; `accumulation: 2` makes the same step on one.

    Source: Chen et al., ICML 2023, appendix, Natural Language Understanding.
    """

    epochs: Epochs = 2
    batch_size: BatchSize = 12
    max_length: Count = Field(
        384, ge=96, le=8192, description="tokens of question and window together, special ones included"
    )
    doc_stride: Count = Field(128, ge=0, description="tokens that neighbouring windows of a passage share")
    max_answer_tokens: Count = Field(30, ge=1, le=1000, description="longer spans are not considered")
    on_bad_answer: Literal["refuse", "skip"] = Field("refuse", description="an answer that is not in its passage")

    @model_validator(mode="after")
    def _windows_advance(self) -> SquadConfig:
        room = self.max_length - MAX_QUESTION - SPECIAL
        if self.doc_stride >= room:
            raise ValueError(
                f"doc_stride {self.doc_stride} must be less than max_length − {MAX_QUESTION + SPECIAL} = {room}: "
                "next to a long question a window must hold more than it shares with the one before"
            )
        return self


class SquadV1Config(SquadConfig):
    """SQuAD 1.1: 87,599 questions answered by a span of a passage; exact match and F1. Its official files, or fetched
    from the hub; its development set (10,570) is the test set.
    """

    name: Literal["squad_v1"] = "squad_v1"


class SquadV2Config(SquadConfig):
    """SQuAD 2.0: 130,319 questions, a third of them without an answer; exact match and F1. Its official files, or
    fetched from the hub; its development set (11,873) is the test set.
    """

    name: Literal["squad_v2"] = "squad_v2"
    no_answer_threshold: Number | Literal["tuned"] = Field(
        0.0,
        description="a question is left unanswered where 'none' scores higher than the best span by more than this; "
        "tuned: the margin that gives validation the best F1",
    )


GPT_SIZES: Mapping[str, tuple[int, int, int]] = {
    "nano": (3, 3, 48),
    "micro": (4, 4, 128),
    "mini": (6, 6, 192),
    "gpt2": (12, 12, 768),
}
"""Layers, heads and width by name; gpt2 has 124 million parameters with 50,257 tokens and a context of 1,024."""


class GptConfig(TaskConfig):
    """Language modelling: a GPT trained from scratch on your text files, as bytes or by a BPE; loss in nats per token.

    An epoch is `tokens_per_epoch` tokens, so `epochs` × `tokens_per_epoch` is the budget.
    """

    models: ClassVar[tuple[str, ...]] = tuple(GPT_SIZES)
    same_for_all: ClassVar[frozenset[str]] = TaskConfig.same_for_all | {
        "context",
        "tokens_per_epoch",
        "tokenizer",
        "vocab_size",
    }

    name: Literal["gpt"] = "gpt"
    model: str = Field("nano", description="nano, micro and mini: 3 to 6 layers of 48 to 192; gpt2: 12 layers of 768")
    width: Width = None
    parametrization: Parametrization = "standard"
    base_width: BaseWidth = None
    epochs: Epochs = 10
    batch_size: BatchSize = 16
    schedule: NamedSchedule = Schedule(name="cosine", warmup=0.05, final=0.1)
    grad_clip: GradClip = 1.0
    weight_decay_on: WeightDecayOn = "matrices"
    context: Count = Field(128, ge=8, le=8192, description="tokens of a sequence; sequences are full, without padding")
    tokens_per_epoch: Count | None = Field(
        None, ge=1, le=10**12, description="training tokens of an epoch; null: those of the training text, once"
    )
    dropout: Number = Field(0.0, ge=0.0, lt=1.0)
    tokenizer: Literal["bytes", "bpe"] = Field("bytes", description="bpe: byte-level, trained on the training text")
    vocab_size: Count = Field(4096, ge=257, le=65_536, description="tokens of the bpe; bytes have 256")
    train_file: RelativePath = Field("train.txt", description="in data_dir; UTF-8 text, or any bytes")
    val_file: RelativePath | None = Field(None, description="null: a part of the training text, before the test part")
    test_file: RelativePath | None = Field(None, description="null: the end of the training text")
    val_fraction: Number = Field(0.1, gt=0.0, lt=0.5, description="of the training text, where there is no val_file")
    test_fraction: Number = Field(0.1, gt=0.0, lt=0.5, description="of the training text, where there is no test_file")

    @property
    def shape(self) -> Shape:
        """Width, heads and parametrisation of the model."""
        _, *own = GPT_SIZES[self.model]
        return shape_of(
            (own[0], own[1]), width=self.width, parametrization=self.parametrization, base_width=self.base_width
        )

    @model_validator(mode="after")
    def _widths_fit(self) -> GptConfig:
        assert self.shape
        return self


ColumnNames = Annotated[tuple[Annotated[str, Field(max_length=200)], ...], Field(max_length=10_000)]


class TableConfig(TaskConfig):
    """Own tables: a class or a number from your columns of numbers and categories, CSV, TSV or JSONL, by an MLP.

    Source of the network: Gorishniy et al., "Revisiting Deep Learning Models for Tabular Data", NeurIPS 2021.
    """

    models: ClassVar[tuple[str, ...]] = ("mlp", "linear")
    same_for_all: ClassVar[frozenset[str]] = TaskConfig.same_for_all | {"label_column", "predict", "quotes"}

    name: Literal["table"] = "table"
    model: str = Field("mlp", description="linear: without hidden layers")
    epochs: Epochs = 50
    batch_size: BatchSize = 32
    schedule: NamedSchedule = Schedule(name="cosine")
    train_file: RelativePath = Field(
        "train.csv", description="in data_dir; .csv, .tsv or .jsonl; the first row of .csv and .tsv names the columns"
    )
    val_file: RelativePath | None = Field(None, description="null: val_fraction of the training rows")
    test_file: RelativePath | None = Field(None, description="null: test_fraction of the rows, always the same ones")
    val_fraction: ValFraction = 0.2
    test_fraction: Number = Field(0.2, gt=0.0, lt=1.0, description="of all rows, where there is no test_file")
    label_column: str = Field("label", min_length=1, max_length=200)
    predict: Literal["class", "number"] = Field("class", description="what the label is")
    categorical_columns: ColumnNames = Field((), description="categories that look like numbers")
    exclude_columns: ColumnNames = Field((), description="that are not read, such as a row's number or name")
    quotes: Quoting = "auto"
    hidden: tuple[Annotated[int, Field(strict=True, ge=1, le=65_536)], ...] = Field(
        (128, 128), min_length=1, max_length=32, description="widths of the mlp's hidden layers"
    )
    dropout: Number = Field(0.1, ge=0.0, lt=1.0, description="after each hidden layer")

    @model_validator(mode="after")
    def _fields_fit(self) -> TableConfig:
        if self.label_column in (*self.categorical_columns, *self.exclude_columns):
            raise ValueError(f"label_column {self.label_column!r} is also among the categorical or excluded columns")
        if both := set(self.categorical_columns) & set(self.exclude_columns):
            raise ValueError(f"column {min(both)!r} is categorical and excluded; name it in one of the two")
        if self.predict == "number" and self.label_smoothing:
            raise ValueError(
                f"label_smoothing {self.label_smoothing} is for classes, but predict is 'number'; leave it out"
            )
        return self
