"""torch.optim's Adam, AdamW and RAdam by our kernels: the same numbers, options, state and checkpoints.

Papers: Kingma and Ba, "Adam", ICLR 2015, Algorithm 1; Loshchilov and Hutter, "Decoupled Weight Decay Regularization",
ICLR 2019, Algorithm 2; Liu et al., "On the Variance of the Adaptive Learning Rate and Beyond", ICLR 2020, Algorithm 2.
Deviations from torch's classes: no AMSGrad (``amsgrad=True`` is refused); state is at least float32 and step counts
are float64; gradients may have another dtype than their parameters; a step by the kernels leaves scaled gradients as
they are; RAdam too has a ``fused`` implementation.
A captured step takes these (``OptimInfo.graph_target``): two launches move a whole group, where torch's fused kernels
take one launch for each few dozen tensors, and torch's RAdam one for each parameter and operation.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.optim.optimizer import ParamsT

from admeta.base import RuleOptimizer
from admeta.rule import Moments, UpdateRule, rule_of

__all__ = ["KernelAdam", "KernelAdamW", "KernelRAdam"]


_ABOVE_FIVE = math.nextafter(5.0, math.inf)  # torch rectifies where ρ_t > 5, our rule where it is at least rho_min
# Groups of torch's own older checkpoints lack some options; as in torch's classes they have their defaults then.
_TOLERATED: Mapping[str, object] = {**RuleOptimizer.later_options, "amsgrad": False, "decoupled_weight_decay": False}


class KernelAdam(RuleOptimizer):
    """torch.optim.Adam in three implementations: one tensor at a time, foreach, fused (Triton).

    Args:
        params: parameters, (name, parameter) pairs, or groups of either.
        lr: learning rate; a one-element tensor for graph capture (default: 0.001).
        betas: decay rates of m and v, each in [0, 1) (default: (0.9, 0.999)).
        eps: added to √v̂ (default: 1e-08).
        weight_decay: coefficient, ≥ 0; added to the gradient unless ``decoupled_weight_decay`` (default: 0.0).
        amsgrad: False; kept so that groups and checkpoints have torch's options (default: False).
        decoupled_weight_decay: θ ← (1 − lr·weight_decay)·θ instead of adding weight_decay·θ to the gradient (default:
            False).
        foreach, fused: implementation; None for the fastest one available.
        maximize: ascend (default: False).
        capturable: the step may be captured in a CUDA graph (default: False).
        differentiable: autograd follows the step (single-tensor implementation) (default: False).

    Raises:
        ValueError: a value is refused; also of a loaded state with ``amsgrad``.
    """

    later_options = _TOLERATED

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        *,
        amsgrad: bool = False,
        decoupled_weight_decay: bool = False,
        foreach: bool | None = None,
        fused: bool | None = None,
        maximize: bool = False,
        capturable: bool = False,
        differentiable: bool = False,
    ) -> None:
        super().__init__(params, {**locals()})

    @staticmethod
    def rule_of(group: dict[str, Any]) -> UpdateRule:
        if group["amsgrad"]:
            raise ValueError("Invalid amsgrad value: True; it must be False. torch.optim's own class has it")
        moments = Moments(beta2=group["betas"][1], eps=group["eps"], rectify=False)
        return rule_of(group, beta1=group["betas"][0], moments=moments)


class KernelAdamW(KernelAdam):
    """torch.optim.AdamW, as `KernelAdam` is its Adam: weight decay is decoupled, whatever a loaded state says.

    Args:
        params, lr, betas, eps, amsgrad, foreach, fused, maximize, capturable, differentiable: as of `KernelAdam`.
        weight_decay: θ ← (1 − lr·weight_decay)·θ before each update.

    Raises:
        ValueError: a value is refused; also of a loaded state with ``amsgrad``.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        *,
        amsgrad: bool = False,
        foreach: bool | None = None,
        fused: bool | None = None,
        maximize: bool = False,
        capturable: bool = False,
        differentiable: bool = False,
    ) -> None:
        RuleOptimizer.__init__(self, params, {**locals(), "decoupled_weight_decay": True})

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for group in self.param_groups:
            group["decoupled_weight_decay"] = True


class KernelRAdam(RuleOptimizer):
    """torch.optim.RAdam in three implementations: one tensor at a time, foreach, fused (Triton).

    Args:
        params: parameters, (name, parameter) pairs, or groups of either.
        lr: learning rate; a one-element tensor for graph capture (default: 0.001).
        betas: decay rates of m and v, each in [0, 1) (default: (0.9, 0.999)).
        eps: added to √v before v's bias is corrected (default: 1e-08).
        weight_decay: coefficient, ≥ 0; added to the gradient unless ``decoupled_weight_decay`` (default: 0.0).
        decoupled_weight_decay: θ ← (1 − lr·weight_decay)·θ instead of adding weight_decay·θ to the gradient (default:
            False).
        foreach, fused: implementation; None for the fastest one available.
        maximize: ascend (default: False).
        capturable: the step may be captured in a CUDA graph (default: False).
        differentiable: autograd follows the step (single-tensor implementation) (default: False).

    Raises:
        ValueError: a value is refused.
    """

    later_options = _TOLERATED

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
        super().__init__(params, {**locals()})

    @staticmethod
    def rule_of(group: dict[str, Any]) -> UpdateRule:
        moments = Moments(
            beta2=group["betas"][1], eps=group["eps"], rho_min=_ABOVE_FIVE, step_unrectified=True, raw_eps=True
        )
        return rule_of(group, beta1=group["betas"][0], moments=moments)
