"""Which of the three implementations a group's update takes, by torch's flags and rules."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from admeta.rule import Number

__all__ = [
    "check_capturable",
    "check_flags",
    "fused_available",
    "has_triton",
    "prefers_fused",
    "refuse_unfused",
    "uses_foreach",
]

_CAPTURABLE_DEVICES = ("cuda", "xpu", "hpu")


def check_flags(group: dict[str, Any]) -> None:
    """Flags that exclude one another, as torch.optim.Adam checks them."""
    if group["fused"]:
        if group["differentiable"]:
            raise RuntimeError("`fused` does not support `differentiable`")
        if group["foreach"]:
            raise RuntimeError("`fused` and `foreach` cannot be `True` together.")
    narrow = group.get("state_dtype") == "bfloat16" or group.get("rounding") == "stochastic"
    if narrow and group["differentiable"]:
        raise RuntimeError("`differentiable` needs state_dtype='float32' and rounding='nearest'")
    if isinstance(group["lr"], Tensor) and group["foreach"] and not group["capturable"]:
        raise ValueError("lr as a Tensor is not supported for capturable=False and foreach=True")


def check_capturable(params: Sequence[Tensor]) -> None:
    """torch's rule: a capturable optimizer has its parameters on devices that can capture (AssertionError)."""
    if torch.compiler.is_compiling() or all(p.device.type in _CAPTURABLE_DEVICES for p in params):
        return
    raise AssertionError(
        f"If capturable=True, params and state_steps must be on supported devices: {list(_CAPTURABLE_DEVICES)}."
    )


@cache
def has_triton() -> bool:
    """Whether the kernels' compiler is installed."""
    return find_spec("triton") is not None


def _interpreting() -> bool:
    """Triton's interpreter runs the kernels on CPU tensors, for ``fused=True`` alone: tests without a GPU."""
    return os.environ.get("TRITON_INTERPRET", "0") == "1"


def _has_a_kernel(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point or dtype.is_complex


def fused_available(params: Sequence[Tensor]) -> bool:
    """Whether the fused update is a good choice for all of these parameters: on CUDA, with Triton installed."""
    return has_triton() and all(p.device.type == "cuda" and _has_a_kernel(p.dtype) for p in params)


def refuse_unfused(params: Sequence[Tensor]) -> None:
    """Raises torch's error (RuntimeError) for a parameter that ``fused=True`` can't take."""
    devices = ("cuda", "cpu") if _interpreting() else ("cuda",)
    for p in params:
        if not (has_triton() and p.device.type in devices and _has_a_kernel(p.dtype)):
            raise RuntimeError(
                "`fused=True` requires all the params to be floating point Tensors of supported devices: "
                f"['cuda'] (with Triton installed) but {p.dtype} and {p.device.type}"
            )


def prefers_fused(group: dict[str, Any]) -> bool:
    """Fused where it is asked for, or nothing is and all parameters can take it; never in a compiled step."""
    if torch.compiler.is_compiling():
        return False
    if group["fused"] is not None:
        return bool(group["fused"])
    return group["foreach"] is None and not group["differentiable"] and fused_available(group["params"])


def uses_foreach(group: dict[str, Any], lr: Number, *, on_device: bool) -> bool:
    """torch's choice: foreach unless told otherwise, differentiable, or lr is a tensor on an uncaptured step."""
    foreach: bool | None = group["foreach"]
    tensor_lr = isinstance(lr, Tensor) and not on_device
    if foreach and group["differentiable"]:
        raise AssertionError("_foreach ops don't support autograd")
    if foreach and tensor_lr:
        raise RuntimeError("lr as a Tensor is not supported for capturable=False and foreach=True")
    if foreach is None:
        return not group["differentiable"] and not tensor_lr
    return foreach
