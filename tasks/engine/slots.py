"""Slots for several runs in one process, and a run in a slot: what cohorts and runs side by side have in common.

A cohort (`tasks.engine.cohort`) is one stacked model; side by side (`tasks.engine.side_by_side`) each run has its own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from tasks.config import TaskConfig
from tasks.engine.protocol import Evaluation
from tasks.engine.run import Epoch, TrainingRun
from tasks.errors import TaskError

Member = TypeVar("Member", bound="SlotRun")


class Slots(ABC, Generic[Member]):
    """Holds up to `n_slots` runs, and trains them at the same time. For one thread.

    Args:
        config: of the first run.
        n_slots: runs at once.
        data_dir, device, threads: as of `tasks.runs.open_run`.

    Attributes:
        most: the most runs at once so far.
    """

    is_one_network: ClassVar[bool]
    """Whether what one run lacks, memory for example, all lack."""
    name: ClassVar[str]
    """Of the slots, in a message."""

    def __init__(
        self,
        config: TaskConfig,
        *,
        n_slots: int,
        data_dir: Path | None = None,
        device: str | None = None,
        threads: int = 1,
    ) -> None:
        self.n_slots = n_slots
        self.most = 0
        self._config = config
        self._where: dict[str, Any] = {"data_dir": data_dir, "device": device, "threads": threads}
        self._by_slot: list[Member | None] = [None] * n_slots
        self._restore_torch: Callable[[], None] | None = None

    @property
    def n_free(self) -> int:
        """Slots that a run may take."""
        return self._by_slot.count(None)

    def open(
        self, config: TaskConfig, *, optimizer: str, params: Mapping[str, Any], seed: int, init_from: Path | None = None
    ) -> Member:
        """A run at epoch 0 in a free slot; arguments as of `tasks.runs.open_run`.

        Raises:
            CannotStackError: a cohort's model cannot be stacked, or the run does not fit the others.
            TaskError: as `open_run`; or no slot is free.
        """
        if not self.n_free:
            raise TaskError(f"all {self.n_slots} {self.name} are taken; close a run first")
        slot = self._by_slot.index(None)
        member = self._open(
            slot, config, optimizer=optimizer, params=params, seed=seed, init_from=init_from, **self._where
        )
        self._by_slot[slot] = member
        self.most = max(self.most, len(self._members))
        return member

    @abstractmethod
    def step(self) -> None:
        """Train the runs that are within an epoch a little further; a run's error ends its own epoch alone."""

    def close(self) -> None:
        """Close all runs, release what they shared, and restore torch's settings."""
        for member in self._members:
            member.close()
        self._release()
        if self._restore_torch is not None:
            self._restore_torch()
            self._restore_torch = None

    @abstractmethod
    def _open(self, slot: int, config: TaskConfig, **options: Any) -> Member: ...

    @property
    def _members(self) -> list[Member]:
        """The runs that are open, in the order of their slots."""
        return [member for member in self._by_slot if member is not None]

    def _release(self) -> None:
        """Release what the runs shared, after all are closed."""

    # What the members call.

    def configure(self, configure: Callable[[], Callable[[], None]]) -> None:
        """Set torch as the first member asks, for all: a member that is closed must not take that from the others."""
        if self._restore_torch is None:
            self._restore_torch = configure()

    def free(self, slot: int) -> None:
        """Give a slot back."""
        self._by_slot[slot] = None


class SlotRun(TrainingRun):
    """A `tasks.engine.protocol.Run` in a slot.

    To train several at once: call `begin` of each, `Slots.step` until none `is_training`, and `finish` of each.

    Attributes:
        slot: its number.
    """

    def __init__(self, slots: Slots[Any], slot: int, config: TaskConfig, **options: Any) -> None:
        self.slot = slot
        self._slots = slots
        self._training: Epoch | None = None
        self._steps_left = 0
        self._error: Exception | None = None
        super().__init__(config, **options)

    @property
    def is_training(self) -> bool:
        """Whether the run has steps of its epoch to make."""
        return self._steps_left > 0

    def begin(self) -> None:
        """Begin an epoch."""
        with self._guard("training"):
            self._training = self._begin_epoch()
        self._error, self._steps_left = None, self._steps_per_epoch

    def finish(self) -> Evaluation:
        """Evaluate after the epoch's last step; raises what ended the epoch early, Diverged or OutOfMemory."""
        epoch = self._take_epoch()
        if self._error is not None:
            raise self._error
        return self._finish_epoch(epoch)

    def fail(self, error: Exception) -> None:
        """End the epoch by an error, which `finish` raises."""
        self._error, self._steps_left = error, 0

    def _take_epoch(self) -> Epoch:
        """The epoch that has ended; the next one may begin."""
        assert self._training is not None
        assert not self.is_training
        epoch, self._training = self._training, None
        return epoch

    def _configure_torch(self) -> Callable[[], None]:
        self._slots.configure(super()._configure_torch)
        return lambda: None
