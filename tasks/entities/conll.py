"""CoNLL column files: where they are, and their sentences, with tags converted to IOB2.

A line holds a word and its columns; an empty line ends a sentence. The files of the 2003 shared task are tagged IOB1:
an entity begins with I-, and with B- only if it follows another one of its type. In IOB2 every entity begins with B-.
A file in IOB2 is left as it is.

Source: Tjong Kim Sang & De Meulder, "Introduction to the CoNLL-2003 Shared Task" (2003); Tjong Kim Sang & Veenstra,
"Representing Text Chunks" (1999) for the two schemes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.data.find import PARQUET, Fail, find_or_fetch, load_from_hub
from tasks.data.trees import normalize_name
from tasks.errors import DataError

DOCUMENT_START = "-DOCSTART-"
OUTSIDE = "O"
_TAG = re.compile(r"O|[BI]-\S+")
_BLANKS = re.compile("[ \t]+")  # no others: a word may hold a no-break space


@dataclass(frozen=True)
class Sentence:
    """Words and their tags in IOB2, of equal length, never empty."""

    words: tuple[str, ...]
    tags: tuple[str, ...]


def read_conll(path: Path) -> list[Sentence]:
    """The sentences of a file, in its order; lines that mark a document's start and comments are left out.

    Args:
        path: columns divided by blanks or tabs, the word first and the entity tag last; UTF-8.

    Raises:
        DataError: the file cannot be read, holds no sentence, a line has other columns than the first one or too few
            for a word and a tag, or a tag is not of IOB; the message names file and line.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")  # a word may hold what else ends a line in Unicode
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 ({error.reason} at byte {error.start}); convert it first") from error
    sentences = [_sentence(rows) for rows in _blocks(lines, path)]
    if not sentences:
        raise DataError(f"{path} holds no sentence; it must have a word and its tag on each line")
    return sentences


def to_iob2(tags: Iterable[str]) -> tuple[str, ...]:
    """Tags of one sentence with every entity's first one made B-: an I- after another type, or after none, begins one.

    IOB2 comes back unchanged.
    """
    converted = []
    previous = OUTSIDE
    for tag in tags:
        begins = tag.startswith("I-") and previous[2:] != tag[2:]
        converted.append("B-" + tag[2:] if begins else tag)
        previous = tag
    return tuple(converted)


def _blocks(lines: list[str], path: Path) -> Iterator[list[list[str]]]:
    """The columns of each sentence's lines, checked."""
    n_columns = 0
    rows: list[list[str]] = []
    for number, line in enumerate(lines, start=1):
        columns = _BLANKS.split(line.strip(" \t"))
        if not rows and line.startswith("#") and _is_comment(columns, n_columns=n_columns):
            continue
        if not columns[0] or columns[0] == DOCUMENT_START:
            if rows:
                yield rows
            rows = []
            continue
        n_columns = n_columns or max(2, len(columns))
        if len(columns) != n_columns:
            raise DataError(
                f"{path}, line {number}: {line!r} has {len(columns)} column(s) where {n_columns} are needed, as in the "
                "first line: the word, without a blank in it, first and its entity tag last; correct the line"
            )
        if not _TAG.fullmatch(columns[-1]):
            raise DataError(
                f"{path}, line {number}: tag {columns[-1]!r} is not O, B-<type> or I-<type>; the last column must hold "
                "the entity tag"
            )
        rows.append(columns)
    if rows:
        yield rows


def _is_comment(columns: list[str], *, n_columns: int) -> bool:
    """Whether a line that begins with # is a comment, as before sentences of CoNLL-U, and not a word of the text.

    Args:
        n_columns: of the lines so far; 0 before the first.
    """
    is_word = _TAG.fullmatch(columns[-1]) is not None and len(columns) == (n_columns or len(columns))
    return not is_word or "=" in columns[1:]


def _sentence(rows: list[list[str]]) -> Sentence:
    return Sentence(words=tuple(row[0] for row in rows), tags=to_iob2(normalize_name(row[-1]) for row in rows))


HUB_NAME = "eriktks/conll2003"
FORMAT = 1  # of the fetched files; raise it when their layout changes
NAMES: tuple[Mapping[str, str], ...] = (
    {"train": "eng.train", "val": "eng.testa", "test": "eng.testb"},
    {"train": "train.txt", "val": "valid.txt", "test": "test.txt"},
)


def conll_files(*, data_dir: Path | None, inner: str | None) -> Mapping[str, Path]:
    """The files by split: "train", "test" and, where there is one, "val"; found under one of `NAMES`, or fetched.

    Args:
        inner: a folder of the data folder to look in; None: the data folder, and its folder conll2003.

    Raises:
        DataError: not found and not fetched; the message names the folder and the files expected.
    """
    return find_or_fetch(
        "conll2003",
        data_dir=data_dir,
        inner=inner,
        folders=[".", "conll2003", "CoNLL-2003"],
        layouts=NAMES,
        optional={"val"},
        advice=f"Put {' or '.join(', '.join(names.values()) for names in NAMES)} there",
        fetch=_fetch,
        fetched=NAMES[1],
        version=FORMAT,
    )


def _fetch(folder: Path, fail: Fail) -> None:
    """Write the hub's splits as column files, so that later runs need neither the network nor `datasets`."""
    loaded = load_from_hub(HUB_NAME, revision=PARQUET, fail=fail)
    for split, hub_split in {"train": "train", "val": "validation", "test": "test"}.items():
        rows = loaded[hub_split]
        tags: list[str] = rows.features["ner_tags"].feature.names
        with (folder / NAMES[1][split]).open("w", encoding="utf-8") as file:
            file.writelines(f"{_columns(row, tags)}\n\n" for row in rows)


def _columns(row: Mapping[str, Any], tags: list[str]) -> str:
    return "\n".join(f"{word} {tags[tag]}" for word, tag in zip(row["tokens"], row["ner_tags"], strict=True))
