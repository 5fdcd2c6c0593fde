"""The errors of `tasks`, all under one base.

TaskError
├── UnknownTaskError      no task of that name
├── ConfigError           a configuration that cannot be trained, known before training
├── DataError             a data set that is missing, broken or does not fit the task
├── CheckpointError       a damaged checkpoint, or one of another run
│   └── UnreadableError   the storage could not be read
├── CannotStackError      a model that cannot be trained in a cohort
├── NanFromAnotherRun     another run of the cohort diverged, and made this one NaN, perhaps: no result
│   └── NanInSeveralRuns  which run of the cohort diverged is not known
├── OutOfMemory           the device has no room for this run
├── RankLost              a process of a run over several cards died
├── OwnCodeError          own training code raised, or broke a rule
├── EndedEarly            own training code ended before its last epoch: a result, not a crash
└── Diverged              the loss became NaN or infinite: a result, not a crash
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from functools import partial


class TaskError(Exception):
    """Base of every error that `tasks` raises on purpose."""


class UnknownTaskError(TaskError):
    """No task is registered under this name."""

    def __init__(self, name: str, known: Iterable[str]) -> None:
        self.name = name
        self.known = sorted(known)
        super().__init__(f"unknown task {name!r}; known tasks: {', '.join(self.known)}.{nearest(name, self.known)}")

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        """Both arguments: the error is sent between processes."""
        return (UnknownTaskError, (self.name, self.known))


class ConfigError(TaskError):
    """The configuration cannot be trained (a batch larger than the training set, a model that does not fit)."""


class CannotStackError(TaskError):
    """The model or the run cannot be trained as part of a cohort; it can be on its own."""


class NanFromAnotherRun(TaskError):  # noqa: N818 - an event
    """The run's values became NaN or infinite after another run of the cohort diverged, perhaps because of that one.

    Some kernels multiply one slot's values by zeros for another's, and infinity times zero is NaN. The run did not
    fail; its state must not be saved.
    """


class NanInSeveralRuns(NanFromAnotherRun):
    """Several runs of the cohort became NaN or infinite in one step. On its own each has a certain result."""


class DataError(TaskError):
    """The data set is missing, broken, or does not fit the task."""


class CheckpointError(TaskError):
    """A checkpoint is damaged, of another program, or of another model, optimizer or task."""


class UnreadableError(CheckpointError):
    """A checkpoint could not be read, for example because the storage is unreachable; it may be intact."""


class OutOfMemory(TaskError):  # noqa: N818 - a state of a run
    """The device ran out of memory; only this run fails, and it may succeed with fewer trials on the card."""

    def __init__(self, *, phase: str, device: str, detail: str) -> None:
        self.phase = phase
        self.device = device
        self.detail = detail
        super().__init__(
            f"out of memory on {device} during {phase}: {detail}. "
            "Run fewer trials on one card (a larger resources.gpus), or lower batch_size or the model's size."
        )

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        """Keyword arguments are not pickled by default, and the error is sent from a worker to the driver."""
        return (partial(OutOfMemory, phase=self.phase, device=self.device, detail=self.detail), ())


class RankLost(TaskError):  # noqa: N818 - an event
    """A process of a run over several cards died or failed; the run may succeed in another attempt."""


class OwnCodeError(TaskError):
    """Own training code raised an error, or broke a rule of `tasks.own.context.Context`."""


class EndedEarly(TaskError):  # noqa: N818 - a result of a run
    """Own training code ended, as it had reported some of its epochs."""


class Diverged(TaskError):  # noqa: N818 - a result of a run
    """The loss (or the validation loss) became NaN or infinite at an optimizer step."""

    def __init__(self, step: int, *, loss: float, what: str = "loss") -> None:
        self.step = step
        self.loss = loss
        self.what = what
        super().__init__(f"diverged at step {step}: {what} is {loss}")

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        """As of `OutOfMemory`."""
        return (partial(Diverged, self.step, loss=self.loss, what=self.what), ())


def nearest(name: str, known: Iterable[str], *, cutoff: float = 0.5) -> str:
    """` Did you mean 'x'?`, or the empty string where nothing known resembles `name` by `cutoff`, 1 being equal."""
    close = difflib.get_close_matches(str(name), list(known), n=1, cutoff=cutoff)
    return f" Did you mean {close[0]!r}?" if close else ""
