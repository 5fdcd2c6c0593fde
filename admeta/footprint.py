"""Where a group's parameters and gradients lay at the last step, and whether they still lie there.

Owns: Footprint, Held. Does not own: what is done about a change (admeta.plans). This runs before every fused step,
once for each tensor, and is most of what a step of a small model costs: hence ``map`` over C functions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from operator import attrgetter, is_

import torch
from torch import Tensor

from admeta.tensors import PLAIN_TYPES, local_view

__all__ = ["Change", "Footprint", "Held", "addresses_of", "addresses_unchanged"]

_data_ptr: Callable[[Tensor], int] = Tensor.data_ptr
_stride: Callable[[Tensor], tuple[int, ...]] = Tensor.stride
_is_neg: Callable[[Tensor], bool] = Tensor.is_neg
_dtype: Callable[[Tensor], torch.dtype] = attrgetter("dtype")
_grad: Callable[[Tensor], Tensor | None] = attrgetter("grad")
# One call for a whole list, a fifth of a step's host time less; torch has it for CUDA graphs and doesn't promise it.
_all_at: Callable[[list[Tensor], list[int], list[int]], bool] | None = getattr(
    torch._C, "_tensors_data_ptrs_at_indices_equal", None
)


class Change(Enum):
    """What is not as it was at the last step."""

    NONE = auto()
    GRADIENT_ADDRESSES = auto()
    MORE = auto()


def addresses_of(tensors: Sequence[Tensor]) -> list[int]:
    """Addresses of plain tensors' first elements."""
    return list(map(_data_ptr, tensors))


def addresses_unchanged(tensors: list[Tensor], addresses: list[int], indices: list[int]) -> bool:
    """Whether plain tensors' first elements lie at ``addresses``; ``indices`` is 0, 1, … for each of them."""
    if _all_at is None:
        return addresses_of(tensors) == addresses
    return _all_at(tensors, addresses, indices)


def _local_address(tensor: Tensor) -> int:
    return local_view(tensor).data_ptr()


@dataclass(frozen=True)
class Footprint:
    """Parameters that have a gradient, in the group's order, and their gradients, as they were at a step.

    Attributes:
        plain: all are plain real tensors, whose own address is the storage's.
        params, grads: addresses of what this process updates.
        forms: of the gradients, whatever else the kernels' tables depend on.
    """

    plain: bool
    params: list[int]
    grads: list[int]
    forms: tuple[list[object], ...]

    @classmethod
    def of(cls, params: Sequence[Tensor], grads: Sequence[Tensor]) -> Footprint:
        plain = all(type(t) in PLAIN_TYPES and not t.is_complex() for t in (*params, *grads))
        address = _data_ptr if plain else _local_address
        return cls(plain, list(map(address, params)), list(map(address, grads)), _forms(grads, plain=plain))

    def compared(self, params: Sequence[Tensor], grads: Sequence[Tensor]) -> tuple[Change, list[int]]:
        """What changed, and the addresses of ``grads``."""
        if len(grads) != len(self.grads):
            return Change.MORE, []
        address = _data_ptr if self.plain else _local_address
        try:
            addresses = list(map(address, grads))
            if list(map(address, params)) != self.params or _forms(grads, plain=self.plain) != self.forms:
                return Change.MORE, addresses
        except RuntimeError:  # sparse gradients have no address; making a new plan says so
            return Change.MORE, []
        return (Change.NONE if addresses == self.grads else Change.GRADIENT_ADDRESSES), addresses


def _forms(grads: Sequence[Tensor], *, plain: bool) -> tuple[list[object], ...]:
    """Types, dtypes, strides, lazy signs; of distributed gradients also how they are laid out over processes."""
    types: list[object] = list(map(type, grads))
    placements: list[object] = [] if plain else [getattr(g, "placements", None) for g in grads]
    return types, list(map(_dtype, grads)), list(map(_stride, grads)), list(map(_is_neg, grads)), placements


class Held:
    """Gradients that outlive steps, held so that finding the same objects again tells all but where they lie.

    A tensor's layout can be changed in place at one address (``p.grad.data = p.grad.data.t()``); that is not noticed.
    """

    def __init__(self, params: Sequence[Tensor], footprint: Footprint) -> None:
        """
        Args:
            params: all of the group's, in order; with or without a gradient.
            footprint: of those that have one.
        """
        self._of_params = [p.grad for p in params]
        self._grads = [grad for grad in self._of_params if grad is not None]
        self._indices = list(range(len(self._grads)))
        self._grad_addresses = footprint.grads
        self._param_addresses = addresses_of(params)

    def unchanged(self, params: Sequence[Tensor]) -> bool:
        """Whether the group's parameters and their gradients are the same and where they were."""
        try:
            return (
                len(params) == len(self._of_params)
                and all(map(is_, map(_grad, params), self._of_params))
                and addresses_unchanged(self._grads, self._grad_addresses, self._indices)
                and addresses_of(params) == self._param_addresses
            )
        except RuntimeError:  # made sparse in place
            return False
