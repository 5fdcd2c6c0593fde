"""Parameter roles: the hidden matrices of a model, which some optimizers are for, and all its other parameters.

Owns: which parameter has which role, the joint step of two optimizers, and learning rates by role in the maximal update
parametrisation (µP). Sources of the division: Jordan et al., "Muon" (2024), whose embeddings, heads, norms and biases
are AdamW's; Vyas et al., SOAP (2024), section 4. Of µP: Yang, Hu et al., "Tensor Programs V" (2022), table 8.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from admeta import registry
from admeta.base import decay_groups
from admeta.info import OTHERS, OptimInfo

__all__ = ["JointOptimizer", "create_for_model", "find_head", "set_mode", "split_parameters"]

Named = list[tuple[str, nn.Parameter]]

_EMBEDDINGS = (nn.Embedding, nn.EmbeddingBag)
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_TABLE_WORDS = ("embed", "position", "token", "pos_", "cls")  # in the names of tables that are bare parameters


def find_head(model: nn.Module) -> nn.Module | None:
    """The output layer: `model.output_head`, or else the last module with a weight of two or more dimensions.

    Last is in the order of registration (`named_modules`), in which the heads of torchvision's, transformers' and our
    own models come last. Embeddings and norms do not count. A model that registers its layers in another order states
    its head in an attribute `output_head`.

    Returns:
        The module that owns the weight; None where no module has one.
    """
    stated = getattr(model, "output_head", None)
    if isinstance(stated, nn.Module):
        return stated
    found = [
        module
        for module in model.modules()
        if not _is_table_or_norm(module) and any(p.ndim >= 2 for p in module.parameters(recurse=False))
    ]
    return found[-1] if found else None


def split_parameters(model: nn.Module) -> tuple[Named, Named]:
    """The hidden matrices, and all other parameters, as (name, parameter) pairs in the model's order.

    A parameter is a hidden matrix unless it has fewer than two dimensions or one row (biases, gains, class tokens), it
    is an embedding's or a norm's, it is a bare parameter named as a table of positions or tokens, it embeds the patches
    of an image, or it is in the output layer (`find_head`). A weight that two modules share, such as an embedding tied
    to the head, is a matrix only where both say so. Other convolutions of 3 and 4 dimensions are matrices too. Frozen
    parameters are left out.
    """
    head, patches = find_head(model), _find_patch_embedding(model)
    others: set[int] = set()
    for module in model.modules():
        whole = module is head or module is patches or _is_table_or_norm(module)
        for name, parameter in module.named_parameters(recurse=False):
            table = not _has_own_weight(module) and any(word in name.lower() for word in _TABLE_WORDS)
            if whole or table or parameter.ndim < 2 or parameter.shape[0] == 1:
                others.add(id(parameter))
    if head is not None:
        others |= {id(parameter) for parameter in head.parameters()}
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    return [pair for pair in named if id(pair[1]) not in others], [pair for pair in named if id(pair[1]) in others]


def _is_table_or_norm(module: nn.Module) -> bool:
    return isinstance(module, _EMBEDDINGS) or "norm" in type(module).__name__.lower()


def _find_patch_embedding(model: nn.Module) -> nn.Module | None:
    """The first convolution, if its windows are side by side, as in the input layer of transformers for images."""
    first = next((module for module in model.modules() if isinstance(module, _CONVOLUTIONS)), None)
    return first if first is not None and max(first.stride) > 1 and first.stride == first.kernel_size else None


def _has_own_weight(module: nn.Module) -> bool:
    return isinstance(getattr(module, "weight", None), Tensor)


def create_for_model(
    name: str,
    model: nn.Module,
    settings: Mapping[str, Any],
    *,
    weight_decay_on: Literal["all", "matrices"] = "all",
    captured: bool = False,
) -> Optimizer:
    """An optimizer over a model's parameters that are trained, by role where its entry has roles.

    A model in the maximal update parametrisation has an attribute `width_over_base`, its width over that of the model
    whose settings it takes over; the learning rate of each role then follows from it (`_lr_factors`). The product of
    learning rate and weight decay is the same for all roles, as in the package of the authors, mup.

    Args:
        name: a registered name, an import path, or two of these joined by "+": the first on the hidden matrices.
        settings: constructor keywords, those of the optimizer of the other parameters as ``others.lr``.
        weight_decay_on: "matrices" takes the decay off parameters of fewer than two dimensions.
        captured: the step will be captured in a graph: as `registry.create_captured`.

    Raises:
        admeta.errors.AdmetaError: no such optimizer.
        ValueError: a constructor refuses a value or a parameter, the model has no hidden matrices, or the optimizer has
            no rule for the model's width.
    """
    info = registry.get(name)
    width = float(getattr(model, "width_over_base", 1.0))
    if width != 1.0 and (reason := registry.why_no_width_rule(name)):
        raise ValueError(reason)
    if not info.others:
        registry.get_whole(name)
        trained = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
        if width == 1.0:
            return _create(info, [(trained, 1.0)], settings, weight_decay_on, captured=captured)
        of_matrices, of_others = _lr_factors(info, settings, width=width)
        matrices, others = split_parameters(model)
        parts = [(named, factor) for named, factor in ((others, of_others), (matrices, of_matrices)) if named]
        return _create(info, parts, settings, weight_decay_on, captured=captured)
    matrices, others = split_parameters(model)
    if not matrices:
        raise ValueError(
            f"{name} moves hidden matrices and this model has none, only embeddings, norms, biases and an output layer"
        )
    own = {key: value for key, value in settings.items() if not key.startswith(OTHERS)}
    added = {key.removeprefix(OTHERS): value for key, value in settings.items() if key.startswith(OTHERS)}
    factor = _lr_factors(info, own, width=width)[0]
    members = [_create(info, [(matrices, factor)], own, weight_decay_on, captured=captured)]
    if others:
        second = registry.get(info.others)
        factor = _lr_factors(second, added, width=width)[1]
        members.append(_create(second, [(others, factor)], added, weight_decay_on, captured=captured))
    return JointOptimizer(members)


def _lr_factors(info: OptimInfo, settings: Mapping[str, Any], *, width: float) -> tuple[float, float]:
    """What the learning rate is multiplied by on hidden matrices, and on all other parameters.

    Source: table 8 of Tensor Programs V for "adam" (the update's entries do not depend on the gradient's scale) and
    "sgd" (it is linear in the gradient). "muon": its orthogonal update of a matrix has the spectral norm that µP asks
    for (Yang et al., "A Spectral Condition for Feature Learning", 2023), unless `use_adjusted_lr` makes it larger by
    the square root of the width.

    Args:
        width: of the model, over that of the base model.
    """
    match info.width_rule:
        case "adam":
            return 1 / width, 1.0
        case "sgd":
            return 1.0, width
        case "muon":
            return width**-0.5 if settings.get("use_adjusted_lr") else 1.0, 1.0
    return 1.0, 1.0


def _create(
    info: OptimInfo,
    parts: Sequence[tuple[Named, float]],
    settings: Mapping[str, Any],
    weight_decay_on: Literal["all", "matrices"],
    *,
    captured: bool,
) -> Optimizer:
    """The optimizer over parameters with the factor on their learning rate."""
    groups: Any = []
    decay = registry.weight_decay(info, settings)
    for named, factor in parts:
        own: list[dict[str, Any]] = [{"params": named}]
        if decay is not None and (weight_decay_on == "matrices" or factor != 1.0):
            own = decay_groups(named, decay / factor, on=weight_decay_on)
        if factor != 1.0:
            lr = settings.get("lr", info.parameters["lr"].default)
            own = [{**group, "lr": lr * factor} for group in own]
        groups += own
    if len(groups) == 1 and groups[0].keys() == {"params"}:
        groups = groups[0]["params"]
    if info.open_prefixes or info.group_options:  # other packages' constructors may look at the parameters themselves
        whole = groups if isinstance(groups[0], dict) else [{"params": groups}]
        groups = [{**group, "params": [p for _, p in group["params"]], **info.group_options} for group in whole]
    return registry.construct(info, groups, settings, captured=captured)


class JointOptimizer(Optimizer):
    """Optimizers over disjoint parameters that step together; `param_groups` are theirs, one after another.

    Args:
        members: two or more optimizers.
    """

    def __init__(self, members: Sequence[Optimizer]) -> None:
        self.members = tuple(members)
        parameters = [p for member in members for group in member.param_groups for p in group["params"]]
        super().__init__(parameters, {})  # for the hooks; its one group is replaced
        self.adopt_groups()

    @property
    def takes_narrow_gradients(self) -> bool:
        """Whether every member reads bf16 gradients."""
        return all(getattr(member, "takes_narrow_gradients", False) for member in self.members)

    def step(self, closure: Any = None) -> Any:
        """One step of every member.

        Args:
            closure: computes the loss and the gradients, as Lightning's does; called once, before the members step.

        Returns:
            What the closure returns.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for member in self.members:
            member.step()
        return loss

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        if self.param_groups:  # empty as torch's constructor calls this
            raise ValueError("a joint optimizer has its members' groups; add one to a member, then call adopt_groups()")
        super().add_param_group(param_group)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "members": self.members}

    def zero_grad(self, set_to_none: bool = True) -> None:  # noqa: FBT001, FBT002 - torch's signature
        for member in self.members:
            member.zero_grad(set_to_none)

    def train(self) -> None:
        """Switch members that average weights to their training weights."""
        for member in self.members:
            set_mode(member, "train")

    def eval(self) -> None:
        """Switch members that average weights to the averaged weights."""
        for member in self.members:
            set_mode(member, "eval")

    def state_dict(self) -> dict[str, Any]:
        """The members' states, in order."""
        return {"members": [member.state_dict() for member in self.members]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        for member, state in zip(self.members, state_dict["members"], strict=True):
            member.load_state_dict(state)
        self.adopt_groups()

    def adopt_groups(self) -> None:
        """Loading a state replaces a member's groups by new ones."""
        self.param_groups = [group for member in self.members for group in member.param_groups]


def set_mode(optimizer: Optimizer, mode: Literal["train", "eval"]) -> None:
    """Call the optimizer's `train()` or `eval()` where it has them: Schedule-Free's evaluates averaged weights."""
    switch = getattr(optimizer, mode, None)
    if callable(switch):
        with torch.no_grad():
            switch()
