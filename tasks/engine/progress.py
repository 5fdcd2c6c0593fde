"""What every run keeps besides its training: its place in the budget, and what it is a run of. Imports no torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tasks.config import TaskConfig
from tasks.errors import CheckpointError, TaskError


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
        """Take the place of a state of this very run.

        Raises:
            CheckpointError: the state is another run's; nothing was changed.
        """
        check_identity(state, self._identity)
        self._epoch, self._step = int(state["epoch"]), int(state["step"])


def identity(config: TaskConfig, *, optimizer: str, params: Mapping[str, Any], seed: int) -> dict[str, str]:
    """What a checkpoint must share with the run that resumes it, as plain text by field."""
    return {
        "task": config.name,
        "model": config.model,
        "optimizer": optimizer,
        "params": json.dumps(dict(params), sort_keys=True, default=list),
        "seed": str(seed),
        "config": config.model_dump_json(exclude={"name", "model", "acceleration"}),
    }


def check_identity(state: Mapping[str, Any], expected: Mapping[str, str]) -> None:
    """Refuse a state of another run.

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
    """Whether an earlier release, which lacked some fields, wrote this configuration: they had today's defaults."""
    try:
        return _is_part(json.loads(found), json.loads(value))
    except (TypeError, ValueError):
        return False


def _is_part(found: Any, whole: Any) -> bool:
    if isinstance(found, dict) and isinstance(whole, dict):
        return found.keys() <= whole.keys() and all(_is_part(found[name], whole[name]) for name in found)
    return bool(found == whole)
