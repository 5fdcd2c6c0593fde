"""bf16 copies of the weights that autocast would cast one by one: one launch a step instead of two for each weight.

Autocast casts every convolution's and linear layer's weight in each forward pass, and each gradient back, by kernels
that take longer to start than to run. The numbers are the same here: round to bf16 before the step, multiply, and widen
the gradient after it.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator

import torch
from torch import nn

_CAST_MODULES = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


class CastWeights:
    """The float32 parameters of a model's linear and convolutional layers, and their bf16 copies.

    Parameters that several places share are left to autocast: their gradients come from more than one of them.
    """

    def __init__(self, model: nn.Module) -> None:
        slots = [(module, name) for module in model.modules() for name in module._parameters]
        uses = Counter(id(module._parameters[name]) for module, name in slots)
        self._slots: list[tuple[nn.Module, str]] = []
        self._masters: list[nn.Parameter] = []
        for module, name in slots:
            parameter = module._parameters[name]
            if parameter is None or not parameter.requires_grad or parameter.dtype != torch.float32:
                continue
            if type(module) in _CAST_MODULES and uses[id(parameter)] == 1:
                self._slots.append((module, name))
                self._masters.append(parameter)
        self._copies = [nn.Parameter(torch.empty_like(p, dtype=torch.bfloat16)) for p in self._masters]

    @contextlib.contextmanager
    def in_use(self) -> Iterator[None]:
        """Refresh the copies and let them stand in the layers; for one forward pass."""
        with torch.no_grad():
            torch._foreach_copy_([*self._copies], [*self._masters])
        self._place(self._copies)
        try:
            yield
        finally:
            self._place(self._masters)

    @torch.no_grad()
    def hand_over_gradients(self) -> None:
        """After the backward pass: the copies' gradients, as float32, become the parameters' own."""
        masters, narrow = [], []
        for master, copy in zip(self._masters, self._copies, strict=True):
            if copy.grad is not None:
                masters.append(master)
                narrow.append(copy.grad)
                copy.grad = None
        wide = [torch.empty_like(master) for master in masters]
        torch._foreach_copy_(wide, narrow)
        for master, gradient in zip(masters, wide, strict=True):
            master.grad = gradient

    def _place(self, parameters: list[nn.Parameter]) -> None:
        for (module, name), parameter in zip(self._slots, parameters, strict=True):
            module._parameters[name] = parameter
