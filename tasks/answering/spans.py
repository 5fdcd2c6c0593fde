"""From the logits of windows to answers: the best spans of each window, then the best of each question's windows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

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
