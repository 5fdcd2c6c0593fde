"""bf16 copies of float32 weights, made by one launch a step, and their gradients handed to the weights.

Two uses. Autocast casts every convolution's and linear layer's weight in each forward pass, and each gradient back, by
kernels that take longer to start than to run; `CastWeights.of_layers` saves those, with autocast's own numbers.
`CastWeights.of_all` runs the whole model in bf16 without autocast, norms and embeddings too (they add up in float32
inside their kernels), so that no activation is cast between layers; only the weights, their gradients' sum over
micro-batches and the update are float32.

Gradients are widened to float32 by one launch more, or left as they are (`keep_gradients_narrow`) where nothing is
added to them and the update widens them itself: 8 bytes a parameter less to move, and the same numbers, as widening is
exact.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Self

import torch
from torch import Tensor, nn

GRADIENTS_MAY_BE_NARROW = hasattr(Tensor, "grad_dtype")  # torch 2.10; before, `.grad` had its parameter's dtype
_CAST_MODULES = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


_Slot = tuple[nn.Module, str]


class CastWeights:
    """Some float32 parameters of a model and their bf16 copies.

    Args:
        slots: where they stand, as (module, name); a parameter with several slots has one copy for all of them.
    """

    def __init__(self, slots: Sequence[_Slot]) -> None:
        self._slots = list(slots)
        standing = [parameter for module, name in self._slots if (parameter := module._parameters[name]) is not None]
        self._masters = list({id(parameter): parameter for parameter in standing}.values())
        self._copies = [
            nn.Parameter(torch.empty_like(p, dtype=torch.bfloat16), requires_grad=p.requires_grad)
            for p in self._masters
        ]
        place = {id(parameter): index for index, parameter in enumerate(self._masters)}
        self._in_slot = [place[id(parameter)] for parameter in standing]
        self._fixed: dict[int, Tensor] = {}
        self._narrow = False

    @classmethod
    def of_layers(cls, model: nn.Module) -> Self:
        """The trained parameters of linear and convolutional layers; the rest is left to autocast.

        So are parameters that several places share: their gradients come from more than one of them.
        """
        slots = _slots(model)
        uses = Counter(id(module._parameters[name]) for module, name in slots)
        return cls(
            [
                (module, name)
                for module, name in slots
                if type(module) in _CAST_MODULES
                and (parameter := module._parameters[name]) is not None
                and parameter.requires_grad
                and uses[id(parameter)] == 1
            ]
        )

    @classmethod
    def of_all(cls, model: nn.Module) -> Self:
        """Every float32 parameter, those that are not trained too."""
        return cls(_slots(model))

    def keep_gradients_narrow(self) -> None:
        """From now on hand bf16 gradients over as bf16, for an update that reads those; one backward pass a step."""
        for master in self._masters:
            master.grad_dtype = None
        self._narrow = True

    def fix_gradients(self, owners: Sequence[nn.Parameter], gradients: Sequence[Tensor]) -> None:
        """From now on write the gradients of these parameters into these tensors, which a captured update reads."""
        self._fixed = {id(owner): gradient for owner, gradient in zip(owners, gradients, strict=True)}

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
        """After each backward pass: the copies' gradients become the parameters' own or add to them, as float32.

        Or as bf16, after `keep_gradients_narrow`.
        """
        targets: list[Tensor] = []
        fresh: list[Tensor] = []
        sums: list[tuple[Tensor, Tensor]] = []
        for master, copy in zip(self._masters, self._copies, strict=True):
            if (gradient := copy.grad) is None:
                continue
            copy.grad = None
            if master.grad is not None:
                assert master.grad.dtype == torch.float32, "bf16 gradients of several passes must not be added up"
                sums.append((master.grad, gradient))
                continue
            target = self._fixed.get(id(master))
            if target is None and self._narrow:
                master.grad = gradient
                continue
            master.grad = torch.empty_like(master) if target is None else target
            targets.append(master.grad)
            fresh.append(gradient)
        if targets:
            torch._foreach_copy_(targets, fresh)
        for total, gradient in sums:
            total += gradient

    def _place(self, parameters: list[nn.Parameter]) -> None:
        for (module, name), index in zip(self._slots, self._in_slot, strict=True):
            module._parameters[name] = parameters[index]


def _slots(model: nn.Module) -> list[_Slot]:
    """Where float32 parameters stand."""
    return [
        (module, name)
        for module in model.modules()
        for name, parameter in module._parameters.items()
        if parameter is not None and parameter.dtype == torch.float32
    ]
