"""The optimizers, settings and implementations that every conformance test runs over."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

import admeta

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
OURS = ("admetar", "admetas", "ranger", "adabelief", "adamw", "adam", "radam")
# ``create`` gives torch's own of these, a captured step ours.
KERNEL_CLASSES: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adam": admeta.KernelAdam,
    "adamw": admeta.KernelAdamW,
    "radam": admeta.KernelRAdam,
}
IMPLEMENTATIONS: dict[str, dict[str, Any]] = {
    "single": {"foreach": False, "fused": False},
    "foreach": {"foreach": True, "fused": False},
    "fused": {"fused": True},
}


@dataclass(frozen=True)
class Case:
    """One optimizer at one setting."""

    optimizer: str
    label: str
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def id(self) -> str:
        return f"{self.optimizer}-{self.label}"

    def create(self, params: Any, **flags: Any) -> torch.optim.Optimizer:
        given = {**self.options, **flags}
        if self.optimizer in KERNEL_CLASSES:
            return KERNEL_CLASSES[self.optimizer](params, **given)
        return admeta.create(self.optimizer, params, **given)


def _cases() -> list[Case]:
    decay = {"weight_decay": 0.1}
    cases = [
        Case("admetar", "defaults"),
        Case("admetar", "paper", {"preset": "paper", "lr": 1e-4}),
        Case("admetar", "paper-finetune", {"preset": "paper_finetune", "lr": 1e-4}),
        Case("admetar", "authors", {"preset": "authors"}),
        Case("admetar", "released", {"preset": "released"}),
        Case("admetar", "nu0-small-lambd", {"nu_scale": 0.0, "lambd": 0.02}),
        Case("admetar", "no-dema", {"dema": "off"}),
        Case("admetar", "no-backward", {"dema": "off", "betas": (0.0, 0.999)}),
        Case("admetar", "no-lookahead", {"slow_step": None}),
        Case("admetar", "constant-lookahead", {"slow_step": 0.5, "k": 3}),
        Case("admetar", "no-rectify", {"rectify": False, "eps": 1e-8}),
        Case("admetar", "decoupled", decay),
        Case("admetar", "l2", {**decay, "decoupled_weight_decay": False, "maximize": True}),
        Case("admetar", "short-memory", {"betas": (0.5, 0.5), "unrectified": "sgd"}),
        Case("admetas", "defaults"),
        Case("admetas", "paper-finetune", {"preset": "paper_finetune"}),
        Case("admetas", "authors", {"preset": "authors"}),
        Case("admetas", "released", {"preset": "released"}),
        Case("admetas", "no-dema", {"dema": "off", "beta": 0.9}),
        Case("admetas", "no-backward", {"dema": "off", "beta": 0.0}),
        Case("admetas", "no-lookahead", {"slow_step": None, "lambd": 0.3}),
        Case("admetas", "l2", decay),
        Case("admetas", "decoupled", {**decay, "decoupled_weight_decay": True, "maximize": True}),
        Case("ranger", "defaults"),
        Case("ranger", "not-centralized", {"centralize": False, "unrectified": "skip"}),
        Case("ranger", "decay", {**decay, "eps": 1e-9, "betas": (0.9, 0.999)}),
        Case("ranger", "l2", {**decay, "decoupled_weight_decay": False, "maximize": True}),
        Case("adabelief", "defaults"),
        Case("adabelief", "as-tuned", {"rectify": False, "eps": 1e-8, "decoupled_weight_decay": False, **decay}),
        Case("adabelief", "skip", {"unrectified": "skip", "rho_min": 4.0, "maximize": True}),
        Case("adam", "defaults"),
        Case("adam", "l2", {**decay, "maximize": True}),
        Case("radam", "defaults", {"eps": 1e-4}),  # large enough to tell where it is added
        Case("radam", "decoupled", {**decay, "decoupled_weight_decay": True, "betas": (0.5, 0.9)}),
        Case("adamw", "defaults"),
        Case("adamw", "other-betas", {**decay, "betas": (0.5, 0.9), "eps": 1e-4, "maximize": True}),
    ]
    return cases


CASES = _cases()
DEFAULTS = [case for case in CASES if case.label == "defaults"]


def case_id(case: Case) -> str:
    return case.id


def all_options(case: Case) -> dict[str, Any]:
    """Every option's value as the optimizer resolves it."""
    probe = case.create([torch.nn.Parameter(torch.zeros(1))])
    return dict(probe.defaults)
