"""The configuration of named entity recognition. Imports no torch."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from tasks.config import BatchSize, Count, Number
from tasks.text.config import TextConfig


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
