"""Checks of option values that the optimizers share, with torch's messages where torch has the option."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from admeta.presets import DEMA_FORMS, SLOW_STEPS, UNRECTIFIED_FORMS

__all__ = [
    "check_beta",
    "check_betas",
    "check_dema",
    "check_eps",
    "check_lr",
    "check_rectification",
    "check_slow",
    "check_weight_decay",
]


def check_lr(group: dict[str, Any]) -> None:
    lr = group["lr"]
    if isinstance(lr, Tensor) and lr.numel() != 1:
        raise ValueError("Tensor lr must be 1-element")
    if not lr >= 0.0:
        raise ValueError(f"Invalid learning rate: {lr}")


def check_eps(group: dict[str, Any]) -> None:
    if not group["eps"] >= 0.0:
        raise ValueError(f"Invalid epsilon value: {group['eps']}")


def check_betas(group: dict[str, Any]) -> None:
    betas = group["betas"]
    if len(betas) != 2:
        raise ValueError(f"Invalid betas: {betas}; a pair is needed")
    for index, beta in enumerate(betas):
        if not 0.0 <= beta < 1.0:
            raise ValueError(f"Invalid beta parameter at index {index}: {beta}")


def check_beta(group: dict[str, Any]) -> None:
    if not 0.0 <= group["beta"] < 1.0:
        raise ValueError(f"Invalid beta value: {group['beta']}")


def check_weight_decay(group: dict[str, Any]) -> None:
    if not group["weight_decay"] >= 0.0:
        raise ValueError(f"Invalid weight_decay value: {group['weight_decay']}")


def check_dema(group: dict[str, Any]) -> None:
    if not 0.0 < group["lambd"] < 1.0:
        raise ValueError(f"Invalid lambd value: {group['lambd']}; it must lie in (0, 1)")
    if group["dema"] not in DEMA_FORMS:
        raise ValueError(f"Invalid dema value: {group['dema']!r}; it must be one of {', '.join(DEMA_FORMS)}")
    if not group["nu_scale"] >= 0.0:
        raise ValueError(f"Invalid nu_scale value: {group['nu_scale']}")


def check_slow(group: dict[str, Any]) -> None:
    if isinstance(group["k"], bool) or not isinstance(group["k"], int) or group["k"] < 1:
        raise ValueError(f"Invalid k value: {group['k']}; it must be a whole number of steps, at least 1")
    slow_step = group["slow_step"]
    if slow_step is None or slow_step in SLOW_STEPS:
        return
    if isinstance(slow_step, bool | str) or not 0.0 < slow_step <= 1.0:
        raise ValueError(
            f"Invalid slow_step value: {slow_step!r}; it must be {' or '.join(SLOW_STEPS)}, "
            "a number in (0, 1], or None for no lookahead"
        )


def check_rectification(group: dict[str, Any]) -> None:
    if not group["rho_min"] >= 4.0:
        raise ValueError(f"Invalid rho_min value: {group['rho_min']}; it must be at least 4")
    if group["unrectified"] not in UNRECTIFIED_FORMS:
        known = ", ".join(UNRECTIFIED_FORMS)
        raise ValueError(f"Invalid unrectified value: {group['unrectified']!r}; it must be one of {known}")
