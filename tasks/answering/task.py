"""SQuAD on the engine: passages in windows of tokens, logits of the answer's ends in each window, the best span of all
windows, official scores.
"""

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
from tasks.data.hold_out import Rows
from tasks.data.pretrained import load_config
from tasks.engine.task import Batch, Split
from tasks.errors import ConfigError
from tasks.text.config import MAX_QUESTION, SquadConfig, SquadV1Config, SquadV2Config
from tasks.text.task import TextData, TextTask, prepare
from tasks.text.tokens import Tokenized, TokenTable

AT_ONCE = 1024  # questions given to the tokenizer, which runs them in parallel
Ints = NDArray[np.int32]


def encode_windows(
    questions: QuestionSet, tokenizer: Any, *, max_length: int, doc_stride: int
) -> tuple[TokenTable, int]:
    """The windows of all questions, in their order.

    Args:
        max_length: tokens of question and window together, special ones included.
        doc_stride: tokens that neighbouring windows share.

    Returns:
        A table, a row a window. Token columns: input_ids and what else the model takes; `passage`, 1 for the passage's
        tokens; `begin` and `end`, the characters of the passage that a token stands for (0 elsewhere). Row columns:
        `question`; `start` and `stop`, the first answer's first and last token; `none`, the token that stands for "no
        answer", which `start` and `stop` are where the window holds no whole answer. And how many questions were cut.
    """
    names = [name for name in tokenizer.model_input_names if name != "attention_mask"]
    tokens: dict[str, list[Ints]] = {name: [] for name in (*names, "passage", "begin", "end")}
    rows: dict[str, list[int]] = {name: [] for name in ("question", "start", "stop", "none")}
    lengths: list[int] = []
    texts, n_cut = _shortened([question.text for question in questions.questions], tokenizer)
    for begin in range(0, len(texts), AT_ONCE):
        asked = questions.questions[begin : begin + AT_ONCE]
        encoded = tokenizer(
            texts[begin : begin + AT_ONCE],
            [questions.passages[question.passage] for question in asked],
            truncation="only_second",
            max_length=max_length,
            stride=doc_stride,
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
            return_attention_mask=False,
            verbose=False,
        )
        for window, owner in enumerate(encoded["overflow_to_sample_mapping"]):
            ids = encoded["input_ids"][window]
            inside = np.array([side == 1 for side in encoded.sequence_ids(window)])
            offsets = np.where(inside[:, None], np.array(encoded["offset_mapping"][window]), 0)
            none = ids.index(tokenizer.cls_token_id) if tokenizer.cls_token_id in ids else 0
            start, stop = _place(asked[owner], offsets, inside, none=none)
            for name, value in (("question", begin + owner), ("start", start), ("stop", stop), ("none", none)):
                rows[name].append(value)
            for name in names:
                tokens[name].append(np.array(encoded[name][window], dtype=np.int32))
            for name, column in (("passage", inside), ("begin", offsets[:, 0]), ("end", offsets[:, 1])):
                tokens[name].append(column.astype(np.int32))
            lengths.append(len(ids))
    table = TokenTable(
        starts=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        token_columns={name: np.concatenate(parts) for name, parts in tokens.items()},
        row_columns={name: np.array(column, dtype=np.int64) for name, column in rows.items()},
    )
    return table, n_cut


def _shortened(texts: Sequence[str], tokenizer: Any) -> tuple[list[str], int]:
    """Questions without blanks around them, cut after `MAX_QUESTION` tokens; and how many were cut."""
    shortened, n_cut = [], 0
    for begin in range(0, len(texts), AT_ONCE):
        part = [text.strip() for text in texts[begin : begin + AT_ONCE]]
        encoded = tokenizer(part, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        for text, offsets in zip(part, encoded["offset_mapping"], strict=True):
            cut = len(offsets) > MAX_QUESTION
            shortened.append(text[: offsets[MAX_QUESTION - 1][1]] if cut else text)
            n_cut += cut
    return shortened, n_cut


def _place(question: Question, offsets: NDArray[Any], inside: NDArray[np.bool_], *, none: int) -> tuple[int, int]:
    """First and last token of the question's first answer, or `none` twice where a window does not hold all of it."""
    if not question.answers:
        return none, none
    answer = question.answers[0]
    begin, end = answer.answer_start, answer.answer_start + len(answer.text)
    own = np.flatnonzero(inside)
    starts = own[offsets[own, 1] > begin]
    stops = own[offsets[own, 0] < end]
    if len(starts) == 0 or len(stops) == 0:
        return none, none
    start, stop = int(starts[0]), int(stops[-1])
    # At a window's edge the answer may continue outside; elsewhere a character without a token is a blank at its end.
    begins = offsets[start, 0] <= begin or start != own[0]
    ends = offsets[stop, 1] >= end or stop != own[-1]
    return (start, stop) if begins and ends and start <= stop else (none, none)


N_BEST = 20


@dataclass(frozen=True)
class Span:
    """A candidate answer: its score and its characters start … end (that one left out) of the passage."""

    score: float
    start: int
    end: int


def top_spans(
    start_logits: Tensor, end_logits: Tensor, passage: Tensor, *, max_tokens: int, n: int = N_BEST
) -> tuple[Tensor, Tensor, Tensor]:
    """The n best spans of each window by the sum of their ends' logits, among all that are allowed.

    Args:
        start_logits, end_logits: (windows, tokens), any float dtype.
        passage: bool (windows, tokens), the tokens that belong to the passage; a span lies within them.
        max_tokens: in a span, at most.

    Returns:
        Scores (−inf where there are fewer than n spans), first and last tokens; each (windows, n), best first.
    """
    n_windows, width = start_logits.shape
    outside = ~passage
    starts = start_logits.float().masked_fill(outside, -torch.inf)
    reach = min(max_tokens, width)
    ends = torch.nn.functional.pad(
        end_logits.float().masked_fill(outside, -torch.inf), (0, reach - 1), value=-torch.inf
    )
    scores = starts[:, :, None] + ends.unfold(1, reach, 1)  # [w, i, j]: the span i … i + j
    flat = scores.reshape(n_windows, width * reach)
    found = min(n, flat.shape[1])
    best, index = flat.topk(found, dim=1)
    first = index // reach
    missing = (0, n - found)
    return (
        torch.nn.functional.pad(best, missing, value=-torch.inf),
        torch.nn.functional.pad(first, missing),
        torch.nn.functional.pad(first + index % reach, missing),
    )


def merge_windows(candidates: Sequence[Span], *, n: int = N_BEST) -> list[Span]:
    """The n best different spans of a question's windows, best first; a span in several windows counts its best."""
    best: dict[tuple[int, int], float] = {}
    for span in candidates:
        place = (span.start, span.end)
        best[place] = max(span.score, best.get(place, span.score))
    ranked = sorted(best.items(), key=lambda item: (-item[1], item[0]))
    return [Span(score, start, end) for (start, end), score in ranked[:n]]


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
        best: up to `N_BEST` spans of the passage, best first.
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
