"""One run's part of a step that several processes make together: its share of each batch, the mean of all gradients.

Each rank computes the same batch and keeps its slice, so the samples of a step are those of one card with the same
`batch_size`. The mean over ranks of mean losses is the batch's mean loss: slices have as many samples, and where the
mean is over something else (`Task.loss_terms`), `step.py` divides by it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """This process's place among those of a run; all share torch.distributed's default group.

    Attributes:
        rank: from 0; rank 0 evaluates and reports.
        n: how many there are; 1 needs no group.
    """

    rank: int = 0
    n: int = 1

    def share(self, batch: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """This rank's samples of a batch whose size is a multiple of `n`; views of it."""
        if self.n == 1:
            return batch
        slices = {}
        for name, tensor in batch.items():
            size = tensor.shape[0] // self.n
            slices[name] = tensor[self.rank * size : (self.rank + 1) * size]
        return slices

    @torch.no_grad()
    def average(self, parameters: Sequence[nn.Parameter], loss: Tensor) -> Tensor:
        """Put the ranks' mean gradient into every `.grad`; returns the mean of their losses.

        By one all-reduce of a flat buffer, which can be captured in a graph. A parameter without a gradient must have
        none on any rank.
        """
        if self.n == 1:
            return loss
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        for dtype in {gradient.dtype for gradient in gradients}:
            self._average_inplace([gradient for gradient in gradients if gradient.dtype == dtype])
        return self.mean(loss)

    @torch.no_grad()
    def mean(self, value: Tensor) -> Tensor:
        """The mean over ranks of a float tensor."""
        if self.n == 1:
            return value
        value = value.clone()
        self._average_inplace([value])
        return value

    def _average_inplace(self, tensors: list[Tensor]) -> None:
        flat = torch.empty(sum(t.numel() for t in tensors), dtype=tensors[0].dtype, device=tensors[0].device)
        parts = torch.split(flat, [t.numel() for t in tensors])
        views = [part.view(t.shape) for part, t in zip(parts, tensors, strict=True)]
        torch._foreach_copy_(views, tensors)
        flat /= self.n
        dist.all_reduce(flat)
        torch._foreach_copy_(tensors, views)


ALONE = Ranks()
