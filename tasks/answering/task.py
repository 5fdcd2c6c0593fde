"""SQuAD on the engine: logits of the answer's ends in each window, the best span of all windows, official scores."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tasks.answering.squad import (
    Question,
    QuestionSet,
    Score,
    Threshold,
    best_threshold,
    hold_out_questions,
    read_squad,
    score_v1,
    score_v2,
    squad_files,
)
from tasks.answering.windows import Span, encode_windows, merge_windows, top_spans
from tasks.data.hold_out import Rows
from tasks.data.pretrained import load_config
from tasks.engine.task import Batch, Split
from tasks.errors import ConfigError
from tasks.text.config import SquadConfig, SquadV1Config, SquadV2Config
from tasks.text.task import TextData, TextTask, prepare
from tasks.text.tokens import Tokenized, TokenTable

BEAM_SEARCHERS = ("xlnet", "xlm", "flaubert")
"""Architectures whose head does not give one logit a token for each end."""

SquadConfigT = TypeVar("SquadConfigT", bound=SquadConfig)


@dataclass(frozen=True, kw_only=True)
class AnsweringData(TextData):
    """As `TextData`, a row a window; with the questions, those of each split, and windows' characters on the host."""

    questions: Mapping[Split, QuestionSet]
    asked: Mapping[Split, Rows]
    windows: Mapping[Split, TokenTable]


@dataclass(frozen=True, kw_only=True)
class Predictions:
    """For each question asked, in order.

    Attributes:
        questions: those asked.
        best: up to `tasks.answering.windows.N_BEST` spans of the passage, best first.
        texts: of the best span; empty where there is none.
        margins: (n,), how much higher "no answer" scores than the best span; infinite where there is none.
        loss: mean cross-entropy of the windows' ends.
    """

    questions: Sequence[Question]
    best: Sequence[Sequence[Span]]
    texts: Sequence[str]
    margins: NDArray[np.float64]
    loss: float


class SquadTask(TextTask[SquadConfigT, AnsweringData], Generic[SquadConfigT]):
    """What both versions have in common."""

    auto_class = "AutoModelForQuestionAnswering"
    unanswerable: ClassVar[Literal["refuse", "keep"]]

    @classmethod
    def cache_key(cls, config: SquadConfigT) -> Hashable:
        return (super().cache_key(config), config.doc_stride, config.on_bad_answer)

    @classmethod
    def load(cls, config: SquadConfigT, *, data_dir: Path | None, device: torch.device) -> AnsweringData:
        paths = squad_files(config.name, data_dir=data_dir, inner=config.data_dir)
        read = {
            split: read_squad(path, unanswerable=cls.unanswerable, on_bad_answer=config.on_bad_answer)
            for split, path in paths.items()
        }
        prepared = prepare(
            config,
            list(paths.values()),
            data_dir=data_dir,
            texts=lambda: _texts(read["train"]),
            parts={
                "task": "answering",
                "on_bad_answer": config.on_bad_answer,
                "doc_stride": config.doc_stride,
            },
            build=lambda tokenizer: _tokenize(read, tokenizer, config),
        )
        windows = prepared.tables
        placed = {split: prepared.place(split, device=device, fills={"passage": 0}) for split in windows}
        kept, held_out = hold_out_questions(read["train"], fraction=config.val_fraction, seed=config.split_seed)
        owners = windows["train"].row_columns["question"]
        return AnsweringData(
            source=prepared.source,
            pad_token_id=prepared.pad_token_id,
            inputs=prepared.inputs,
            train=placed["train"].take(np.flatnonzero(np.isin(owners, kept))),
            val=placed["train"].take(np.flatnonzero(np.isin(owners, held_out))),
            test=placed["test"],
            questions={"val": read["train"], "test": read["test"]},
            asked={"val": held_out, "test": np.arange(len(read["test"].questions))},
            windows={"val": windows["train"], "test": windows["test"]},
            facts={
                "data_digest": prepared.digest,
                **prepared.facts,
                "n_skipped_questions": sum(questions.n_skipped for questions in read.values()),
            },
        )

    def record(self) -> dict[str, Any]:
        asked = {f"n_{split}_questions": len(rows) for split, rows in self.data.asked.items()}
        return {**super().record(), **asked}

    def check_fit(self) -> None:
        super().check_fit()
        kind = load_config(self.data.source).model_type
        if kind in BEAM_SEARCHERS:
            raise ConfigError(
                f"{self.data.source.origin} is a {kind!r} model, whose head searches answers in a way of its own; "
                "choose another checkpoint (BERT, RoBERTa, ELECTRA, DeBERTa, …)"
            )

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """The mean of both ends' cross-entropy."""
        starts, ends = self._ends(model, batch)
        return (self._cross_entropy(starts, batch["start"]) + self._cross_entropy(ends, batch["stop"])) / 2

    def predict(self, model: nn.Module, split: Split) -> Predictions:
        """The best spans for a split's questions; the model is in eval mode, gradients are off."""
        part, windows = self.split(split), self.data.windows[split]
        spans: dict[int, list[Span]] = {int(question): [] for question in self.data.asked[split]}
        none: dict[int, float] = {}
        loss, begins, ends = 0.0, windows.token_columns["begin"], windows.token_columns["end"]
        owners = windows.row_columns["question"]
        for rows, batch in part.table.eval_batches(part.rows):
            starts, stops = self._ends(model, batch)
            loss += len(rows) * float(nn.functional.cross_entropy(starts, batch["start"])) / 2
            loss += len(rows) * float(nn.functional.cross_entropy(stops, batch["stop"])) / 2
            empty = batch["none"][:, None]
            nothing = (starts.gather(1, empty) + stops.gather(1, empty)).squeeze(1).tolist()
            found = top_spans(starts, stops, batch["passage"] > 0, max_tokens=self.config.max_answer_tokens)
            scores, firsts, lasts = (column.cpu().numpy() for column in found)
            for index, row in enumerate(rows.tolist()):
                owner, place = int(owners[row]), int(windows.starts[row])
                none[owner] = min(none.get(owner, np.inf), nothing[index])
                real = np.isfinite(scores[index])
                first, last = begins[place + firsts[index][real]], ends[place + lasts[index][real]]
                spans[owner] += map(Span, scores[index][real].tolist(), first.tolist(), last.tolist())
        return self._collect(split, spans, none, loss=loss / len(part))

    def _collect(
        self, split: Split, spans: Mapping[int, Sequence[Span]], none: Mapping[int, float], *, loss: float
    ) -> Predictions:
        questions = self.data.questions[split]
        asked = [questions.questions[number] for number in spans]
        best = [merge_windows(candidates) for candidates in spans.values()]
        texts = [
            questions.passages[question.passage][ranked[0].start : ranked[0].end] if ranked else ""
            for question, ranked in zip(asked, best, strict=True)
        ]
        margins = [
            none[number] - ranked[0].score if ranked else np.inf for number, ranked in zip(spans, best, strict=True)
        ]
        return Predictions(questions=asked, best=best, texts=texts, margins=np.array(margins), loss=loss)

    def _ends(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
        outputs = self.outputs(model, batch)
        return outputs.start_logits.float(), outputs.end_logits.float()

    def _cross_entropy(self, logits: Tensor, places: Tensor) -> Tensor:
        return nn.functional.cross_entropy(logits, places, label_smoothing=self.config.label_smoothing)


class SquadV1Task(SquadTask[SquadV1Config]):
    """Rajpurkar et al. (2016): the best span is the answer."""

    unanswerable = "refuse"

    def evaluate(self, model: nn.Module, split: Split) -> dict[str, float]:
        predictions = self.predict(model, split)
        pairs = zip(predictions.texts, predictions.questions, strict=True)
        return {**_means([score_v1(text, _true(question)) for text, question in pairs]), "loss": predictions.loss}


class SquadV2Task(SquadTask[SquadV2Config]):
    """Rajpurkar et al. (2018): the best span, or none where "none" scores higher by more than a threshold.

    `best_f1` and `best_exact_match` are those of the threshold that suits the split best, which the official evaluation
    reports too: what the best choice of it would give.
    """

    unanswerable = "keep"

    def evaluate(self, model: nn.Module, split: Split) -> dict[str, float]:
        predictions = self.predict(model, split)
        spoken = _spoken(predictions)
        if (margin := self.config.no_answer_threshold) == "tuned":
            seen = predictions if split == "val" else self.predict(model, "val")
            margin = _best_threshold(seen, [score.f1 for score in _spoken(seen)]).margin
        given = [
            score_v2("", _true(question)) if silent else score
            for silent, score, question in zip(predictions.margins > margin, spoken, predictions.questions, strict=True)
        ]
        return {
            **_means(given),
            "best_f1": _best_threshold(predictions, [score.f1 for score in spoken]).score,
            "best_exact_match": _best_threshold(predictions, [score.exact_match for score in spoken]).score,
            "loss": predictions.loss,
        }


def _spoken(predictions: Predictions) -> list[Score]:
    """The scores of the best spans, without a threshold."""
    pairs = zip(predictions.texts, predictions.questions, strict=True)
    return [score_v2(text, _true(question)) for text, question in pairs]


def _best_threshold(predictions: Predictions, scores: Sequence[float]) -> Threshold:
    answerable = np.array([bool(question.answers) for question in predictions.questions])
    return best_threshold(predictions.margins, np.array(scores), answerable)


def _true(question: Question) -> list[str]:
    return [answer.text for answer in question.answers]


def _means(scores: Sequence[Score]) -> dict[str, float]:
    return {
        "exact_match": float(np.mean([score.exact_match for score in scores])),
        "f1": float(np.mean([score.f1 for score in scores])),
    }


def _texts(questions: QuestionSet) -> list[str]:
    return [*questions.passages, *(question.text for question in questions.questions)]


def _tokenize(read: Mapping[str, QuestionSet], tokenizer: Any, config: SquadConfig) -> Tokenized:
    tables: dict[str, TokenTable] = {}
    n_truncated = 0
    for split, questions in read.items():
        tables[split], n_cut = encode_windows(
            questions, tokenizer, max_length=config.max_length, doc_stride=config.doc_stride
        )
        n_truncated += n_cut
    return Tokenized(tables=tables, facts={"n_truncated_questions": n_truncated})
