"""torch's own descriptions of optimizers under test, filled in for ours.

``install`` puts them in place of torch's list, so that whatever iterates over ``optim_db`` sees our optimizers.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.testing._internal import common_optimizers
from torch.testing._internal.common_optimizers import ErrorOptimizerInput, OptimizerInfo, OptimizerInput

import admeta
from tests.admeta.cases import CASES

# torch's test helpers forbid setting backend flags in the whole process when they are imported; the training engine,
# whose tests run in this process too, sets some.
torch.backends.disable_global_flags.__globals__["__allow_nonbracketed_mutation_flag"] = True

_SHARED_ERRORS: list[tuple[dict[str, Any], str]] = [
    ({"lr": -0.1}, "Invalid learning rate: -0.1"),
    ({"lr": float("nan")}, "Invalid learning rate: nan"),
    ({"weight_decay": -1.0}, "Invalid weight_decay value: -1.0"),
    ({"lr": torch.tensor([0.1, 0.2])}, "Tensor lr must be 1-element"),
]
_ADAPTIVE_ERRORS: list[tuple[dict[str, Any], str]] = [
    ({"eps": -1e-8}, "Invalid epsilon value: -1e-08"),
    ({"betas": (1.0, 0.0)}, "Invalid beta parameter at index 0: 1.0"),
    ({"betas": (0.0, -0.1)}, "Invalid beta parameter at index 1: -0.1"),
]
_RECTIFIED_ERRORS: list[tuple[dict[str, Any], str]] = [
    *_ADAPTIVE_ERRORS,
    ({"rho_min": 3.0}, "Invalid rho_min value: 3.0"),
    ({"unrectified": "jump"}, "Invalid unrectified value: 'jump'"),
]
_SLOW_ERRORS: list[tuple[dict[str, Any], str]] = [
    ({"k": 0}, "Invalid k value: 0"),
    ({"k": 1.5}, "Invalid k value: 1.5"),
    ({"slow_step": "dynamic_0.7"}, "Invalid slow_step value: 'dynamic_0.7'"),
    ({"slow_step": 0.0}, "Invalid slow_step value: 0.0"),
    ({"slow_step": 1.5}, "Invalid slow_step value: 1.5"),
]
_DEMA_ERRORS: list[tuple[dict[str, Any], str]] = [
    ({"lambd": 0.0}, "Invalid lambd value: 0.0"),
    ({"lambd": 1.0}, "Invalid lambd value: 1.0"),
    ({"dema": "half"}, "Invalid dema value: 'half'"),
    ({"nu_scale": -1.0}, "Invalid nu_scale value: -1.0"),
    ({"preset": "papers"}, "unknown preset 'papers'; known presets: authors, default"),
]
ERRORS: dict[str, list[tuple[dict[str, Any], str]]] = {
    "admetar": [*_SHARED_ERRORS, *_RECTIFIED_ERRORS, *_SLOW_ERRORS, *_DEMA_ERRORS],
    "admetas": [*_SHARED_ERRORS, *_SLOW_ERRORS, *_DEMA_ERRORS, ({"beta": 1.0}, "Invalid beta value: 1.0")],
    "ranger": [*_SHARED_ERRORS, *_RECTIFIED_ERRORS, *_SLOW_ERRORS],
    "adabelief": [*_SHARED_ERRORS, *_RECTIFIED_ERRORS],
    "adam": [*_SHARED_ERRORS, *_ADAPTIVE_ERRORS, ({"amsgrad": True}, "Invalid amsgrad value: True")],
    "radam": [*_SHARED_ERRORS, *_ADAPTIVE_ERRORS],
    "adamw": [*_SHARED_ERRORS, *_ADAPTIVE_ERRORS, ({"amsgrad": True}, "Invalid amsgrad value: True")],
}


def _info(name: str, cls: type[torch.optim.Optimizer]) -> OptimizerInfo:
    def inputs(device: object, dtype: object = None) -> list[OptimizerInput]:
        return [
            OptimizerInput(params=None, kwargs={"lr": 1e-2, **case.options}, desc=case.label)
            for case in CASES
            if case.optimizer == name
        ]

    def errors(device: object, dtype: object) -> list[ErrorOptimizerInput]:
        return [
            ErrorOptimizerInput(
                OptimizerInput(params=None, kwargs=kwargs, desc=text), error_type=ValueError, error_regex=text
            )
            for kwargs, text in ERRORS[name]
        ]

    return OptimizerInfo(
        cls,
        optim_inputs_func=inputs,
        optim_error_inputs_func=errors,
        supported_impls=("foreach", "differentiable", "fused"),
        not_og_supported_flags=(),
        has_capturable_arg=True,
        supports_fused_on=("cuda",),
    )


INFOS = [
    _info("admetar", admeta.AdmetaR),
    _info("admetas", admeta.AdmetaS),
    _info("ranger", admeta.Ranger),
    _info("adabelief", admeta.AdaBelief),
    _info("adam", admeta.KernelAdam),
    _info("adamw", admeta.KernelAdamW),
    _info("radam", admeta.KernelRAdam),
]


def install() -> list[OptimizerInfo]:
    """Makes torch's list ours and returns it."""
    common_optimizers.optim_db[:] = INFOS
    return common_optimizers.optim_db
