"""The optimizers that a study may name: look-up, construction, cautions.

Owns: the registry's functions and optimizers from other packages (entry points). Does not own: the built-in
entries (admeta.builtin) and the update rules. Imports no torch; ``create`` does.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

from admeta.builtin import OPTIMIZERS
from admeta.errors import RegistrationError, UnknownOptimizerError
from admeta.info import OptimInfo
from admeta.theory import beta_cliff, stability_limit

if TYPE_CHECKING:
    from torch.optim import Optimizer
    from torch.optim.optimizer import ParamsT

__all__ = ["OPTIMIZERS", "cautions", "create", "create_captured", "get", "known_optimizers"]

ENTRY_POINT_GROUP = "admeta.optimizers"


@cache
def known_optimizers() -> Mapping[str, OptimInfo]:
    """Built-in optimizers and those of installed packages (entry point group ``admeta.optimizers``), by name.

    Each entry point names an OptimInfo whose ``name`` is the entry point's.

    Raises:
        RegistrationError: an entry point is not an OptimInfo, or its name is taken.
    """
    known = dict(OPTIMIZERS)
    for point in entry_points(group=ENTRY_POINT_GROUP):
        info = point.load()
        if not isinstance(info, OptimInfo):
            raise RegistrationError(
                f"entry point {point.name!r} = {point.value!r} is a {type(info).__name__}; the group "
                f"{ENTRY_POINT_GROUP!r} takes admeta.OptimInfo objects. Point it at one."
            )
        if info.name != point.name or info.name in known:
            raise RegistrationError(
                f"entry point {point.name!r} = {point.value!r} offers the optimizer {info.name!r}; the name must "
                f"be the entry point's and not one of {', '.join(sorted(known))}. Rename it."
            )
        known[info.name] = info
    return known


def get(name: str) -> OptimInfo:
    """The entry of one optimizer.

    Raises:
        UnknownOptimizerError: with the known names and the nearest one.
    """
    known = known_optimizers()
    if name not in known:
        raise UnknownOptimizerError(name=name, known=known)
    return known[name]


def create(name: str, params: ParamsT, **kwargs: Any) -> Optimizer:
    """Constructs an optimizer by its registered name.

    Args:
        name: a registered name.
        params: parameters, named parameters or groups, as any torch optimizer takes them.
        **kwargs: constructor keywords; JSON lists (``betas``) become tuples. Implementation flags (``fused``,
            ``foreach``, ``capturable``, ``maximize``) are passed through. The rest has its default.

    Raises:
        UnknownOptimizerError: no such optimizer.
        ValueError: the constructor refuses a value.
    """
    info = get(name)
    return _construct(info.target, params, {**info.constructor_kwargs, **kwargs})


def create_captured(name: str, params: ParamsT, **kwargs: Any) -> Optimizer:
    """As ``create``, for a ``step`` that is captured in a CUDA graph: with what the registry says that needs.

    ``graph_kwargs`` are given, and the class is ``graph_target`` where there is one, Triton is installed and no option
    asks for what it lacks. Its checkpoints are those of ``create``'s.

    Args:
        name, params, **kwargs: as of ``create``; the parameters are on a card, or will be when ``step`` is called.

    Raises:
        UnknownOptimizerError: no such optimizer.
        ValueError: the constructor refuses a value.
    """
    from admeta.implementation import has_triton

    info = get(name)
    given = {**info.constructor_kwargs, **info.graph_kwargs, **kwargs}
    lacking = any(given.get(option) for option in info.graph_target_lacks)
    own = bool(info.graph_target) and not lacking and has_triton()
    return _construct(info.graph_target if own else info.target, params, given)


def _construct(target: str, params: ParamsT, given: Mapping[str, Any]) -> Optimizer:
    module, _, attribute = target.partition(":")
    cls = getattr(importlib.import_module(module), attribute)
    arguments = {key: tuple(value) if isinstance(value, list) else value for key, value in given.items()}
    optimizer: Optimizer = cls(params, **arguments)
    return optimizer


def cautions(name: str, ends: Mapping[str, Sequence[Any]]) -> tuple[str, ...]:
    """Warnings about settings that are valid but risky; empty if there are none.

    Args:
        name: a registered name.
        ends: by parameter, the least and greatest value, or all choices, that it can have; others have their default.
    """
    info = get(name)
    known = {key: ends.get(key, (parameter.default,)) for key, parameter in info.parameters.items()}
    if name != "admetas" or "full" not in known["dema"]:
        return ()
    numbers = [[end for end in known[key] if isinstance(end, int | float)] for key in ("lr", "beta", "lambd")]
    if not all(numbers):  # a preset sets them
        return ()
    lr, beta, lambd = map(max, numbers)
    cliff = beta_cliff(lambd)
    if beta <= cliff:
        return ()
    return (
        f"admetas: beta reaches {beta:g}, past the stability cliff β* = {cliff:.3g} at lambd = {lambd:g}: "
        f"at lr = {lr:g} it stays stable only up to curvature {stability_limit(lr, beta, lambd):.3g}, against "
        f"{stability_limit(lr, cliff, lambd):.3g} at β*. Keep beta below {cliff:.3g} or lower lr.",
    )
