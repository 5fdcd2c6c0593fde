"""Batch norm as the engine has it: without its batch counter, and over all cards of a run."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

_COUNTER = "num_batches_tracked"


def drop_batch_counters(model: nn.Module) -> None:
    """Remove `num_batches_tracked` from every norm whose running statistics have a fixed momentum.

    One launch fewer a norm and step. The counter only serves cumulative averages (momentum None); torch skips its
    update where it is None.
    """
    for module in model.modules():
        if isinstance(module, _BatchNorm) and module.momentum is not None:
            module.num_batches_tracked = None


def is_batch_counter(name: str) -> bool:
    """Whether an entry of a state dict is such a counter, as other programs' checkpoints have."""
    return name.rpartition(".")[2] == _COUNTER


def share_batch_norm(model: nn.Module, *, compiled: bool) -> nn.Module:
    """The model with batch norms over the samples of all ranks, so that how many there are changes no result.

    Torch's own, which needs its batch counter, and cards; all parameters and buffers stay the model's.

    Args:
        compiled: parts of the model will be; these norms run eagerly between them, as they wait for other processes.
    """
    shared: nn.Module = nn.SyncBatchNorm.convert_sync_batchnorm(model)  # type: ignore[no-untyped-call]
    if compiled:
        for module in shared.modules():
            if isinstance(module, nn.SyncBatchNorm):
                module.forward = torch.compiler.disable(module.forward)  # type: ignore[method-assign, no-untyped-call]
    return shared
