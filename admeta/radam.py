"""torch.optim's RAdam by our kernels: the same numbers, options, state and checkpoints.

Paper: Liu et al., "On the Variance of the Adaptive Learning Rate and Beyond", ICLR 2020, Algorithm 2.
Deviations from torch's class: state is at least float32; gradients may have another dtype than their parameters; there
is a ``fused`` implementation. A captured step takes it (``OptimInfo.graph_target``): torch's has no fused one, and its
lists of step counts on the device take a launch for each parameter and operation.
"""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor
from torch.optim.optimizer import ParamsT

from admeta import options
from admeta.base import RuleOptimizer
from admeta.implementation import Flags
from admeta.rule import Moments, UpdateRule, rule_of

__all__ = ["KernelRAdam"]

_ABOVE_FIVE = math.nextafter(5.0, math.inf)  # torch rectifies where ρ_t > 5, our rule where it is at least rho_min


class KernelRAdam(RuleOptimizer):
    """torch.optim.RAdam in three implementations: one tensor at a time, foreach, fused (Triton).

    Args:
        params: parameters, (name, parameter) pairs, or groups of either.
        lr: learning rate; a one-element tensor for graph capture.
        betas: decay rates of m and v, each in [0, 1).
        eps: added to √v before v's bias is corrected.
        weight_decay: coefficient, ≥ 0; added to the gradient unless ``decoupled_weight_decay``.
        decoupled_weight_decay: θ ← (1 − lr·weight_decay)·θ instead of adding weight_decay·θ to the gradient.
        foreach, fused: implementation; None for the fastest one available.
        maximize: ascend.
        capturable: the step may be captured in a CUDA graph.
        differentiable: autograd follows the step (single-tensor implementation).

    Raises:
        ValueError: a value is refused.
    """

    checks = (options.check_lr, options.check_eps, options.check_betas, options.check_weight_decay)

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        decoupled_weight_decay: bool = False,  # noqa: FBT001, FBT002 - torch's place for it
        *,
        foreach: bool | None = None,
        fused: bool | None = None,
        maximize: bool = False,
        capturable: bool = False,
        differentiable: bool = False,
    ) -> None:
        own = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "decoupled_weight_decay": decoupled_weight_decay,
        }
        super().__init__(params, own, Flags(foreach, fused, maximize, capturable, differentiable))

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for group in self.param_groups:
            group.setdefault("decoupled_weight_decay", False)

    @staticmethod
    def rule_of(group: dict[str, Any]) -> UpdateRule:
        moments = Moments(
            beta2=group["betas"][1], eps=group["eps"], rho_min=_ABOVE_FIVE, step_unrectified=True, raw_eps=True
        )
        return rule_of(group, beta1=group["betas"][0], moments=moments)
