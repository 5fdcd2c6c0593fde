"""Texts to tokens, once: the tables are kept on disk by the content of texts and tokenizer (`tasks.text.table`)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tasks.engine.node_cache import built_once
from tasks.errors import DataError
from tasks.text.table import Array, TokenTable, load_table, save_table

AT_ONCE = 4096  # texts given to the tokenizer, which runs them in parallel
FORMAT = 2  # of the kept tables; raise it when tokenising or their layout changes


@dataclass(frozen=True, kw_only=True)
class Tokenized:
    """Tables by name ("train", "test", …) and what else was found out while reading (class names, counts)."""

    tables: Mapping[str, TokenTable]
    facts: Mapping[str, Any]


def kept(parts: Mapping[str, Any], build: Callable[[], Tokenized]) -> Tokenized:
    """The tables of these parts, from disk or built and kept; one process a node builds, the others wait.

    Args:
        parts: everything the result depends on, JSON values: digests of files and tokenizer, lengths, options.
        build: reads and tokenises; `facts` must be JSON values.
    """
    text = json.dumps({"format": FORMAT, **parts}, sort_keys=True)
    key = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
    folder = built_once("tokens", key, lambda folder: _save(folder, build()))
    facts = json.loads((folder / "facts.json").read_text())
    return Tokenized(tables={name: load_table(folder, name) for name in facts["tables"]}, facts=facts["facts"])


def _save(folder: Path, tokenized: Tokenized) -> None:
    for name, table in tokenized.tables.items():
        save_table(folder, name, table)
    facts = {"tables": sorted(tokenized.tables), "facts": dict(tokenized.facts)}
    (folder / "facts.json").write_text(json.dumps(facts))


def file_digest(*paths: Path) -> str:
    """A digest of some files' names and content.

    Raises:
        DataError: one cannot be read.
    """
    digest = hashlib.blake2b(digest_size=16)
    for path in paths:
        digest.update(path.name.encode() + b"\0")
        try:
            with path.open("rb") as file:
                while block := file.read(1 << 20):
                    digest.update(block)
        except OSError as error:
            raise DataError(f"{path} cannot be read: {error.strerror}; it must be a file that may be read") from error
    return digest.hexdigest()


def encode(
    tokenizer: Any,
    first: Sequence[str],
    second: Sequence[str] | None = None,
    *,
    max_length: int,
    row_columns: Mapping[str, Array] | None = None,
) -> tuple[TokenTable, int]:
    """Sentences, or pairs of them, as the model takes them: special tokens added, cut at max_length.

    Of a pair that is too long the longer sentence loses its end first.

    Returns:
        The table with the columns input_ids (int32) and, for models that take them, token_type_ids (int8); and how
        many rows were cut.
    """
    names = [name for name in tokenizer.model_input_names if name != "attention_mask"]
    lengths: list[int] = []
    columns: dict[str, list[Array]] = {name: [] for name in names}
    n_cut = 0
    for begin in range(0, len(first), AT_ONCE):
        part = slice(begin, begin + AT_ONCE)
        encoded = tokenizer(
            list(first[part]),
            None if second is None else list(second[part]),
            truncation="longest_first",
            max_length=max_length,
            return_overflowing_tokens=True,
            return_attention_mask=False,
            verbose=False,
        )
        # An overflowing row is followed by its further pieces; the first piece is the row.
        owners = np.asarray(encoded["overflow_to_sample_mapping"])
        firsts = np.flatnonzero(np.diff(owners, prepend=-1))
        n_cut += len(np.unique(owners[np.flatnonzero(np.diff(owners, prepend=-1) == 0)]))
        lengths += [len(encoded["input_ids"][row]) for row in firsts]
        for name in names:
            flat = [token for row in firsts for token in encoded[name][row]]
            columns[name].append(np.array(flat, dtype=_dtype(name)))
    table = TokenTable(
        starts=np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int64),
        token_columns={name: np.concatenate([np.empty(0, _dtype(name)), *parts]) for name, parts in columns.items()},
        row_columns=dict(row_columns or {}),
    )
    return table, n_cut


def _dtype(name: str) -> type[np.int32] | type[np.int8]:
    return np.int8 if name == "token_type_ids" else np.int32
