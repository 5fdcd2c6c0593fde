"""Spans from logits: every allowed span is considered, and none that is not."""

from __future__ import annotations

import pytest
import torch

from tasks.answering.task import Span, merge_windows, top_spans


@pytest.mark.parametrize("max_tokens", [1, 3, 50])
def test_top_spans_are_those_of_a_full_search(max_tokens: int) -> None:
    generator = torch.Generator().manual_seed(0)
    start, end = (torch.randn(4, 12, generator=generator) for _ in range(2))
    passage = torch.rand(4, 12, generator=generator) < 0.7
    passage[3] = False
    scores, firsts, lasts = top_spans(start, end, passage, max_tokens=max_tokens, n=6)
    assert scores.shape == firsts.shape == lasts.shape == (4, 6)
    for window in range(4):
        allowed = {
            (i, j): float(start[window, i] + end[window, j])
            for i in range(12)
            for j in range(i, min(12, i + max_tokens))
            if passage[window, i] and passage[window, j]
        }
        best = sorted(allowed.values(), reverse=True)[:6]
        got = scores[window][torch.isfinite(scores[window])]
        assert got.tolist() == pytest.approx(best)
        for score, i, j in zip(got.tolist(), firsts[window].tolist(), lasts[window].tolist(), strict=False):
            assert allowed[i, j] == pytest.approx(score)


def test_windows_merge_by_the_better_score() -> None:
    spans = [Span(1.0, 0, 4), Span(3.0, 8, 9), Span(2.0, 0, 4), Span(2.0, 5, 6), Span(-1.0, 2, 3)]
    assert merge_windows(spans, n=3) == [Span(3.0, 8, 9), Span(2.0, 0, 4), Span(2.0, 5, 6)]
    assert merge_windows([]) == []
