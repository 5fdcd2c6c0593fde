"""Padded batches from a table on a device: sentences of about one length together, so that little is padding.

Lengths are rounded up to multiples of `BUCKET` tokens. Batches of one width have one shape, so each width has one
captured graph.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tasks.engine.batches import Rows, epoch_order
from tasks.engine.seeds import derive_seed
from tasks.text.table import TokenTable

BUCKET = 8  # tokens; also what attention kernels want a mask's rows to be a multiple of
CHUNK_TOKENS = 2**20  # padded at once: few large kernels instead of many small ones
EVAL_TOKENS = 2**14  # in a batch of an evaluation, padding included


def bucket_widths(lengths: NDArray[np.int64], *, bucket: int = BUCKET) -> NDArray[np.int64]:
    """Lengths rounded up to multiples of `bucket`, and one bucket at least: a text may be of no token."""
    return np.maximum(-(-lengths // bucket), 1) * bucket


@dataclass(frozen=True)
class EpochPlan:
    """Which rows each optimizer step takes, in order.

    Attributes:
        rows: int64 (steps, samples of a step).
        widths: int64 (steps,): tokens that each step's rows are padded to.
    """

    rows: Rows
    widths: NDArray[np.int64]


def plan_epoch(
    lengths: NDArray[np.int64], *, samples_per_step: int, seed: int, epoch: int, bucket: int = BUCKET
) -> EpochPlan:
    """Steps of rows of similar length, in random order; a function of (lengths, seed, epoch).

    Rows are shuffled, those beyond whole steps are left out (others each epoch), then sorted by width, cut into steps
    and the steps shuffled: within a width, chance decides who stands together.

    Args:
        lengths: tokens of each row, (n,).
        samples_per_step: batch size × accumulation: micro-batches of one step have one width, hence one graph.
        bucket: what widths are multiples of.
    """
    n_steps = len(lengths) // samples_per_step
    order = epoch_order(len(lengths), seed=seed, epoch=epoch).numpy()[: n_steps * samples_per_step]
    widths = bucket_widths(lengths[order], bucket=bucket)
    by_width = np.argsort(widths, kind="stable")
    rows = order[by_width].reshape(n_steps, samples_per_step)
    step_widths = widths[by_width].reshape(n_steps, samples_per_step).max(axis=1)
    turn = np.random.Generator(np.random.PCG64(derive_seed(seed, "steps", epoch))).permutation(n_steps)
    return EpochPlan(rows=rows[turn], widths=step_widths[turn])


class PaddedRows:
    """A table's rows on a device.

    Args:
        fills: what each token column is padded with; columns without an entry stay off the device.
        device: where batches are wanted; the tokens lie there whole (4 bytes each, so even MNLI's are 80 MB).
    """

    def __init__(self, table: TokenTable, *, fills: Mapping[str, int], device: torch.device) -> None:
        self.lengths = table.lengths
        self._starts = torch.from_numpy(table.starts[:-1].copy()).to(device)
        self._lengths = torch.from_numpy(self.lengths).to(device)
        self._tokens = {name: torch.from_numpy(table.token_columns[name]).to(device) for name in fills}
        self._fills = dict(fills)
        self._rows = {name: torch.from_numpy(column).to(device) for name, column in table.row_columns.items()}
        self._device = device

    def __len__(self) -> int:
        return len(self.lengths)

    def column(self, name: str) -> Tensor:
        """A row column, (n,) on the device."""
        return self._rows[name]

    def largest(self, name: str) -> int:
        """The largest value of a token column."""
        return int(self._tokens[name].max())

    def pad(self, rows: Tensor, width: int) -> dict[str, Tensor]:
        """Some rows as {column: (m, width) int64}, with "attention_mask" (1: token, 0: padding) and the row columns.

        Args:
            rows: int64 (m,) on the device; none longer than `width`.
        """
        place = torch.arange(width, device=self._device)
        inside = place < self._lengths[rows, None]
        index = torch.where(inside, self._starts[rows, None] + place, 0)
        batch = {"attention_mask": inside.long()}
        for name, tokens in self._tokens.items():
            batch[name] = tokens[index].long().masked_fill_(~inside, self._fills[name])
        return batch | {name: column[rows] for name, column in self._rows.items()}

    def train_batches(
        self, rows: Rows, *, batch_size: int, accumulation: int, seed: int, epoch: int
    ) -> Iterator[dict[str, Tensor]]:
        """One epoch's batches over some of the rows, as `plan_epoch` lays them out."""
        plan = plan_epoch(self.lengths[rows], samples_per_step=batch_size * accumulation, seed=seed, epoch=epoch)
        streams = {
            int(width): self._stream(rows[plan.rows[plan.widths == width]].reshape(-1, batch_size), int(width))
            for width in np.unique(plan.widths)
        }
        for width in plan.widths.tolist():
            for _ in range(accumulation):
                yield next(streams[width])

    def _stream(self, batches: Rows, width: int) -> Iterator[dict[str, Tensor]]:
        """Batches (m, batch size) of one width, padded a chunk at a time."""
        size = batches.shape[1]
        at_once = max(1, CHUNK_TOKENS // (size * width))
        for begin in range(0, len(batches), at_once):
            chunk = batches[begin : begin + at_once]
            padded = self.pad(torch.from_numpy(chunk.reshape(-1)).to(self._device), width)
            for start in range(0, len(chunk) * size, size):
                yield {name: column[start : start + size] for name, column in padded.items()}

    def eval_batches(self, rows: Rows) -> Iterator[tuple[Rows, dict[str, Tensor]]]:
        """Every row once, longest first, as (rows, batch): batches of `EVAL_TOKENS` tokens, hardly any padding."""
        order = rows[np.argsort(-self.lengths[rows], kind="stable")]
        begin = 0
        while begin < len(order):
            width = int(bucket_widths(self.lengths[order[begin : begin + 1]])[0])
            chosen = order[begin : begin + max(1, EVAL_TOKENS // width)]
            yield chosen, self.pad(torch.from_numpy(chosen).to(self._device), width)
            begin += len(chosen)
