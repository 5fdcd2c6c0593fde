"""Named entity recognition: a tag for each word by its first token, scored by whole entities."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tasks.engine.batches import Rows, stratified_split
from tasks.engine.task import Batch, Split
from tasks.entities.config import Conll2003Config
from tasks.entities.conll import read_conll
from tasks.entities.files import conll_files
from tasks.entities.scoring import entity_scores
from tasks.entities.tokens import IGNORED, encode_sentences, tag_names
from tasks.errors import DataError
from tasks.text.batches import PaddedRows
from tasks.text.models import check_length, load_tokenizer, tokenizer_digest
from tasks.text.table import TokenTable
from tasks.text.task import TextData, TextSplit, TextTask
from tasks.text.tiny import choose_model
from tasks.text.tokens import Tokenized, file_digest, kept


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
        digest = file_digest(*paths.values())
        source = choose_model(
            config.model,
            data_dir=data_dir,
            digest=digest,
            texts=lambda: [" ".join(sentence.words) for sentence in read_conll(paths["train"])],
        )
        tokenizer = load_tokenizer(source)
        check_length(source, tokenizer=tokenizer, max_length=config.max_length)
        parts = {
            "task": "entities",
            "data": digest,
            "tokenizer": tokenizer_digest(source),
            "max_length": config.max_length,
        }
        tokenized = kept(parts, lambda: _tokenize(paths, tokenizer, max_length=config.max_length))
        inputs = [name for name in tokenizer.model_input_names if name != "attention_mask"]
        fills = {name: 0 for name in inputs} | {"input_ids": tokenizer.pad_token_id, "tags": IGNORED, "places": -1}
        splits = {split: _whole(tokenized.tables[split], fills, device) for split in paths}
        train, val = splits["train"], splits.get("val")
        words: dict[Split, TokenTable] = {
            "val": tokenized.tables["train_words" if val is None else "val_words"],
            "test": tokenized.tables["test_words"],
        }
        if val is None:
            kept_rows, held_out = _hold_out(len(train), config=config)
            train, val = TextSplit(table=train.table, rows=kept_rows), TextSplit(table=train.table, rows=held_out)
        return EntityData(
            source=source,
            pad_token_id=int(tokenizer.pad_token_id),
            inputs=tuple(inputs),
            train=train,
            val=val,
            test=splits["test"],
            tags=tuple(tokenized.facts["tags"]),
            words=words,
            facts={"data_digest": digest, "n_truncated_texts": tokenized.facts["n_truncated_texts"]},
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


def _whole(table: TokenTable, fills: Mapping[str, int], device: torch.device) -> TextSplit:
    return TextSplit(table=PaddedRows(table, fills=fills, device=device), rows=np.arange(len(table)))


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


def _hold_out(n_rows: int, *, config: Conll2003Config) -> tuple[Rows, Rows]:
    n_val = round(config.val_fraction * n_rows)
    if not 0 < n_val < n_rows:
        raise DataError(
            f"val_fraction {config.val_fraction} of {n_rows} training sentences leaves no validation or no training "
            "set; add a validation file or change it"
        )
    return stratified_split(np.zeros(n_rows, dtype=np.int64), n_held_out=n_val, seed=config.split_seed)
