"""Passages in windows of tokens, with the answer's place in each, and answers from the logits of windows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tasks.answering.squad import Question, QuestionSet
from tasks.text.config import MAX_QUESTION
from tasks.text.tokens import TokenTable

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
