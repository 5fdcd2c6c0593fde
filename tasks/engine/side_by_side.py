"""Several runs in one process, side by side on one card: each has its own network, stream, graphs and noise.

Kernels on different streams of one process run at the same time, as those of several processes do only under NVIDIA's
multi-process service (`tasks.engine.sharing`); without it these take turns. One thread launches the steps of all runs,
a few of each ahead, so that the card has work while a run is evaluated. Each run computes what it would alone.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator
from typing import Any

import torch

from tasks.config import TaskConfig
from tasks.engine.protocol import Evaluation
from tasks.engine.slots import SlotRun, Slots

AHEAD = 5
"""Steps of a run that are launched before the first of them has ended: the card's work while another is evaluated."""


class SideBySide(Slots["SideRun"]):
    """Slots of which each has a stream. All runs must have the first one's precision and its `deterministic`."""

    is_one_network = False
    name = "places of the process"

    def __init__(self, config: TaskConfig, **options: Any) -> None:
        super().__init__(config, **options)
        self._streams: dict[int, torch.cuda.Stream] = {}

    def step(self) -> None:
        """Launch one more step of every run that is within an epoch and not far ahead; wait where all are."""
        training = [member for member in self._members if member.is_training]
        launched = [member.launch_step() for member in training]
        if training and not any(launched):
            training[0].wait_for_step()

    def _open(self, slot: int, config: TaskConfig, **options: Any) -> SideRun:
        return SideRun(self, slot, config, **options)

    def stream(self, slot: int, device: torch.device) -> torch.cuda.Stream:
        """The slot's stream. Libraries keep a workspace for each stream, so that the next run of the slot has it."""
        if slot not in self._streams:
            self._streams[slot] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        return self._streams[slot]


class SideRun(SlotRun):
    """A run beside others. `advance` trains it alone."""

    def __init__(self, place: SideBySide, slot: int, config: TaskConfig, **options: Any) -> None:
        self._side_by_side = place
        self._launched: deque[torch.cuda.Event] = deque()
        super().__init__(place, slot, config, **options)

    def advance(self) -> Evaluation:
        self.begin()
        while self.is_training:
            if not self.launch_step():
                self.wait_for_step()
        return self.finish()

    @property
    def is_training(self) -> bool:
        """Whether steps of the epoch are to be launched or under way.

        `finish` waits for those under way, and meanwhile launches nothing for the others.
        """
        return super().is_training or bool(self._launched)

    def launch_step(self) -> bool:
        """Launch the epoch's next step, and return True; False where none is left, or `AHEAD` are under way.

        An error ends the epoch.
        """
        while self._launched and self._launched[0].query():  # type: ignore[no-untyped-call]
            self._launched.popleft()
        if not self._steps_left or len(self._launched) >= AHEAD:
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
            self.fail(error)
        return True

    def wait_for_step(self) -> None:
        """Wait for the oldest step under way."""
        if self._launched:
            self._launched.popleft().synchronize()

    def fail(self, error: Exception) -> None:
        super().fail(error)
        self._launched.clear()

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
            self._side_by_side.free(self.slot)

    # What the run does otherwise beside others.

    def _open_stream(self) -> torch.cuda.Stream | None:
        self._noise = _Noise(self._device)
        on_card = self._device.type == "cuda"
        return self._side_by_side.stream(self.slot, self._device) if on_card else None

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
        self._default = None
        if device.type == "cuda":
            # The first run of a process comes before any work on the card, with which torch makes its generators.
            torch.cuda.init()  # type: ignore[no-untyped-call]
            self._default = torch.cuda.default_generators[device.index or 0]

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
