"""What a task gives the engine: a model, batches, a loss and an evaluation. The engine knows no task by name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterator, Mapping
from pathlib import Path
from typing import Generic, Self, TypeVar

import torch
from torch import Tensor, nn

from tasks.config import TaskConfig

Batch = Mapping[str, Tensor]
"""Named tensors on the run's device, first dimension = samples. Equal shapes share one captured graph."""

ConfigT = TypeVar("ConfigT", bound=TaskConfig)


class Task(ABC, Generic[ConfigT]):
    """A data set made ready on one device, and what to do with it.

    An instance is loaded once a process (see `tasks.engine.cache`) and shared by all runs whose `cache_key` is equal,
    so it holds no state of a run: everything else comes as an argument.
    """

    memory_format: torch.memory_format = torch.preserve_format
    """The layout the engine gives the model; `torch.channels_last` for convolutional nets."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    @classmethod
    @abstractmethod
    def load(cls, config: ConfigT, *, data_dir: Path | None, device: torch.device) -> Self:
        """Read the data set and put it where training wants it.

        Args:
            data_dir: the data folder that `config.data_dir` is relative to; None where none was given.

        Raises:
            DataError: files are missing or broken.
        """

    @classmethod
    def cache_key(cls, config: ConfigT) -> Hashable:
        """The fields of the configuration that decide what `load` returns."""
        return (config.data_dir, config.split_seed)

    @classmethod
    def check(cls, config: ConfigT, *, data_dir: Path | None) -> None:
        """Refuse, before any trial starts, what could not be trained.

        Raises:
            ConfigError, DataError: with the reason and the next step.
        """
        task = cls.load(config, data_dir=data_dir, device=torch.device("cpu"))
        task.check_fit(config)

    @abstractmethod
    def check_fit(self, config: ConfigT) -> None:
        """Refuse a configuration that does not fit the loaded data (batch too large, model for other inputs)."""

    @abstractmethod
    def n_train(self, config: ConfigT) -> int:
        """Training samples an epoch draws from."""

    @abstractmethod
    def batches_per_epoch(self, config: ConfigT) -> int:
        """How many batches `train_batches` yields."""

    @abstractmethod
    def build_model(self, config: ConfigT) -> nn.Module:
        """A freshly initialised model on the CPU; draws only from torch's global generator, which the engine seeds."""

    @abstractmethod
    def train_batches(self, config: ConfigT, *, seed: int, epoch: int) -> Iterator[Batch]:
        """The batches of one epoch, a function of (config, seed, epoch) alone, so that a resume needs no position."""

    @abstractmethod
    def loss(self, model: nn.Module, batch: Batch, config: ConfigT) -> Tensor:
        """The mean training loss of a batch: a scalar, differentiable, no host reads (it is captured)."""

    @abstractmethod
    def evaluate(self, model: nn.Module, split: str, config: ConfigT) -> dict[str, float]:
        """Metrics of `split` ("val" or "test") without prefix; the model is in eval mode, gradients are off."""
