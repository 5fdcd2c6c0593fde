"""What a run is to those who drive it (`search`), without torch: the verbs and what an evaluation reports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, astuple, dataclass
from typing import Any, Protocol


@dataclass(frozen=True)
class Cost:
    """What training took. The costs of epochs add up to that of a run, the costs of runs to that of a search.

    It stays one value from the engine to SQL: a new number needs a field here and a column there.

    Attributes:
        train_s, eval_s: wall seconds of training and of evaluation.
        optimizer_s: seconds of the optimizer steps alone; on a GPU sampled and scaled up.
        data_s: host seconds spent waiting for batches; part of `train_s`.
        gpu_s: seconds that a GPU was held; 0 on a CPU. A packed run is charged its share of the card.
    """

    train_s: float = 0.0
    eval_s: float = 0.0
    optimizer_s: float = 0.0
    data_s: float = 0.0
    gpu_s: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        return Cost(*(mine + its for mine, its in zip(astuple(self), astuple(other), strict=True)))


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """One report: an epoch of training and the evaluation that followed it.

    Attributes:
        epoch: epochs completed, from 1.
        step: optimizer steps completed since the start of the run.
        metrics: the task's `val_…` metrics and `train_loss` (mean over the epoch's steps).
        lr: the learning rate of the epoch's last step (of the first parameter group).
        cost: of this epoch, with its evaluation; `gpu_s` is that of a whole card.
        setup_s: seconds spent in this epoch on what happens once (capture, compilation); part of `cost.train_s`.
        samples_per_s: training samples a second, without `setup_s`.
        peak_memory_bytes: most device memory held since the run began (on a CPU: the process's peak resident set).
    """

    epoch: int
    step: int
    metrics: Mapping[str, float]
    lr: float
    cost: Cost
    setup_s: float
    samples_per_s: float
    peak_memory_bytes: int

    def as_dict(self) -> dict[str, Any]:
        """A plain dictionary of numbers, with `metrics` and `cost` nested."""
        return {**asdict(self), "metrics": dict(self.metrics)}


class Run(Protocol):
    """One training execution with one seed, advanced an epoch at a time by its caller."""

    @property
    def epoch(self) -> int:
        """Epochs completed."""

    @property
    def step(self) -> int:
        """Optimizer steps completed."""

    @property
    def n_epochs(self) -> int:
        """Epochs in the full budget."""

    @property
    def done(self) -> bool:
        """Whether the budget is spent."""

    @property
    def step_status(self) -> str:
        """How the steps run: in a graph, or eagerly and why. May change from epoch to epoch; costs nothing to ask."""

    def advance(self) -> Evaluation:
        """Train one epoch and evaluate on validation.

        Raises:
            Diverged: the loss became NaN or infinite.
            OutOfMemory: the device has no room.
        """

    def test(self) -> dict[str, float]:
        """The test set's metrics of the current weights, named `test_…`."""

    def environment(self) -> dict[str, Any]:
        """What the run's record needs to be judged: device, versions, commit, precision, `step_status` as `step`."""

    def state_dict(self) -> dict[str, Any]:
        """Everything an exact resume needs; loads with `torch.load(weights_only=True)`."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`.

        Raises:
            CheckpointError: the state is of another task, model or optimizer.
        """

    def close(self) -> None:
        """Give back device memory and child processes; may be called twice."""
