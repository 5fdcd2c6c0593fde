"""The configuration of language modelling. Imports no torch."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from tasks.config import (
    BatchSize,
    Count,
    Epochs,
    GradClip,
    NamedSchedule,
    Number,
    RelativePath,
    Schedule,
    TaskConfig,
    WeightDecayOn,
)


class GptConfig(TaskConfig):
    """Language modelling: a GPT trained from scratch on your text files, as bytes or by a BPE; loss in nats per token.

    An epoch is `tokens_per_epoch` tokens, so `epochs` × `tokens_per_epoch` is the budget.
    """

    models: ClassVar[tuple[str, ...]] = ("nano", "micro", "mini", "gpt2")

    name: Literal["gpt"] = "gpt"
    model: str = Field("nano", description="nano, micro and mini: 3 to 6 layers of 48 to 192; gpt2: 12 layers of 768")
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
