"""Several runs in one process, side by side on one card: each has its own network, stream, graphs and noise.

Kernels on different streams of one process run at the same time, as those of several processes do only under NVIDIA's
multi-process service (`tasks.engine.sharing`); without it these take turns. One thread launches the steps of all runs,
a few of each ahead, so that the card has work while a run is evaluated. Each run computes what it would alone.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch

from tasks.config import TaskConfig
from tasks.engine.protocol import Evaluation
from tasks.engine.run import Epoch, TrainingRun
from tasks.errors import TaskError

AHEAD = 3
"""Steps of a run that are launched before the first of them has ended."""


class SideBySide:
    """Holds up to `n_slots` runs. For one thread.

    Args:
        config: of the first run; all runs must have its precision and its `deterministic`.
        n_slots: runs at once.
        data_dir, device, threads: as of `tasks.runs.open_run`.

    Attributes:
        most: the most runs at once so far.
    """

    is_one_network: ClassVar[bool] = False
    """Whether what one run lacks, memory for example, all lack."""

    def __init__(
        self,
        config: TaskConfig,
        *,
        n_slots: int,
        data_dir: Path | None = None,
        device: str | None = None,
        threads: int = 1,
    ) -> None:
        self._where: dict[str, Any] = {"data_dir": data_dir, "device": device, "threads": threads}
        self._members: list[SideRun | None] = [None] * n_slots
        self._streams: dict[int, torch.cuda.Stream] = {}
        self.most = 0
        self._restore_torch: Callable[[], None] | None = None

    @property
    def n_free(self) -> int:
        """Slots that a run may take."""
        return self._members.count(None)

    def open(
        self, config: TaskConfig, *, optimizer: str, params: Mapping[str, Any], seed: int, init_from: Path | None = None
    ) -> SideRun:
        """A run at epoch 0 in a free slot; arguments and errors as of `tasks.runs.open_run`."""
        if not self.n_free:
            raise TaskError(f"all {len(self._members)} places of the process are taken; close a run first")
        slot = self._members.index(None)
        member = SideRun(
            self, slot, config, optimizer=optimizer, params=params, seed=seed, init_from=init_from, **self._where
        )
        self._members[slot] = member
        self.most = max(self.most, len(self._members) - self.n_free)
        return member

    def step(self) -> None:
        """Launch one more step of every run that is within an epoch and not far ahead; wait where all are."""
        training = [member for member in self._members if member is not None and member.is_training]
        launched = [member.launch_step() for member in training]
        if training and not any(launched):
            training[0].wait_for_step()

    def close(self) -> None:
        """Close all runs, and restore torch's settings."""
        for member in self._members:
            if member is not None:
                member.close()
        if self._restore_torch is not None:
            self._restore_torch()
            self._restore_torch = None

    # What the members call.

    def configure(self, configure: Callable[[], Callable[[], None]]) -> None:
        """Set torch as the first member asks, for all: a member that is closed must not take that from the others."""
        if self._restore_torch is None:
            self._restore_torch = configure()

    def stream(self, slot: int, device: torch.device) -> torch.cuda.Stream:
        """The slot's stream. Libraries keep a workspace for each stream, so that the next run of the slot has it."""
        if slot not in self._streams:
            self._streams[slot] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        return self._streams[slot]

    def free(self, slot: int) -> None:
        """Give a slot back."""
        self._members[slot] = None


class SideRun(TrainingRun):
    """A `tasks.engine.protocol.Run` beside others.

    `advance` trains it alone. To train several at once: call `begin` of each, `SideBySide.step` until none
    `is_training`, and `finish` of each.
    """

    def __init__(self, place: SideBySide, slot: int, config: TaskConfig, **options: Any) -> None:
        self._side_by_side = place
        self._slot = slot
        self._training: Epoch | None = None
        self._steps_left = 0
        self._error: Exception | None = None
        self._launched: deque[torch.cuda.Event] = deque()
        super().__init__(config, **options)

    @property
    def is_training(self) -> bool:
        """Whether the run has steps of its epoch to launch."""
        return self._steps_left > 0

    def advance(self) -> Evaluation:
        self.begin()
        while self.is_training:
            if not self.launch_step():
                self.wait_for_step()
        return self.finish()

    def begin(self) -> None:
        """Begin an epoch."""
        with self._guard("training"):
            self._training = self._begin_epoch()
        self._error, self._steps_left = None, self._steps_per_epoch

    def launch_step(self) -> bool:
        """Launch the epoch's next step, and return True; False where `AHEAD` are under way. An error ends the epoch."""
        while self._launched and self._launched[0].query():  # type: ignore[no-untyped-call]
            self._launched.popleft()
        if len(self._launched) >= AHEAD:
            return False
        assert self._training is not None
        try:
            with self._guard("training"):
                batches = self._prepare_step(self._training)
                with self._divergence():
                    self._stepper.run(batches)
                if self._stream is not None:
                    self._launched.append(torch.cuda.Event(blocking=True))  # type: ignore[no-untyped-call]
                    self._launched[-1].record()
            self._steps_left -= 1
        except Exception as error:  # noqa: BLE001 - `finish` raises it
            self._error, self._steps_left = error, 0
        return True

    def wait_for_step(self) -> None:
        """Wait for the oldest step under way."""
        if self._launched:
            self._launched.popleft().synchronize()

    def finish(self) -> Evaluation:
        """Evaluate after the epoch's last step; raises what ended the epoch early, Diverged or OutOfMemory."""
        assert self._training is not None
        assert not self.is_training
        epoch, self._training = self._training, None
        self._launched.clear()
        if self._error is not None:
            raise self._error
        return self._finish_epoch(epoch)

    def environment(self) -> dict[str, Any]:
        """As of any run, and that its process trains others."""
        return {**super().environment(), "side_by_side": {"runs": self._side_by_side.most}}

    def close(self) -> None:
        """Free the slot; may be called twice."""
        if not self._closed:
            self._steps_left = 0
            self._launched.clear()
            with self._guard("closing"):
                super().close()
            self._side_by_side.free(self._slot)

    # What the run does otherwise beside others.

    def _configure_torch(self) -> Callable[[], None]:
        self._side_by_side.configure(super()._configure_torch)
        return lambda: None

    def _open_stream(self) -> torch.cuda.Stream | None:
        self._noise = _Noise(self._device)
        on_card = self._device.type == "cuda"
        return self._side_by_side.stream(self._slot, self._device) if on_card else None

    @contextlib.contextmanager
    def _guard(self, phase: str) -> Iterator[None]:
        with super()._guard(phase), self._noise.in_use():
            yield

    def _memory_bytes(self) -> tuple[int, int, int]:
        """An equal part of the process's: its most memory so far by its most runs at once so far."""
        peak, held, whole = super()._memory_bytes()
        return peak // self._side_by_side.most, held // self._side_by_side.most, whole


class _Noise:
    """A run's own state of the generator that dropout draws from, in place of the process's while it is in use."""

    def __init__(self, device: torch.device) -> None:
        self._depth = 0
        self._generator = torch.Generator(device)
        # A graph keeps the state that the default generator had as it was captured, so a card's is exchanged and not
        # copied. torch has no such exchange for the CPU's.
        self._default = None if device.type == "cpu" else torch.cuda.default_generators[device.index or 0]

    @contextlib.contextmanager
    def in_use(self) -> Iterator[None]:
        """A block that draws from it; may be nested."""
        self._depth += 1
        if self._depth == 1:
            self._exchange()
        try:
            yield
        finally:
            if self._depth == 1:
                self._exchange()
            self._depth -= 1

    def _exchange(self) -> None:
        if self._default is None:
            state = self._generator.get_state()
            self._generator.set_state(torch.get_rng_state())
            torch.set_rng_state(state)
            return
        own: Any = self._generator.graphsafe_get_state()
        theirs: Any = self._default.graphsafe_get_state()
        self._default.graphsafe_set_state(own)
        self._generator.graphsafe_set_state(theirs)
