"""Ranger: RAdam with constant lookahead and centralised gradients.

Origin: Wright, "Ranger", 2019, with Yong et al., "Gradient Centralization", ECCV 2020.
Deviations: ε is added to √v̂, not to √v; decoupled weight decay is AdamW's, not scaled by the rectified step;
steps are rectified from ρ_t ≥ 5 as in the origin (there: > 5).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from admeta.base import RuleOptimizer
from admeta.parameters import Rounding, SlowStep, StateDtype, UnrectifiedForm
from admeta.rule import UpdateRule, moments_of, rule_of, slow_schedule_of

__all__ = ["Ranger"]


class Ranger(RuleOptimizer):
    """RAdam + lookahead + gradient centralisation.

    Args:
        params: parameters, (name, parameter) pairs, or groups of either.
        lr: learning rate; a one-element tensor for graph capture (default: 0.001).
        betas: decay rates of m and v, each in [0, 1) (default: (0.95, 0.999)).
        eps: added to √v̂ (default: 1e-05).
        weight_decay: coefficient, ≥ 0; decoupled unless ``decoupled_weight_decay=False`` (default: 0.0).
        k: updates between synchronisations with the slow weights (default: 6).
        slow_step: η, a constant in (0, 1] (also "dynamic_0.8", "dynamic_0.5"), or None for no lookahead (default: 0.5).
        rho_min: ρ_t from which steps are rectified, ≥ 4 (default: 5.0).
        unrectified: before that, "skip" the step or take an "sgd" one, θ − lr·m̂ (default: 'sgd').
        centralize: subtract its mean by row from every gradient of two or more dimensions (default: True).
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
        betas: tuple[float, float] = (0.95, 0.999),
        eps: float = 1e-5,
        weight_decay: float = 0.0,
        *,
        k: int = 6,
        slow_step: SlowStep | float | None = 0.5,
        rho_min: float = 5.0,
        unrectified: UnrectifiedForm = "sgd",
        centralize: bool = True,
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
        return rule_of(
            group,
            beta1=group["betas"][0],
            moments=moments_of(group),
            slow=slow_schedule_of(group["slow_step"], k=group["k"]),
            centralize=group["centralize"],
        )
