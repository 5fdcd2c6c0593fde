"""Tokenized texts: tables on disk and in memory, and padded batches of them on a device.

Tables are kept on disk under a digest of the texts and the tokenizer. Batches hold texts of similar length, so that
little is padding; lengths are rounded up to multiples of `BUCKET` tokens, and each width has one captured graph.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tasks.data.find import build_once
from tasks.data.hold_out import Rows
from tasks.engine.seeds import epoch_order, random_stream
from tasks.errors import DataError

Array = NDArray[Any]


@dataclass(frozen=True, kw_only=True)
class TokenTable:
    """n examples, of together t tokens.

    Attributes:
        starts: int64 (n + 1,): example i owns the tokens starts[i] … starts[i + 1].
        token_columns: by name, arrays whose first dimension is t: input_ids, token_type_ids, labels of tokens, …
        row_columns: by name, arrays whose first dimension is n: labels, scores, …
    """

    starts: NDArray[np.int64]
    token_columns: Mapping[str, Array]
    row_columns: Mapping[str, Array] = field(default_factory=dict)

    def __post_init__(self) -> None:
        n_rows, n_tokens = len(self.starts) - 1, int(self.starts[-1])
        for columns, length in ((self.token_columns, n_tokens), (self.row_columns, n_rows)):
            for name, column in columns.items():
                assert len(column) == length, f"column {name!r} has {len(column)} entries, not {length}"

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each example, int64 (n,)."""
        return np.diff(self.starts)


def save_table(folder: Path, name: str, table: TokenTable) -> None:
    """Write a table as .npy files `<name>.…` in an existing folder."""
    np.save(folder / f"{name}.starts.npy", table.starts)
    for kind, columns in (("token", table.token_columns), ("row", table.row_columns)):
        for column, array in columns.items():
            np.save(folder / f"{name}.{kind}.{column}.npy", array)


def load_table(folder: Path, name: str) -> TokenTable:
    """The table of that name; its arrays are mapped from the files, so processes of a node share their pages."""
    columns: dict[str, dict[str, Array]] = {"token": {}, "row": {}}
    for path in sorted(folder.glob(f"{name}.*.*.npy")):
        _, kind, column, _ = path.name.split(".")
        columns[kind][column] = _map(path)
    return TokenTable(
        starts=np.load(folder / f"{name}.starts.npy"),
        token_columns=columns["token"],
        row_columns=columns["row"],
    )


def _map(path: Path) -> Array:
    # Copy-on-write, because torch wants arrays it may write to; an empty file cannot be mapped.
    array: Array = np.load(path, mmap_mode=None if path.stat().st_size < 4096 else "c", allow_pickle=False)
    return array


AT_ONCE = 4096  # texts given to the tokenizer, which runs them in parallel
FORMAT = 3  # of the kept tables; raise it when tokenising or their layout changes


@dataclass(frozen=True, kw_only=True)
class Tokenized:
    """Tables by name ("train", "test", …) and what else was found out while reading (class names, counts)."""

    tables: Mapping[str, TokenTable]
    facts: Mapping[str, Any]


def load_or_build(parts: Mapping[str, Any], build: Callable[[], Tokenized]) -> Tokenized:
    """The tables of these parts, from disk or built and kept; one process a node builds, the others wait.

    Args:
        parts: everything the result depends on, JSON values: digests of files and tokenizer, lengths, options.
        build: reads and tokenises; `facts` must be JSON values.
    """
    text = json.dumps({"format": FORMAT, **parts}, sort_keys=True)
    key = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
    folder = build_once("tokens", key, lambda folder: _save(folder, build()))
    facts = json.loads((folder / "facts.json").read_text())
    return Tokenized(tables={name: load_table(folder, name) for name in facts["tables"]}, facts=facts["facts"])


def _save(folder: Path, tokenized: Tokenized) -> None:
    for name, table in tokenized.tables.items():
        save_table(folder, name, table)
    facts = {"tables": sorted(tokenized.tables), "facts": dict(tokenized.facts)}
    (folder / "facts.json").write_text(json.dumps(facts))


def file_digest(*paths: Path) -> str:
    """A digest of some files' names and content.

    Raises:
        DataError: one cannot be read.
    """
    digest = hashlib.blake2b(digest_size=16)
    for path in paths:
        digest.update(path.name.encode() + b"\0")
        try:
            with path.open("rb") as file:
                while block := file.read(1 << 20):
                    digest.update(block)
        except OSError as error:
            raise DataError(f"{path} cannot be read: {error.strerror}; it must be a file that may be read") from error
    return digest.hexdigest()


def encode(
    tokenizer: Any,
    first: Sequence[str],
    second: Sequence[str] | None = None,
    *,
    max_length: int,
    row_columns: Mapping[str, Array] | None = None,
) -> tuple[TokenTable, int]:
    """Sentences, or pairs of them, as the model takes them: special tokens added, cut at max_length.

    Of a pair that is too long the longer sentence loses its end first.

    Returns:
        The table with the columns input_ids (int32) and, for models that take them, token_type_ids (int8); and how
        many rows were cut.
    """
    names = [name for name in tokenizer.model_input_names if name != "attention_mask"]
    lengths: list[int] = []
    columns: dict[str, list[Array]] = {name: [] for name in names}
    n_cut = 0
    for begin in range(0, len(first), AT_ONCE):
        part = slice(begin, begin + AT_ONCE)
        encoded = tokenizer(
            list(first[part]),
            None if second is None else list(second[part]),
            truncation="longest_first",
            max_length=max_length,
            return_overflowing_tokens=True,
            return_attention_mask=False,
            verbose=False,
        )
        # An overflowing row is followed by its further pieces; the first piece is the row.
        owners = np.asarray(encoded["overflow_to_sample_mapping"])
        firsts = np.flatnonzero(np.diff(owners, prepend=-1))
        n_cut += len(np.unique(owners[np.flatnonzero(np.diff(owners, prepend=-1) == 0)]))
        lengths += [len(encoded["input_ids"][row]) for row in firsts]
        for name in names:
            flat = [token for row in firsts for token in encoded[name][row]]
            columns[name].append(np.array(flat, dtype=_dtype(name)))
    table = TokenTable(
        starts=np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int64),
        token_columns={name: np.concatenate([np.empty(0, _dtype(name)), *parts]) for name, parts in columns.items()},
        row_columns=dict(row_columns or {}),
    )
    return table, n_cut


def _dtype(name: str) -> type[np.int32] | type[np.int8]:
    return np.int8 if name == "token_type_ids" else np.int32


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
    and the steps shuffled: within a width, rows are grouped at random.

    Args:
        lengths: tokens of each row, (n,).
        samples_per_step: batch size × accumulation: micro-batches of one step have one width, hence one graph.
        bucket: what widths are multiples of.
    """
    n_steps = len(lengths) // samples_per_step
    order = epoch_order(len(lengths), seed=seed, epoch=epoch)[: n_steps * samples_per_step]
    widths = bucket_widths(lengths[order], bucket=bucket)
    by_width = np.argsort(widths, kind="stable")
    rows = order[by_width].reshape(n_steps, samples_per_step)
    step_widths = widths[by_width].reshape(n_steps, samples_per_step).max(axis=1)
    turn = random_stream(seed, "steps", epoch).permutation(n_steps)
    return EpochPlan(rows=rows[turn], widths=step_widths[turn])


class PaddedRows:
    """A table's rows on a device.

    Args:
        fills: what each token column is padded with; columns without an entry stay off the device.
        device: where batches are wanted; all tokens are there (4 bytes each, so even MNLI's are 80 MB).
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

    def widen(self, batch: Mapping[str, Tensor], width: int) -> Mapping[str, Tensor]:
        """A batch of this table with its token columns padded to `width`, as `pad` does."""
        more = width - batch["attention_mask"].shape[-1]
        if not more:
            return batch
        fills = {**self._fills, "attention_mask": 0}
        return {
            name: torch.nn.functional.pad(tensor, (0, more), value=fills[name]) if name in fills else tensor
            for name, tensor in batch.items()
        }

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
