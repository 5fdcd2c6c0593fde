"""The configurations of question answering. Imports no torch."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from tasks.config import BatchSize, Count, Epochs, Number
from tasks.text.config import TextConfig

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
