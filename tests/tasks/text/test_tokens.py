"""Batches by length: every row at most once, little padding, a function of seed and epoch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tasks.text.tokens import BUCKET, PaddedRows, TokenTable, bucket_widths, plan_epoch

LENGTHS = np.random.default_rng(0).integers(3, 60, size=333).astype(np.int64)


def table(lengths: Any = LENGTHS) -> TokenTable:
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    tokens = np.arange(1, starts[-1] + 1, dtype=np.int32)
    rows = {"labels": np.arange(len(lengths), dtype=np.int64)}
    return TokenTable(starts=starts, token_columns={"input_ids": tokens}, row_columns=rows)


def padded() -> PaddedRows:
    return PaddedRows(table(), fills={"input_ids": -7}, device=torch.device("cpu"))


def test_plan_takes_each_row_at_most_once_and_hardly_pads() -> None:
    plan = plan_epoch(LENGTHS, samples_per_step=16, seed=3, epoch=1)
    assert plan.rows.shape == (333 // 16, 16)
    assert len(np.unique(plan.rows)) == plan.rows.size
    assert (LENGTHS[plan.rows].max(axis=1) <= plan.widths).all()
    assert (plan.widths % BUCKET == 0).all()
    tokens = LENGTHS[plan.rows].sum()
    assert (plan.widths * 16).sum() < 1.25 * tokens
    assert (LENGTHS.max() * plan.rows.size) > 1.8 * tokens  # what padding to the longest would take
    assert (np.diff(plan.widths) < 0).any()  # steps are not in order of length
    assert (np.diff(plan.widths) > 0).any()


def test_plan_depends_on_seed_and_epoch_alone() -> None:
    def rows(**changes: int) -> Any:
        return plan_epoch(LENGTHS, **{"samples_per_step": 16, "seed": 0, "epoch": 0, **changes}).rows

    assert (rows() == rows()).all()
    for other in ({"seed": 1}, {"epoch": 1}):
        assert not (rows() == rows(**other)).all()
        assert not (np.unique(rows()) == np.unique(rows(**other))).all()  # other rows are left out


def test_within_a_width_chance_decides_who_stands_together() -> None:
    same = np.full(64, 5, dtype=np.int64)
    steps = {tuple(sorted(step)) for epoch in range(20) for step in plan_epoch(
        same, samples_per_step=32, seed=0, epoch=epoch).rows.tolist()}  # fmt: skip
    assert len(steps) == 40


def test_batches_hold_the_rows_tokens_and_padding() -> None:
    rows = np.arange(0, 333, 2)
    seen = []
    for batch in padded().train_batches(rows, batch_size=8, accumulation=1, seed=0, epoch=0):
        width = batch["input_ids"].shape[1]
        assert {name: (tensor.dtype, len(tensor)) for name, tensor in batch.items()} == dict.fromkeys(
            ("input_ids", "attention_mask", "labels"), (torch.int64, 8)
        )
        for ids, mask, label in zip(batch["input_ids"], batch["attention_mask"], batch["labels"].tolist(), strict=True):
            n = int(LENGTHS[label])
            first = int(LENGTHS[:label].sum()) + 1
            assert ids.tolist() == [*range(first, first + n), *[-7] * (width - n)]
            assert mask.tolist() == [1] * n + [0] * (width - n)
        seen += batch["labels"].tolist()
    assert len(seen) == len(set(seen)) == len(rows) // 8 * 8
    assert set(seen) <= set(rows.tolist())


def test_micro_batches_of_a_step_have_one_width() -> None:
    batches = list(padded().train_batches(np.arange(333), batch_size=8, accumulation=4, seed=0, epoch=0))
    assert len(batches) == 333 // 32 * 4
    for step in range(0, len(batches), 4):
        assert len({batch["input_ids"].shape for batch in batches[step : step + 4]}) == 1


def test_large_epochs_are_padded_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = list(padded().train_batches(np.arange(333), batch_size=8, accumulation=1, seed=0, epoch=0))
    monkeypatch.setattr("tasks.text.tokens.CHUNK_TOKENS", 8 * 16 * 3)
    parts = list(padded().train_batches(np.arange(333), batch_size=8, accumulation=1, seed=0, epoch=0))
    assert all(torch.equal(a[name], b[name]) for a, b in zip(whole, parts, strict=True) for name in a)


def test_evaluation_sees_every_row_once_without_waste(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.text.tokens.EVAL_TOKENS", 512)
    rows = np.arange(1, 333, 3)
    found, places, tokens = [], 0, 0
    for chosen, batch in padded().eval_batches(rows):
        assert batch["labels"].tolist() == chosen.tolist()
        assert batch["input_ids"].numel() <= 512
        found += chosen.tolist()
        places += batch["input_ids"].numel()
        tokens += int(batch["attention_mask"].sum())
    assert sorted(found) == rows.tolist()
    assert tokens == LENGTHS[rows].sum()
    assert places < 1.3 * tokens


def test_rows_without_tokens_are_batches_too() -> None:
    """A tokenizer without special tokens makes none of an empty text."""
    rows = PaddedRows(table(np.array([3, 0, 0])), fills={"input_ids": 0}, device=torch.device("cpu"))
    empty = np.array([1, 2])
    (batch,) = rows.train_batches(empty, batch_size=2, accumulation=1, seed=0, epoch=0)
    assert batch["input_ids"].shape == (2, 8)
    assert not batch["attention_mask"].any()
    assert [len(seen) for seen, _ in rows.eval_batches(empty)] == [2]


def test_widths_are_the_next_multiples() -> None:
    assert bucket_widths(np.array([1, 8, 9, 128])).tolist() == [8, 8, 16, 128]
