"""Named entity recognition: a tag for each word by its first token, scored by whole entities.

An entity counts as found only if its type and both its ends are right. By the rules of the shared task's evaluation, a
tag begins an entity if it is B-, or if it is I- and the tag before it is O or of another type; so predictions need not
be valid IOB2.

Source: Tjong Kim Sang & De Meulder (2003), section 2.3; the same counts as seqeval's default mode.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tasks.data.hold_out import Rows, hold_out
from tasks.engine.task import Batch, Split
from tasks.entities.conll import OUTSIDE, Sentence, conll_files, read_conll
from tasks.errors import DataError
from tasks.text.config import Conll2003Config
from tasks.text.task import TextData, TextTask, prepare
from tasks.text.tokens import AT_ONCE, Tokenized, TokenTable

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
