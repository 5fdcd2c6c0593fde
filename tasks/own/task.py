"""A data set and a model of the user's own, in the engine: tensors in memory, classes or values as labels.

Also models that other tasks have by import path: making one, and checking what it returns.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from admeta.errors import ImportPathError
from admeta.imports import code_lines, in_words, load
from tasks.config import resolve_inside
from tasks.data.hold_out import hold_out
from tasks.engine.device import place_array
from tasks.engine.seeds import epoch_order
from tasks.engine.task import Batch, Split, Task
from tasks.errors import ConfigError, DataError
from tasks.metrics import classification_metrics
from tasks.own import OwnConfig

EVAL_BATCH = 1000


@dataclass(frozen=True)
class OwnSplit:
    """Inputs (n, …) of any type, and labels: int64 (n,) of classes, or floating (n, …) of values."""

    inputs: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True, kw_only=True)
class OwnData:
    """The splits, placed for training. `n_classes` is 0 where labels are values."""

    train: OwnSplit
    val: OwnSplit
    test: OwnSplit
    n_classes: int


class OwnTask(Task[OwnConfig, OwnData]):
    """Cross-entropy and accuracy of classes, or the mean squared error of values."""

    @classmethod
    def load(cls, config: OwnConfig, *, data_dir: Path | None, device: torch.device) -> OwnData:
        try:
            returned = load(config.data)(_folder(config, data_dir))
        except ImportPathError as error:
            raise ConfigError(f"task.data: {error}") from error
        except (Exception, SystemExit) as error:  # of the user's code
            raise DataError(f"task.data: '{config.data}' raised {explained(config.data, error)}") from error
        splits = _splits(returned, name=config.data)
        if "val" not in splits:
            splits |= _held_out(splits["train"], config)
        labels = [split.labels for split in splits.values()]
        n_classes = 0 if labels[0].is_floating_point() else 1 + max(int(found.max()) for found in labels)
        placed = {
            name: OwnSplit(*(place_array(tensor.numpy(), device=device) for tensor in (split.inputs, split.labels)))
            for name, split in splits.items()
        }
        return OwnData(**placed, n_classes=n_classes)

    @classmethod
    def cache_key(cls, config: OwnConfig) -> Hashable:
        return (super().cache_key(config), config.data, config.val_fraction)

    @property
    def n_train(self) -> int:
        return len(self.data.train)

    def build_model(self) -> nn.Module:
        return build_own(self.config.model, **self.config.settings)

    def check_model(self) -> None:
        split, n_classes = self.data.train, self.data.n_classes
        want = (2, n_classes) if n_classes else (2, *split.labels.shape[1:])
        model = self.build_model()
        check_output(model, split.inputs[:2].cpu(), want=want, name=self.config.model)
        for name in ("train", "val", "test"):
            self._check_inputs(model, getattr(self.data, name).inputs, split=name)

    def _check_inputs(self, model: nn.Module, inputs: Tensor, *, split: str) -> None:
        """Refuse inputs that are not finite, unless the model takes them: every loss over them would be NaN."""
        rows = _not_finite(inputs)
        if not len(rows):
            return
        with torch.no_grad():
            found = model(inputs[[rows[0], rows[-1]]].cpu())  # as `check_output` left it
        if not found.isfinite().all():
            raise DataError(
                f"task.data: '{split}' of '{self.config.data}' has NaN or infinite values in {len(rows)} of "
                f"{len(inputs)} inputs, and '{self.config.model}' returns none that are finite for them; replace or "
                "remove them"
            )

    def check_metric(self, metric: str) -> None:
        if metric == "accuracy" and not self.data.n_classes:
            raise DataError(
                f"val_accuracy is of classes, and the labels of '{self.config.data}' are values (floating point); set "
                "objective: {metric: val_loss}, or return labels of int64"
            )

    def train_batches(self, *, seed: int, epoch: int) -> Iterator[Batch]:
        """Batches {"inputs", "labels"} in an order of the seed and the epoch; incomplete ones are dropped."""
        size, split = self.config.batch_size, self.data.train
        order = torch.from_numpy(epoch_order(self.n_train, seed=seed, epoch=epoch)).to(split.inputs.device)
        for begin in range(0, self.batches_per_epoch * size, size):
            rows = order[begin : begin + size]
            inputs, labels = split.inputs[rows], split.labels[rows.to(split.labels.device)]
            yield {"inputs": inputs.to(self.device, non_blocking=True), "labels": labels.to(self.device)}

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        found, labels = model(batch["inputs"]).float(), batch["labels"]
        if self.data.n_classes:
            return nn.functional.cross_entropy(found, labels, label_smoothing=self.config.label_smoothing)
        return nn.functional.mse_loss(found, labels.float())

    def evaluate(self, model: nn.Module, split: Split) -> dict[str, float]:
        part: OwnSplit = getattr(self.data, split)
        starts = range(0, len(part), EVAL_BATCH)
        found = torch.cat([model(part.inputs[i : i + EVAL_BATCH].to(self.device)).float() for i in starts])
        labels = part.labels.to(self.device)
        if self.data.n_classes:
            return classification_metrics(found, labels)
        return {"loss": float(nn.functional.mse_loss(found, labels.float()))}

    def record(self) -> dict[str, Any]:
        return {**super().record(), "n_val": len(self.data.val), "n_test": len(self.data.test)}


def _folder(config: OwnConfig, data_dir: Path | None) -> Path | None:
    if config.data_dir is None or data_dir is None:
        return data_dir
    return resolve_inside(data_dir, config.data_dir)


def _splits(returned: Any, *, name: str) -> dict[str, OwnSplit]:
    """What the user's function returned, checked."""
    if not isinstance(returned, Mapping) or not {"train", "test"} <= returned.keys() <= {"train", "val", "test"}:
        found = sorted(returned) if isinstance(returned, Mapping) else type(returned).__name__
        raise DataError(f"task.data: '{name}' must return a dict of train, test and perhaps val; it returned {found}")
    splits = {split: _split(pair, what=f"task.data: '{split}' of '{name}'") for split, pair in returned.items()}
    kinds = {(split.labels.dtype, split.inputs.shape[1:], split.labels.shape[1:]) for split in splits.values()}
    if len(kinds) > 1:
        raise DataError(f"task.data: the splits of '{name}' differ in the shape or the type of their tensors")
    return splits


def _split(pair: Any, *, what: str) -> OwnSplit:
    pair = getattr(pair, "tensors", pair)  # a TensorDataset
    if not isinstance(pair, tuple | list) or len(pair) != 2 or not all(isinstance(one, Tensor) for one in pair):
        raise DataError(f"{what} must be two tensors, inputs and labels, or a TensorDataset of them")
    inputs, labels = (one.detach().cpu().contiguous() for one in pair)
    if len(inputs) != len(labels) or len(inputs) == 0:
        raise DataError(f"{what} has {len(inputs)} inputs and {len(labels)} labels; it must have as many, and some")
    if labels.is_floating_point() and (n := len(_not_finite(labels))):
        raise DataError(f"{what} has NaN or infinite values in {n} of {len(labels)} labels; replace or remove them")
    is_class = labels.dtype == torch.int64 and labels.ndim == 1 and int(labels.min()) >= 0
    if not is_class and not labels.is_floating_point():
        raise DataError(
            f"{what} has labels of {labels.dtype} {tuple(labels.shape)}; classes are int64 (n,) from 0, values floating"
        )
    return OwnSplit(inputs, labels)


def _not_finite(values: Tensor) -> list[int]:
    """The rows in which a value is NaN or infinite; found in parts, since a mask of all would take much memory."""
    parts = (values[i : i + EVAL_BATCH].unsqueeze(-1) for i in range(0, len(values), EVAL_BATCH))
    found: list[int] = torch.cat([~part.flatten(1).isfinite().all(1) for part in parts]).nonzero().flatten().tolist()
    return found


def _held_out(train: OwnSplit, config: OwnConfig) -> dict[str, OwnSplit]:
    """The training set without its validation rows, and these."""
    classes = np.zeros(len(train), dtype=np.int64) if train.labels.is_floating_point() else train.labels.numpy()
    kept, held = hold_out(
        classes, fraction=config.val_fraction, seed=config.split_seed, what="training example", field="val_fraction"
    )
    rows = {"train": torch.from_numpy(kept), "val": torch.from_numpy(held)}
    return {name: OwnSplit(train.inputs[chosen], train.labels[chosen]) for name, chosen in rows.items()}


def build_own(path: str, *args: Any, **settings: Any) -> nn.Module:
    """The model that the class or function at an import path makes of these arguments.

    Raises:
        ConfigError: it cannot be imported, raises, or makes no module that can be trained.
    """
    try:
        make = load(path)
        if isinstance(make, nn.Module):
            raise ConfigError(f"task.model: '{path}' is a model already; name its class, or a function that makes one")
        model = make(*args, **settings)
    except ConfigError:
        raise
    except ImportPathError as error:
        raise ConfigError(f"task.model: {error}") from error
    except (Exception, SystemExit) as error:  # of the user's code
        given = ", ".join([*map(repr, args), *(f"{name}={value!r}" for name, value in settings.items())])
        raise ConfigError(f"task.model: '{path}' called with ({given}) raised {explained(path, error)}") from error
    if not isinstance(model, nn.Module):
        raise ConfigError(f"task.model: '{path}' made a {type(model).__name__}; it must make a torch.nn.Module")
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ConfigError(
            f"task.model: '{path}' has no parameter to train; make its layers attributes of the module: self.layer = …"
        )
    return model


def check_output(model: nn.Module, inputs: Tensor, *, want: tuple[int, ...], name: str) -> None:
    """Check that the model returns a tensor of that shape for these inputs; raises ConfigError."""
    try:
        with torch.no_grad():
            found = model.eval()(inputs)
    except (Exception, SystemExit) as error:  # of the user's code
        raise ConfigError(
            f"task.model: '{name}' does not take a batch of shape {tuple(inputs.shape)}: {explained(name, error)}"
        ) from error
    shape = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
    if shape != want:
        raise ConfigError(
            f"task.model: '{name}' returned {shape} for a batch of shape {tuple(inputs.shape)}; it must return {want}"
        )


def explained(path: str, error: BaseException) -> str:
    """An error of code at an import path, with its lines there."""
    return f"{in_words(error)}{code_lines(error, path.partition(':')[0].partition('.')[0])}{_relative(error)}"


def _relative(error: BaseException) -> str:
    """What to know of a relative path that is not there: workers do not run where the user tried the code."""
    name = error.filename if isinstance(error, FileNotFoundError) else None
    if not isinstance(name, str) or Path(name).is_absolute():
        return ""
    return (
        f"; relative paths begin at {Path.cwd()} in a worker: keep data in the service's data folder, and open it there"
    )
