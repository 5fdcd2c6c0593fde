"""Parameter groups that leave biases and norms out of weight decay."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import torch

__all__ = ["decay_groups"]


def decay_groups(
    model: torch.nn.Module | Iterable[tuple[str, torch.Tensor]],
    weight_decay: float,
    *,
    on: Literal["all", "matrices"] = "all",
) -> list[dict[str, Any]]:
    """Groups for any torch optimizer, with weight decay on every parameter or on matrices alone.

    Args:
        model: a module, or (name, parameter) pairs; parameters that need no gradient are left out.
        weight_decay: coefficient, ≥ 0.
        on: ``"all"``, as the Admeta paper does; ``"matrices"`` decays parameters of two or more dimensions
            (linear and convolution weights, embeddings) and leaves biases, norms and scalars alone.

    Returns:
        One group, or two with the decayed one first; an empty group is left out. Parameters are
        (name, tensor) pairs, so checkpoints carry names.

    Raises:
        ValueError: ``on`` is neither, or no parameter needs a gradient.
    """
    if on not in ("all", "matrices"):
        raise ValueError(f"weight decay on {on!r}: must be 'all' or 'matrices'")
    pairs = model.named_parameters() if isinstance(model, torch.nn.Module) else model
    named = [(name, p) for name, p in pairs if p.requires_grad]
    if not named:
        raise ValueError("no parameter needs a gradient; unfreeze some before making groups")
    if on == "all":
        return [{"params": named, "weight_decay": weight_decay}]
    groups = [
        {"params": [(n, p) for n, p in named if p.ndim >= 2], "weight_decay": weight_decay},
        {"params": [(n, p) for n, p in named if p.ndim < 2], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]
