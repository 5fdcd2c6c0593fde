"""What a task gives the engine: a model, batches, a loss and an evaluation. The engine knows no task by name.

Loaded data sets are cached in the process, as a reused worker runs many trials on one of them.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

import torch
from torch import Tensor, nn

from tasks.config import TaskConfig
from tasks.errors import ConfigError
from tasks.registry import get, load_target

Split = Literal["val", "test"]

Batch = Mapping[str, Tensor]
"""Named tensors on the run's device, first dimension = samples. Equal shapes share one captured graph."""

ConfigT = TypeVar("ConfigT", bound=TaskConfig)
DataT = TypeVar("DataT")


class Task(ABC, Generic[ConfigT, DataT]):
    """A configuration bound to a data set that is ready on one device; holds no state of a run.

    The data set is loaded once a process (see `tasks.engine.task`) and shared by all runs whose `cache_key` is equal.
    """

    memory_format: torch.memory_format = torch.preserve_format
    """The layout the engine gives the model; `torch.channels_last` for convolutional nets."""

    bf16_weights: Literal["layers", "all"] = "layers"
    """What bf16 is: "layers", autocast, which keeps norms and sums float32; or "all", every weight, without autocast
    (`tasks.engine.transforms`), as transformers are trained. Evaluations of "all" use the float32 weights and TF32."""

    compile_shapes: Literal["one", "many"] = "one"
    """For torch.compile: code for the training batch's shape, or one code for batches of many shapes."""

    def __init__(self, config: ConfigT, data: DataT, *, device: torch.device) -> None:
        self.config = config
        self.data = data
        self.device = device

    @classmethod
    @abstractmethod
    def load(cls, config: ConfigT, *, data_dir: Path | None, device: torch.device) -> DataT:
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

    @property
    @abstractmethod
    def n_train(self) -> int:
        """Training samples an epoch draws from."""

    @property
    def batches_per_epoch(self) -> int:
        """How many batches `train_batches` yields; by default full ones only (drop_last)."""
        return self.n_train // self.config.batch_size

    @abstractmethod
    def build_model(self) -> nn.Module:
        """A freshly initialised model on the CPU; draws only from torch's global generator, which the engine seeds."""

    def compile_regions(self, model: nn.Module) -> Sequence[nn.Module]:
        """The modules that torch.compile takes one by one; repeated blocks share their compiled code.

        By default the members of `model.blocks` where there is such a sequence, or else the whole model.
        """
        blocks = getattr(model, "blocks", None)
        return list(blocks) if isinstance(blocks, nn.Sequential | nn.ModuleList) else [model]

    @abstractmethod
    def train_batches(self, *, seed: int, epoch: int) -> Iterator[Batch]:
        """The batches of one epoch, a function of (configuration, seed, epoch), so a resume needs no position."""

    @abstractmethod
    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """The mean training loss of a batch: a scalar, differentiable, without host reads (it is captured)."""

    def loss_terms(self, batch: Batch) -> Tensor | None:
        """How many terms `loss` is the mean of, without host reads, where batches of one shape differ in that; or None.

        Micro-batches and the shares of ranks are weighted by it.
        """
        return None

    def align(self, batches: Sequence[Batch]) -> Sequence[Batch]:
        """Batches of one shape, so that they can be stacked (`tasks.engine.cohort`), from those of several runs."""
        return batches

    def in_a_stack(self) -> contextlib.AbstractContextManager[None]:
        """A context in which `loss` is of a stacked model (`tasks.engine.stacked_model`)."""
        return contextlib.nullcontext()

    @abstractmethod
    def evaluate(self, model: nn.Module, split: Split) -> dict[str, float]:
        """Metrics of a split, without prefix; the model is in eval mode, gradients are off."""

    def record(self) -> dict[str, Any]:
        """What the run's record should say of the data."""
        return {"n_train": self.n_train}

    def check_metric(self, metric: str) -> None:
        """Check that the validation set defines a metric.

        Args:
            metric: without the split's prefix: "mcc".

        Raises:
            DataError: with the reason and the next step.
        """

    def check_fit(self) -> None:
        """Check that the configuration fits the loaded data; overriding methods call this first.

        Raises:
            ConfigError: with the reason and the next step.
        """
        need = self.config.batch_size * self.config.accumulation
        if need > self.n_train:
            raise ConfigError(
                f"batch_size × accumulation is {need}, more than the {self.n_train} training samples of "
                f"{self.config.name!r}; lower batch_size or accumulation"
            )

    def check_model(self) -> None:
        """Check that the model takes the data's batches. Called once a study, and not for each run.

        Raises:
            ConfigError: with the reason and the next step.
        """


def find_longest_stack(model: nn.Module) -> Sequence[nn.Module]:
    """The layers of a model's longest `nn.ModuleList`; the model itself where there is none."""
    stacks = [list(module) for module in model.modules() if isinstance(module, nn.ModuleList) and len(module) > 1]
    return max(stacks, key=len, default=[model])


MAX_LOADED = 2
_loaded: OrderedDict[Hashable, Any] = OrderedDict()


def load_task(config: TaskConfig, *, data_dir: Path | None, device: torch.device) -> Task[Any, Any]:
    """The task of this configuration on this device, over data from the cache or freshly loaded.

    At most `MAX_LOADED` data sets are kept; the least recently used is released first.

    Raises:
        DataError: the data set is missing or broken.
    """
    target = get(config.name).target
    if target is None:
        raise TypeError(f"task {config.name!r} has its own run class and no engine task")
    task_class: type[Task[Any, Any]] = load_target(target)
    key = (target, str(data_dir), str(device), task_class.cache_key(config))
    if key not in _loaded:
        while len(_loaded) >= MAX_LOADED:
            _loaded.popitem(last=False)
        _loaded[key] = task_class.load(config, data_dir=data_dir, device=device)
    _loaded.move_to_end(key)
    return task_class(config, _loaded[key], device=device)


def release_data() -> None:
    """Release every cached data set and its device memory."""
    _loaded.clear()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()  # does nothing if CUDA was never used
