"""What a run is for the code that drives it (`search`): its methods, what an evaluation reports, its identity.

Imports no torch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Protocol

from tasks.config import TaskConfig
from tasks.errors import CheckpointError, TaskError


@dataclass(frozen=True)
class Cost:
    """What training took. The costs of epochs add up to that of a run, the costs of runs to that of a search.

    It stays one value from the engine to SQL: a new number needs a field here and a column there.

    Attributes:
        train_s, eval_s: wall seconds of training and of evaluation.
        optimizer_s: seconds of the optimizer steps alone; on a GPU sampled and scaled up.
        data_s: host seconds spent waiting for batches; part of `train_s`.
        gpu_s: seconds that a GPU was held; 0 on a CPU. A packed run is charged its share of the card.
        peak_memory_bytes: most device memory held; on a CPU the worker's peak resident set, whatever it ran before.
    """

    train_s: float = 0.0
    eval_s: float = 0.0
    optimizer_s: float = 0.0
    data_s: float = 0.0
    gpu_s: float = 0.0
    peak_memory_bytes: int = 0

    def __add__(self, other: Cost) -> Cost:
        both = {one.name: (getattr(self, one.name), getattr(other, one.name)) for one in fields(Cost)}
        return Cost(**{name: sum(pair) if Cost.adds_up(name) else max(pair) for name, pair in both.items()})

    @staticmethod
    def adds_up(name: str) -> bool:
        """Whether the field is a sum, as seconds are; of the others the largest counts."""
        return name.endswith("_s")


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
        held_bytes: device memory that this process holds, its context included; 0 on a CPU.
        device_bytes: memory of the device; 0 on a CPU.
    """

    epoch: int
    step: int
    metrics: Mapping[str, float]
    lr: float
    cost: Cost
    setup_s: float = 0.0
    samples_per_s: float = 0.0
    held_bytes: int = 0
    device_bytes: int = 0

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
        """For the run's record: device, versions, commit, precision, `step_status` as `step`."""

    def state_dict(self) -> dict[str, Any]:
        """Everything an exact resume needs; loads with `torch.load(weights_only=True)`."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`.

        Raises:
            CheckpointError: the state is of another task, model or optimizer.
        """

    def close(self) -> None:
        """Release device memory and child processes; may be called twice."""


class Progress:
    """Base of the runs: epochs and steps completed of a configuration's budget, and the run's identity."""

    def __init__(self, config: TaskConfig, *, optimizer: str, params: Mapping[str, Any], seed: int) -> None:
        self._n_epochs = config.epochs
        self._identity = identity(config, optimizer=optimizer, params=params, seed=seed)
        self._epoch = 0
        self._step = 0

    @property
    def epoch(self) -> int:
        """Epochs completed."""
        return self._epoch

    @property
    def step(self) -> int:
        """Optimizer steps completed."""
        return self._step

    @property
    def n_epochs(self) -> int:
        """Epochs in the full budget."""
        return self._n_epochs

    @property
    def done(self) -> bool:
        """Whether the budget is spent."""
        return self._epoch >= self._n_epochs

    def _check_budget(self) -> None:
        """Raises TaskError where no epoch is left."""
        if self.done:
            raise TaskError(f"the run has spent its {self._n_epochs} epochs; open a new run to train more")

    def _place(self) -> dict[str, Any]:
        """The part of the run's state that `_return_to` reads."""
        return {"identity": dict(self._identity), "epoch": self._epoch, "step": self._step}

    def _return_to(self, state: Mapping[str, Any]) -> None:
        """Take the position of a state of this run.

        Raises:
            CheckpointError: the state is another run's; nothing was changed.
        """
        check_identity(state, self._identity)
        self._epoch, self._step = int(state["epoch"]), int(state["step"])


def identity(config: TaskConfig, *, optimizer: str, params: Mapping[str, Any], seed: int) -> dict[str, str]:
    """What a checkpoint must have in common with the run that resumes it, as text by field."""
    return {
        "task": config.name,
        "model": config.model,
        "optimizer": optimizer,
        "params": json.dumps(dict(params), sort_keys=True, default=list),
        "seed": str(seed),
        "config": config.model_dump_json(exclude={"name", "model", "acceleration"}),
    }


def check_identity(state: Mapping[str, Any], expected: Mapping[str, str]) -> None:
    """Check that a state is of this run.

    Raises:
        CheckpointError: naming the first field that differs, with both values.
    """
    found = state.get("identity")
    if not isinstance(found, Mapping):
        raise CheckpointError("the checkpoint holds no run; it was not written by the training engine")
    for field, value in expected.items():
        if found.get(field) != value and not (field == "config" and _is_older(found.get(field), value)):
            raise CheckpointError(
                f"the checkpoint is of another run: its {field} is {found.get(field)!r}, this run's is {value!r}; "
                "resume with the configuration it was written with, or start without it"
            )


def _is_older(found: Any, value: str) -> bool:
    """Whether an earlier release wrote this configuration: it lacks fields, which had today's defaults."""
    try:
        return _is_part(json.loads(found), json.loads(value))
    except (TypeError, ValueError):
        return False


def _is_part(found: Any, whole: Any) -> bool:
    if isinstance(found, dict) and isinstance(whole, dict):
        return found.keys() <= whole.keys() and all(_is_part(found[name], whole[name]) for name in found)
    return bool(found == whole)
