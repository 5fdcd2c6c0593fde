"""AdaBelief: Adam that divides by the gradient's deviation from its own moving average.

Paper: Zhuang et al., "AdaBelief Optimizer: Adapting Stepsizes by the Belief in Observed Gradients", NeurIPS 2020,
Algorithm 2, with the rectification of its authors' source.
Deviations: rectified steps too use √ŝ + ε (there: √s + ε).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from admeta.base import RuleOptimizer
from admeta.parameters import Rounding, StateDtype, UnrectifiedForm
from admeta.rule import UpdateRule, moments_of, rule_of

__all__ = ["AdaBelief"]


class AdaBelief(RuleOptimizer):
    """Adaptive optimizer that takes large steps where the gradient is close to its moving average.

    Args:
        params: parameters, (name, parameter) pairs, or groups of either.
        lr: learning rate; a one-element tensor for graph capture (default: 0.001).
        betas: decay rates of m and of s, the mean of (g − m)², each in [0, 1) (default: (0.9, 0.999)).
        eps: added to s at every update and to √ŝ (default: 1e-16).
        weight_decay: coefficient, ≥ 0; decoupled unless ``decoupled_weight_decay=False`` (default: 0.0).
        rectify: RAdam's rectification (default: True).
        rho_min: ρ_t from which steps are rectified, ≥ 4 (default: 5.0).
        unrectified: before that, "skip" the step or take an "sgd" one, θ − lr·m̂ (default: 'sgd').
        decoupled_weight_decay: θ ← (1 − lr·weight_decay)·θ instead of adding weight_decay·θ to the gradient (default:
            True).
        state_dtype: "float32": at least float32; "bfloat16" (or torch.bfloat16): half the memory (default: 'float32').
        rounding: of bfloat16 parameters after an update, to the "nearest" or "stochastic" (default: 'nearest').
        foreach, fused: implementation; None for the fastest one available.
        maximize: ascend (default: False).
        capturable: the step may be captured in a CUDA graph (default: False).
        differentiable: autograd follows the step (single-tensor implementation) (default: False).

    Raises:
        ValueError: a value is refused.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-16,
        weight_decay: float = 0.0,
        *,
        rectify: bool = True,
        rho_min: float = 5.0,
        unrectified: UnrectifiedForm = "sgd",
        decoupled_weight_decay: bool = True,
        state_dtype: StateDtype | torch.dtype = "float32",
        rounding: Rounding = "nearest",
        foreach: bool | None = None,
        fused: bool | None = None,
        maximize: bool = False,
        capturable: bool = False,
        differentiable: bool = False,
    ) -> None:
        super().__init__(params, {**locals()})

    @staticmethod
    def rule_of(group: dict[str, Any]) -> UpdateRule:
        return rule_of(group, beta1=group["betas"][0], moments=replace(moments_of(group), belief=True))
