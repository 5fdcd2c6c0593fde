"""Batch norm without its batch counter: one launch fewer a norm and step, and nothing reads the counter."""

from __future__ import annotations

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

_COUNTER = "num_batches_tracked"


def drop_batch_counters(model: nn.Module) -> None:
    """Remove `num_batches_tracked` from every norm whose running statistics have a fixed momentum.

    The counter only serves cumulative averages (momentum None); torch skips its update where it is None.
    """
    for module in model.modules():
        if isinstance(module, _BatchNorm) and module.momentum is not None:
            module.num_batches_tracked = None


def is_batch_counter(name: str) -> bool:
    """Whether an entry of a state dict is such a counter, as other programs' checkpoints have."""
    return name.rpartition(".")[2] == _COUNTER
