"""The trial's optimizer, built as the engine needs it: parameter groups, and on a graph lr as a device tensor."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn

from admeta import registry
from admeta.base import decay_groups
from tasks.errors import CheckpointError

NamedParameters = Iterable[tuple[str, nn.Parameter]]


def build_optimizer(
    parameters: NamedParameters,
    *,
    name: str,
    params: Mapping[str, Any],
    weight_decay_on: Literal["all", "matrices"] = "all",
    captured: bool = False,
) -> torch.optim.Optimizer:
    """An optimizer of `admeta.registry` over a model's parameters.

    Args:
        name: its registered name.
        params: its constructor keywords, as a study's trial has them (JSON lists allowed for tuples).
        weight_decay_on: "matrices" takes the decay off parameters of fewer than two dimensions.
        captured: its steps will be captured in a graph: `registry.create_captured`.

    Raises:
        admeta.errors.AdmetaError: an unknown optimizer, or a parameter or value it does not take.
    """
    info = registry.get(name)
    groups: Any = list(parameters)
    if weight_decay_on == "matrices" and "weight_decay" in info.parameters:
        decay = params.get("weight_decay", info.parameters["weight_decay"].default)
        groups = decay_groups(groups, float(decay), on="matrices")
    create = registry.create_captured if captured else registry.create
    return create(name, groups, **params)


def lr_tensors(optimizer: torch.optim.Optimizer, *, device: torch.device) -> list[Tensor]:
    """Turn each group's lr into a 0-dim float32 tensor on the device, which a captured step reads at each replay."""
    tensors = []
    for group in optimizer.param_groups:
        group["lr"] = torch.tensor(float(group["lr"]), dtype=torch.float32, device=device)
        tensors.append(group["lr"])
    return tensors


IMPLEMENTATION_FLAGS = ("capturable", "foreach", "fused", "differentiable")


def load_optimizer_state(optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
    """Load a state, keeping how this optimizer is implemented: a run may resume on another device, eager too.

    Raises:
        CheckpointError: the state is not of this optimizer over these parameters.
    """
    own = optimizer.param_groups
    sizes = [[len(group["params"]) for group in groups] for groups in (state["param_groups"], own)]
    if sizes[0] != sizes[1]:
        raise CheckpointError(
            f"the checkpoint's optimizer has groups of {sizes[0]} parameters, this run's of {sizes[1]}; resume with "
            "the version that wrote it, or start without it"
        )
    groups = [
        {
            **{name: value for name, value in loaded.items() if name not in IMPLEMENTATION_FLAGS},
            **{flag: group[flag] for flag in IMPLEMENTATION_FLAGS if flag in group},
        }
        for loaded, group in zip(state["param_groups"], own, strict=True)
    ]
    optimizer.load_state_dict({**state, "param_groups": groups})
