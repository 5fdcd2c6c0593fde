"""AdmetaS: SGD along a momentum of the double exponential moving average, with dynamic lookahead.

Paper: Chen et al., "Bidirectional Looking with A Novel Double Exponential Moving Average to Adaptive and
Non-adaptive Momentum Optimizers", ICML 2023, Algorithm 2.
Deviations: the one-state form of DEMA (exact, no cancellation); slow weights start at θ_0, not at 0.
At λ = 0.9 steps are 5.1 times those of SGD with momentum 0.9 at one lr, and β past 0.302 shrinks the stable
step size (admeta.theory.stability_limit).
"""

# ruff: noqa: B008 - a FromPreset is a constant

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from admeta.base import RuleOptimizer
from admeta.parameters import ADMETAS_PRESETS, DemaForm, FromPreset, Preset, Rounding, SlowStep, StateDtype
from admeta.rule import UpdateRule, dema_of, rule_of, slow_schedule_of

__all__ = ["AdmetaS"]


class AdmetaS(RuleOptimizer):
    """Non-adaptive optimizer that looks backward by DEMA and forward by dynamic lookahead.

    Args:
        params: parameters, (name, parameter) pairs, or groups of either.
        lr: learning rate; a one-element tensor for graph capture (default: 0.01).
        beta: outer decay β of m, in [0, 1); the paper's values are 0.1–0.4 (default: 0.2).
        lambd: inner decay λ of DEMA, in (0, 1). Changing it during a run changes what the state J means (default: 0.9).
        k: updates between synchronisations with the slow weights (default: 6).
        weight_decay: coefficient, ≥ 0; added to the gradient unless ``decoupled_weight_decay`` (default: 0.0).
        preset: "default", "paper", "paper_finetune", "authors" or "released": values of the options left out
            (default: 'default').
        dema: "full", "off" (h = g, the −DEMA ablation) or "released" (the released source's scalar-μ bug) (default:
            'full').
        nu_scale: scale of the start-up term λ^t·g_1 (default: 1.0).
        slow_step: η: "dynamic_0.8", "dynamic_0.5", a constant in (0, 1], or None for no lookahead (default:
            'dynamic_0.8').
        decoupled_weight_decay: θ ← (1 − lr·weight_decay)·θ instead of adding weight_decay·θ to the gradient (default:
            False).
        state_dtype: "float32": at least float32; "bfloat16" (or torch.bfloat16): half the memory (default: 'float32').
        rounding: of bfloat16 parameters after an update, to the "nearest" or "stochastic" (default: 'nearest').
        momentum: None; OneCycleLR and CyclicLR refuse optimizers without it, and what they set there has no effect.
        foreach, fused: implementation; None for the fastest one available.
        maximize: ascend (default: False).
        capturable: the step may be captured in a CUDA graph (default: False).
        differentiable: autograd follows the step (single-tensor implementation) (default: False).

    Raises:
        ValueError: a value is refused. UnknownPresetError (a ValueError): no such preset.
    """

    presets = ADMETAS_PRESETS

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-2,
        beta: float = 0.2,
        lambd: float = 0.9,
        k: int = 6,
        weight_decay: float = 0.0,
        *,
        preset: Preset = "default",
        dema: DemaForm | FromPreset = FromPreset("full"),
        nu_scale: float | FromPreset = FromPreset(1.0),
        slow_step: SlowStep | float | FromPreset | None = FromPreset("dynamic_0.8"),
        decoupled_weight_decay: bool = False,
        state_dtype: StateDtype | torch.dtype = "float32",
        rounding: Rounding = "nearest",
        momentum: None = None,
        foreach: bool | None = None,
        fused: bool | None = None,
        maximize: bool = False,
        capturable: bool = False,
        differentiable: bool = False,
    ) -> None:
        super().__init__(params, {**locals()})

    @staticmethod
    def rule_of(group: dict[str, Any]) -> UpdateRule:
        if group["momentum"] is not None:
            warnings.warn(
                "AdmetaS has no momentum: OneCycleLR and CyclicLR move its learning rate alone. Give them "
                "cycle_momentum=False to say so.",
                stacklevel=2,
            )
        return rule_of(
            group,
            beta1=group["beta"],
            dema=dema_of(group["dema"], lambd=group["lambd"], nu_scale=group["nu_scale"]),
            slow=slow_schedule_of(group["slow_step"], k=group["k"]),
        )
