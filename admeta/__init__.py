"""Optimizers with the double exponential moving average, their baselines, and a registry of them.

The classes are imported on first use, so that the registry can be read without torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from admeta.adabelief import AdaBelief
    from admeta.adam import KernelAdam, KernelAdamW, KernelRAdam
    from admeta.admetar import AdmetaR
    from admeta.admetas import AdmetaS
    from admeta.base import decay_groups
    from admeta.errors import (
        AdmetaError,
        ImportPathError,
        ParameterError,
        RegistrationError,
        UnknownOptimizerError,
        UnknownPresetError,
    )
    from admeta.info import OptimInfo, ParamInfo
    from admeta.ranger import Ranger
    from admeta.registry import OPTIMIZERS, cautions, create, create_captured, get, known_optimizers
    from admeta.roles import create_for_model, split_parameters
    from admeta.spaces import Categorical, Float, Int
    from admeta.theory import adam_equivalent_lr, beta_cliff, dema_gain, noise_gain, stability_limit

__all__ = [
    "OPTIMIZERS", "AdaBelief", "AdmetaError", "AdmetaR", "AdmetaS", "Categorical", "Float", "ImportPathError", "Int",
    "KernelAdam", "KernelAdamW", "KernelRAdam", "OptimInfo", "ParamInfo", "ParameterError", "Ranger",
    "RegistrationError", "UnknownOptimizerError", "UnknownPresetError", "adam_equivalent_lr", "beta_cliff",
    "cautions", "create", "create_captured", "create_for_model", "decay_groups", "dema_gain", "get", "known_optimizers",
    "noise_gain", "split_parameters", "stability_limit",
]  # fmt: skip

_HOME = {
    "adabelief": ("AdaBelief",),
    "adam": ("KernelAdam", "KernelAdamW", "KernelRAdam"),
    "admetar": ("AdmetaR",),
    "admetas": ("AdmetaS",),
    "base": ("decay_groups",),
    "errors": (
        "AdmetaError",
        "ImportPathError",
        "ParameterError",
        "RegistrationError",
        "UnknownOptimizerError",
        "UnknownPresetError",
    ),
    "info": ("OptimInfo", "ParamInfo"),
    "ranger": ("Ranger",),
    "registry": ("OPTIMIZERS", "cautions", "create", "create_captured", "get", "known_optimizers"),
    "roles": ("create_for_model", "split_parameters"),
    "spaces": ("Categorical", "Float", "Int"),
    "theory": ("adam_equivalent_lr", "beta_cliff", "dema_gain", "noise_gain", "stability_limit"),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}


def __getattr__(name: str) -> object:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
