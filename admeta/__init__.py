"""Optimizers with the double exponential moving average, their baselines, and a registry of them.

The classes are imported on first use, so that the registry can be read without torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from admeta.adabelief import AdaBelief
    from admeta.adam import KernelAdam, KernelAdamW
    from admeta.admetar import AdmetaR
    from admeta.admetas import AdmetaS
    from admeta.errors import (
        AdmetaError,
        ParameterError,
        RegistrationError,
        UnknownOptimizerError,
        UnknownPresetError,
    )
    from admeta.groups import decay_groups
    from admeta.info import OptimInfo, ParamInfo
    from admeta.radam import KernelRAdam
    from admeta.ranger import Ranger
    from admeta.registry import OPTIMIZERS, cautions, create, create_captured, get, known_optimizers
    from admeta.spaces import Categorical, Float, Int
    from admeta.theory import adam_equivalent_lr, beta_cliff, dema_gain, noise_gain, stability_limit

__all__ = [
    "OPTIMIZERS", "AdaBelief", "AdmetaError", "AdmetaR", "AdmetaS", "Categorical", "Float", "Int", "KernelAdam",
    "KernelAdamW", "KernelRAdam", "OptimInfo", "ParamInfo", "ParameterError", "Ranger", "RegistrationError",
    "UnknownOptimizerError", "UnknownPresetError", "adam_equivalent_lr", "beta_cliff", "cautions", "create",
    "create_captured", "decay_groups", "dema_gain", "get", "known_optimizers", "noise_gain", "stability_limit",
]  # fmt: skip

_HOME = {
    "OPTIMIZERS": "registry",
    "AdaBelief": "adabelief",
    "AdmetaError": "errors",
    "AdmetaR": "admetar",
    "AdmetaS": "admetas",
    "Categorical": "spaces",
    "Float": "spaces",
    "Int": "spaces",
    "KernelAdam": "adam",
    "KernelAdamW": "adam",
    "KernelRAdam": "radam",
    "OptimInfo": "info",
    "ParamInfo": "info",
    "ParameterError": "errors",
    "Ranger": "ranger",
    "RegistrationError": "errors",
    "UnknownOptimizerError": "errors",
    "UnknownPresetError": "errors",
    "adam_equivalent_lr": "theory",
    "beta_cliff": "theory",
    "cautions": "registry",
    "create": "registry",
    "create_captured": "registry",
    "decay_groups": "groups",
    "dema_gain": "theory",
    "get": "registry",
    "known_optimizers": "registry",
    "noise_gain": "theory",
    "stability_limit": "theory",
}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
