"""Named entity recognition: a tag for each word by its first token, scored by whole entities.

An entity counts as found only if its type and both its ends are right. By the rules of the shared task's evaluation, a
tag begins an entity if it is B-, or if it is I- and the tag before it is O or of another type; so predictions need not
be valid IOB2.

The sentences come from CoNLL column files: a line holds a word and its columns; an empty line ends a sentence. The
files of the 2003 shared task are tagged IOB1: an entity begins with I-, and with B- only if it follows another one of
its type. In IOB2 every entity begins with B-. A file in IOB2 is left as it is.

Source: Tjong Kim Sang & De Meulder, "Introduction to the CoNLL-2003 Shared Task" (2003), section 2.3, with the same
counts as seqeval's default mode; Tjong Kim Sang & Veenstra, "Representing Text Chunks" (1999) for the two schemes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tasks.data.find import PARQUET, Fail, find_or_fetch, load_from_hub
from tasks.data.hold_out import Rows, hold_out
from tasks.data.trees import normalize_name
from tasks.engine.task import Batch, Split
from tasks.errors import DataError
from tasks.text.config import Conll2003Config
from tasks.text.task import TextData, TextTask, prepare
from tasks.text.tokens import AT_ONCE, Tokenized, TokenTable

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


Span = tuple[str, int, int]
"""(type, first word, word after the last)."""


def entity_spans(tags: Sequence[str]) -> set[Span]:
    """The entities of one sentence's tags."""
    spans: set[Span] = set()
    start = 0
    previous = OUTSIDE
    for position, tag in enumerate([*tags, OUTSIDE]):
        continues = tag.startswith("I-") and tag[2:] == previous[2:]
        if previous != OUTSIDE and not continues:
            spans.add((previous[2:], start, position))
        if not continues:
            start = position
        previous = tag
    return spans


def entity_scores(true: Iterable[Sequence[str]], predicted: Iterable[Sequence[str]]) -> dict[str, float]:
    """`precision`, `recall` and `f1` in [0, 1] over all sentences together; 0 where nothing can be counted.

    Args:
        true, predicted: for each sentence the tags of its words, of equal lengths.
    """
    n_true = n_predicted = n_right = 0
    for gold, guess in zip(true, predicted, strict=True):
        if len(gold) != len(guess):
            raise ValueError(f"{len(guess)} predicted tags for a sentence of {len(gold)} words")
        wanted, found = entity_spans(gold), entity_spans(guess)
        n_true += len(wanted)
        n_predicted += len(found)
        n_right += len(wanted & found)
    return {
        "precision": n_right / n_predicted if n_predicted else 0.0,
        "recall": n_right / n_true if n_true else 0.0,
        "f1": 2 * n_right / (n_true + n_predicted) if n_true + n_predicted else 0.0,
    }


IGNORED = -100
"""The tag of tokens that no loss counts: special ones, and a word's further ones."""


def tag_names(sentences: Sequence[Sentence]) -> tuple[str, ...]:
    """O, then B-… and I-… of each type in alphabetical order.

    Raises:
        DataError: no entity is tagged.
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
        path: the file, for error messages.

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


@dataclass(frozen=True, kw_only=True)
class EntityData(TextData):
    """As `TextData`, with the names of the tags and each split's words and their tags."""

    tags: tuple[str, ...]
    words: Mapping[Split, TokenTable]


class Conll2003Task(TextTask[Conll2003Config, EntityData]):
    """Tjong Kim Sang & De Meulder (2003); files of the same layout with other types of entities do as well."""

    auto_class = "AutoModelForTokenClassification"

    @classmethod
    def load(cls, config: Conll2003Config, *, data_dir: Path | None, device: torch.device) -> EntityData:
        paths = conll_files(data_dir=data_dir, inner=config.data_dir)
        prepared = prepare(
            config,
            list(paths.values()),
            data_dir=data_dir,
            texts=lambda: [" ".join(sentence.words) for sentence in read_conll(paths["train"])],
            parts={"task": "entities"},
            build=lambda tokenizer: _tokenize(paths, tokenizer, max_length=config.max_length),
        )
        fills = {"tags": IGNORED, "places": -1}
        splits = {split: prepared.place(split, device=device, fills=fills) for split in paths}
        train, val = splits["train"], splits.get("val")
        words: dict[Split, TokenTable] = {
            "val": prepared.tables["train_words" if val is None else "val_words"],
            "test": prepared.tables["test_words"],
        }
        if val is None:
            kept, held_out = hold_out(
                np.zeros(len(train), dtype=np.int64),
                fraction=config.val_fraction,
                seed=config.split_seed,
                what="training sentence",
            )
            train, val = train.take(kept), train.take(held_out)
        return EntityData(
            source=prepared.source,
            pad_token_id=prepared.pad_token_id,
            inputs=prepared.inputs,
            train=train,
            val=val,
            test=splits["test"],
            tags=tuple(prepared.facts["tags"]),
            words=words,
            facts={"data_digest": prepared.digest, "n_truncated_texts": prepared.facts["n_truncated_texts"]},
        )

    def check_metric(self, metric: str) -> None:
        words, rows = self.data.words["val"], self.data.val.rows
        tagged = any(words.token_columns["tags"][words.starts[row] : words.starts[row + 1]].any() for row in rows)
        if metric in ("f1", "precision", "recall") and not tagged:
            raise DataError(
                f"none of the {len(rows)} validation sentences has an entity, without which val_{metric} is undefined; "
                "add sentences with entities, or choose another objective"
            )

    def head(self) -> Mapping[str, Any]:
        names = dict(enumerate(self.data.tags))
        return {"num_labels": len(names), "id2label": names, "label2id": {name: i for i, name in names.items()}}

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """The mean over the batch's words."""
        logits = self.outputs(model, batch).logits.float()
        return nn.functional.cross_entropy(
            logits.flatten(0, 1),
            batch["tags"].flatten(),
            ignore_index=IGNORED,
            label_smoothing=self.config.label_smoothing,
        )

    def loss_terms(self, batch: Batch) -> Tensor:
        return (batch["tags"] != IGNORED).sum()

    def evaluate(self, model: nn.Module, split: Split) -> dict[str, float]:
        part, words = self.split(split), self.data.words[split]
        predicted = torch.zeros(int(words.starts[-1]), dtype=torch.int64, device=self.device)  # O where it was cut off
        loss = torch.zeros((), device=self.device)
        n_words = torch.zeros((), dtype=torch.int64, device=self.device)
        for _, batch in part.table.eval_batches(part.rows):
            logits = self.outputs(model, batch).logits.float()
            seen = batch["places"] >= 0
            predicted[batch["places"][seen]] = logits.argmax(dim=2)[seen]
            loss += nn.functional.cross_entropy(logits[seen], batch["tags"][seen], reduction="sum")
            n_words += seen.sum()
        rows = np.sort(part.rows)
        scores = entity_scores(
            self._tags(words.token_columns["tags"], words, rows), self._tags(predicted.cpu().numpy(), words, rows)
        )
        return {**scores, "loss": float(loss / n_words)}

    def _tags(self, flat: Any, words: TokenTable, rows: Rows) -> Sequence[Sequence[str]]:
        """The names of the tags of some sentences' words, from the numbers of all words' tags."""
        names = np.array(self.data.tags, dtype=object)[flat]
        return [names[words.starts[row] : words.starts[row + 1]].tolist() for row in rows]


def _tokenize(paths: Mapping[str, Path], tokenizer: Any, *, max_length: int) -> Tokenized:
    read = {split: read_conll(path) for split, path in paths.items()}
    tags = tag_names(read["train"])
    tables: dict[str, TokenTable] = {}
    n_truncated = 0
    for split, sentences in read.items():
        tables[split], tables[f"{split}_words"], n_cut = encode_sentences(
            sentences, tokenizer, tags=tags, max_length=max_length, path=paths[split]
        )
        n_truncated += n_cut
    return Tokenized(tables=tables, facts={"tags": tags, "n_truncated_texts": n_truncated})
