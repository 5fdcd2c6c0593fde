"""Sentences of words to tokens, each word's tag on its first token; the words' own tags are kept beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks.entities.conll import OUTSIDE, Sentence
from tasks.errors import DataError
from tasks.text.table import TokenTable
from tasks.text.tokens import AT_ONCE

IGNORED = -100
"""The tag of tokens that no loss counts: special ones, and a word's further ones."""


def tag_names(sentences: Sequence[Sentence]) -> tuple[str, ...]:
    """O, then B-… and I-… of each type in alphabetical order.

    Raises:
        DataError: there is no entity.
    """
    types = sorted({tag[2:] for sentence in sentences for tag in sentence.tags if tag != OUTSIDE})
    if not types:
        raise DataError("the training file holds no entity: every tag is O; the last column must hold entity tags")
    return (OUTSIDE, *(f"{prefix}-{kind}" for kind in types for prefix in "BI"))


def encode_sentences(
    sentences: Sequence[Sentence], tokenizer: Any, *, tags: tuple[str, ...], max_length: int, path: Path
) -> tuple[TokenTable, TokenTable, int]:
    """A split's tokens and words.

    Args:
        tags: names of all tags.
        path: the file, for complaints.

    Returns:
        Tokens: input_ids and what else the model takes; `tags`, of a word's first token its tag's number, or `IGNORED`;
        `places`, of a word's first token its number among all words of the split, or −1. Words: their `tags`. And how
        many sentences were cut at max_length.

    Raises:
        DataError: a tag that is not among `tags`.
    """
    words = _words(sentences, tags, path=path)
    names = [name for name in tokenizer.model_input_names if name != "attention_mask"]
    columns: dict[str, list[NDArray[np.int32]]] = {name: [] for name in (*names, "tags", "places")}
    lengths: list[int] = []
    n_cut = 0
    for begin in range(0, len(sentences), AT_ONCE):
        texts = [" ".join(sentence.words) for sentence in sentences[begin : begin + AT_ONCE]]
        encoded = tokenizer(
            texts,
            truncation=True,
            max_length=max_length,
            return_offsets_mapping=True,
            return_attention_mask=False,
            verbose=False,
        )
        for index, offsets in enumerate(encoded["offset_mapping"]):
            row = begin + index
            firsts, found = _first_tokens(sentences[row].words, np.array(offsets, dtype=np.int64).reshape(-1, 2))
            places = np.full(len(offsets), -1, dtype=np.int32)
            places[firsts] = words.starts[row] + found
            columns["places"].append(places)
            columns["tags"].append(np.where(places < 0, IGNORED, words.token_columns["tags"][places]).astype(np.int32))
            lengths.append(len(offsets))
            n_cut += len(found) < len(sentences[row].words)
        for name in names:
            columns[name] += [np.array(tokens, dtype=np.int32) for tokens in encoded[name]]
    tokens = TokenTable(
        starts=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        token_columns={name: np.concatenate(parts) for name, parts in columns.items()},
    )
    return tokens, words, n_cut


def _first_tokens(words: Sequence[str], offsets: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(tokens, words): each word that has a token, and its first one. Offsets are of the words joined by blanks."""
    begins = np.cumsum([0, *(len(word) + 1 for word in words[:-1])])
    tokens = np.flatnonzero(offsets[:, 1] > offsets[:, 0])  # special tokens are of no characters
    # By its last character: some tokenizers count the blank before a word as the token's first.
    owners = np.searchsorted(begins, offsets[tokens, 1] - 1, side="right") - 1
    found, firsts = np.unique(owners, return_index=True)
    return tokens[firsts], found


def _words(sentences: Sequence[Sentence], tags: tuple[str, ...], *, path: Path) -> TokenTable:
    number: Mapping[str, int] = {name: index for index, name in enumerate(tags)}
    for sentence in sentences:
        if strange := [tag for tag in sentence.tags if tag not in number]:
            raise DataError(
                f"{path} has the tag {strange[0]!r} (in {' '.join(sentence.words)[:80]!r}), which the training file "
                "does not; the files must have the same types"
            )
    flat = [number[tag] for sentence in sentences for tag in sentence.tags]
    lengths = [len(sentence.words) for sentence in sentences]
    return TokenTable(
        starts=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        token_columns={"tags": np.array(flat, dtype=np.int32)},
    )
