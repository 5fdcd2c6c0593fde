"""The stacked model: one network whose parameters hold those of several runs' models, and the loss of every slot by it.

Each parameter of the stacked model is (slots, …). `torch.func` makes the stacked pass from the task's own loss:
convolutions become grouped ones and matrix products batched ones.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

from tasks.engine.device import first_words, is_out_of_memory
from tasks.engine.optimizers import first_batch
from tasks.engine.task import Batch, Task

N_SAMPLES = 4  # of a batch, for the pass that tries whether a model can be stacked
TOLERANCE = 0.02  # of its losses; bf16 rounds to 3 digits


def stack_model(model: nn.Module, n_slots: int) -> nn.Module:
    """A model of the same modules whose parameters and floating buffers are (n_slots, …), each slot a copy.

    In memory a slot has the layout of the model's own parameter (channels last, for example).
    """
    stacked = copy.deepcopy(model).train()
    wide: dict[int, nn.Parameter] = {}
    for module in stacked.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.forward = _without_cudnn(module.forward)  # type: ignore[assignment]
        for name, parameter in module._parameters.items():
            if parameter is not None:
                new = nn.Parameter(_widen(parameter.detach(), n_slots), requires_grad=parameter.requires_grad)
                module._parameters[name] = wide.setdefault(id(parameter), new)
        for name, buffer in module._buffers.items():
            if buffer is not None and buffer.is_floating_point():
                module._buffers[name] = _widen(buffer, n_slots)
    return stacked


def _widen(tensor: Tensor, n_slots: int) -> Tensor:
    strides = torch.empty_like(tensor).stride()  # dense, in the tensor's layout
    size, stride = (n_slots, *tensor.shape), (tensor.numel(), *strides)
    return torch.empty_strided(size, stride, dtype=tensor.dtype, device=tensor.device).copy_(tensor)


def _without_cudnn(norm: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """A batch norm by torch's own kernel in float32, which is what cuDNN computes in.

    Under vmap cuDNN's asks for a layout that vmap does not know, and torch's own takes no bf16 beside statistics in
    float32 (torch 2.11).
    """

    def forward(x: Tensor) -> Tensor:
        if torch.compiler.is_compiling():  # which has kernels of its own
            return norm(x)
        with torch.backends.cudnn.flags(enabled=False):
            return norm(x.float()).to(x.dtype)

    return forward


class _LossOf(nn.Module):
    """A task's loss as a module, for `functional_call`."""

    def __init__(self, task: Task[Any, Any], model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self._task = task

    def forward(self, batch: Batch) -> Tensor:
        return self._task.loss(self.model, batch)


class StackedTask:
    """In place of a task in `StepParts`: its loss is that of every slot, (slots,)."""

    def __init__(self, task: Task[Any, Any], model: nn.Module, *, compiled: bool = False) -> None:
        self._task = task
        self._whole = whole = _LossOf(task, model)

        def loss(own: dict[str, Tensor], shared: dict[str, Tensor], batch: Batch) -> Tensor:
            found: Tensor = functional_call(whole, (own, shared), (batch,))
            return found

        self._losses = torch.vmap(loss, in_dims=(0, None, 0), randomness="different")
        if compiled:
            # Each width by itself: vmap's rules for embeddings, norms and attention fix the sizes they see.
            self._losses = torch.compile(self._losses, dynamic=False)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """The mean loss of each slot's batch."""
        assert model is self._whole.model
        own: dict[str, Tensor] = dict(self._whole.named_parameters())
        shared: dict[str, Tensor] = {}
        for name, buffer in self._whole.named_buffers():
            (own if buffer.is_floating_point() else shared)[name] = buffer
        # Under vmap the memory-efficient attention does not see that gradients are asked for, and keeps nothing for its
        # backward pass; cuDNN's asks for a layout that vmap does not know (torch 2.11).
        with self._task.in_a_stack(), sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]):
            losses: Tensor = self._losses(own, shared, batch)
        return losses

    def loss_terms(self, batch: Batch) -> None:
        """None: a cohort takes no micro-batches."""


def why_not_stacked(
    task: Task[Any, Any],
    model: nn.Module,
    *,
    autocast: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext,
) -> str:
    """Why this model cannot be stacked, by a pass of two slots on a few samples; empty: it can. Changes nothing."""
    batch = {name: tensor[:N_SAMPLES] for name, tensor in first_batch(task).items()}
    stacked = stack_model(model, 2).eval()
    try:
        with autocast():
            losses = StackedTask(task, stacked).loss(stacked, {name: torch.stack([t, t]) for name, t in batch.items()})
            alone = task.loss(copy.deepcopy(model).eval(), batch)
        stacked.train()
        with autocast():
            trained = StackedTask(task, stacked).loss(stacked, {n: torch.stack([t, t]) for n, t in batch.items()})
        trained.backward(torch.ones_like(trained))  # type: ignore[no-untyped-call]
    except Exception as error:  # of torch, or of the model's code
        if is_out_of_memory(error):
            raise
        return f"the model cannot be stacked ({first_words(error)})"
    if not torch.allclose(losses, alone.expand(2), rtol=TOLERANCE):
        return f"the stacked model's losses {losses.tolist()} are not the model's own, {float(alone):.6g}"
    return ""
