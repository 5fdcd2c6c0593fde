"""AdmetaR: RAdam on the double exponential moving average of the gradients, with dynamic lookahead.

Paper: Chen et al., "Bidirectional Looking with A Novel Double Exponential Moving Average to Adaptive and
Non-adaptive Momentum Optimizers", ICML 2023, Algorithm 1.
Deviations: the one-state form of DEMA (exact, no cancellation); slow weights start at θ_0, not at 0; by default
v is updated from the first step, steps start at ρ_t ≥ 5 and nothing moves before, as the authors ran it.
``preset="paper"`` is the paper to the letter.
"""

# ruff: noqa: B008, FBT003 - a FromPreset is a constant

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from admeta.base import RuleOptimizer
from admeta.parameters import (
    ADMETAR_PRESETS,
    DemaForm,
    FromPreset,
    Preset,
    Rounding,
    SlowStep,
    StateDtype,
    UnrectifiedForm,
)
from admeta.rule import UpdateRule, dema_of, moments_of, rule_of, slow_schedule_of

__all__ = ["AdmetaR"]


class AdmetaR(RuleOptimizer):
    """Adaptive optimizer that looks backward by DEMA and forward by dynamic lookahead.

    Args:
        params: parameters, (name, parameter) pairs, or groups of either.
        lr: learning rate; a one-element tensor for graph capture (default: 0.01).
        betas: decay rates of the moving averages m of h and v of h², each in [0, 1) (default: (0.9, 0.999)).
        eps: added to √v̂ (default: 1e-09).
        weight_decay: coefficient, ≥ 0; decoupled unless ``decoupled_weight_decay=False`` (default: 0.0).
        lambd: inner decay λ of DEMA, in (0, 1). Changing it during a run changes what the state J means (default: 0.1).
        k: updates between synchronisations with the slow weights (default: 6).
        preset: "default", "paper", "paper_finetune", "authors" or "released": values of the options left out
            (default: 'default').
        dema: "full", "off" (h = g, the −DEMA ablation) or "released" (the released source's scalar-μ bug) (default:
            'full').
        nu_scale: scale of the start-up term λ^t·g_1 (default: 1.0).
        slow_step: η: "dynamic_0.8", "dynamic_0.5", a constant in (0, 1], or None for no lookahead (default:
            'dynamic_0.8').
        rectify: RAdam's rectification; without it, Adam's step from the first update on (default: True).
        rho_min: ρ_t from which steps are rectified, ≥ 4 (default: 5.0).
        unrectified: before that, "skip" the step or take an "sgd" one, θ − lr·m̂ (default: 'skip').
        gate_exp_avg_sq: leave v alone before that (default: False).
        raw_eps: add eps to √v before its bias correction, as the authors' source does, instead of to √v̂ (default:
            False).
        decoupled_weight_decay: θ ← (1 − lr·weight_decay)·θ instead of adding weight_decay·θ to the gradient (default:
            True).
        state_dtype: "float32": at least float32; "bfloat16" (or torch.bfloat16): half the memory (default: 'float32').
        rounding: of bfloat16 parameters after an update, to the "nearest" or "stochastic" (default: 'nearest').
        foreach, fused: implementation; None for the fastest one available.
        maximize: ascend (default: False).
        capturable: the step may be captured in a CUDA graph (default: False).
        differentiable: autograd follows the step (single-tensor implementation) (default: False).

    Raises:
        ValueError: a value is refused. UnknownPresetError (a ValueError): no such preset.
    """

    presets = ADMETAR_PRESETS

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-2,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-9,
        weight_decay: float = 0.0,
        *,
        lambd: float = 0.1,
        k: int = 6,
        preset: Preset = "default",
        dema: DemaForm | FromPreset = FromPreset("full"),
        nu_scale: float | FromPreset = FromPreset(1.0),
        slow_step: SlowStep | float | FromPreset | None = FromPreset("dynamic_0.8"),
        rectify: bool | FromPreset = FromPreset(True),
        rho_min: float | FromPreset = FromPreset(5.0),
        unrectified: UnrectifiedForm | FromPreset = FromPreset("skip"),
        gate_exp_avg_sq: bool | FromPreset = FromPreset(False),
        raw_eps: bool | FromPreset = FromPreset(False),
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
            dema=dema_of(group["dema"], lambd=group["lambd"], nu_scale=group["nu_scale"]),
            moments=moments_of(group),
            slow=slow_schedule_of(group["slow_step"], k=group["k"]),
        )
