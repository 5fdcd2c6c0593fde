"""The optimizers that a study may name: look-up, construction, the code that constructs one, cautions.

Owns: the registry's functions, optimizers from other packages (entry points), and names without an entry: import
paths (``torch.optim:NAdam``), and ``a+b``, which is a on the hidden matrices and b on all other parameters. Does not
own: the entries (admeta.builtin, admeta.baselines) and the update rules. Imports no torch; ``create`` does.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache, lru_cache
from importlib.metadata import entry_points
from textwrap import indent
from typing import TYPE_CHECKING, Any, Literal

from admeta.baselines import BASELINES
from admeta.builtin import BUILTIN
from admeta.errors import AdmetaError, ImportPathError, RegistrationError, UnknownOptimizerError
from admeta.imports import is_path, load_optimizer, split_path, why_refused
from admeta.info import OTHERS, OptimInfo, Source, of_others, parameters_with
from admeta.theory import beta_cliff, stability_limit

if TYPE_CHECKING:
    from torch.optim import Optimizer
    from torch.optim.optimizer import ParamsT

__all__ = [
    "OPTIMIZERS",
    "can_be_captured",
    "cautions",
    "construct",
    "construction",
    "create",
    "create_captured",
    "get",
    "get_whole",
    "known_optimizers",
    "weight_decay",
]

OPTIMIZERS: Mapping[str, OptimInfo] = {**BUILTIN, **BASELINES}

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
    """The entry of one optimizer: a registered name, an import path, or two of these joined by "+".

    Nothing is imported: whether there is such a class is found when it is constructed.

    Raises:
        UnknownOptimizerError: with the known names and the nearest one.
        ImportPathError: a malformed path or joint name, or a class that cannot train on the engine, with the reason.
    """
    first, plus, second = name.partition("+")
    if "+" in second:  # also thousands of them
        raise ImportPathError(
            f"{name[:100]!r} joins more than two optimizers; name one for the hidden matrices and one for all others"
        )
    if plus:
        return _join(get(first), get(second))
    if is_path(name):
        return _imported(name)
    known = known_optimizers()
    if name not in known:
        raise UnknownOptimizerError(name=name, known=known)
    return known[name]


@lru_cache(maxsize=256)  # what clients ask for, too
def _imported(path: str) -> OptimInfo:
    module, cls = split_path(path)
    if reason := why_refused(path):
        raise ImportPathError(f"{path!r} cannot train here: {reason}")
    muon_family = module.split(".")[0] == "pytorch_optimizer" and cls in _MARKS_MATRICES
    return OptimInfo(
        name=path,
        target=path,
        title=cls,
        description=f"The class {cls} of {module}.",
        source=Source(module, ""),
        parameters=parameters_with(lr=None),
        default_space={},
        fixed={},
        finetune_space={},
        finetune_fixed={},
        group_options={"use_muon": True} if muon_family else {},
        open_prefixes=("",),
    )


_MARKS_MATRICES = ("AdaGO", "AdaMuon", "DistributedMuon", "Muon", "MuonClip", "NorMuon")
"""Classes of pytorch-optimizer that update a group by Muon's rule where it says `use_muon`."""


def _join(matrices: OptimInfo, others: OptimInfo) -> OptimInfo:
    """a+b: the settings of both, those of b under `others.`; what a's own entry says of other parameters goes."""
    if others.others:
        raise ImportPathError(
            f"{others.name!r} moves hidden matrices alone, so it cannot be the optimizer of the other parameters; "
            "name one that moves any, such as adamw"
        )

    def joined(own: Mapping[str, Any], added: Mapping[str, Any]) -> dict[str, Any]:
        kept = {key: value for key, value in own.items() if not key.startswith(OTHERS)}
        return kept | {f"{OTHERS}{key}": value for key, value in added.items()}

    kept = {key: value for key, value in matrices.parameters.items() if not key.startswith(OTHERS)}
    first = matrices.name.partition("+")[0]
    return replace(
        matrices,
        name=f"{first}+{others.name}",
        title=f"{matrices.title} and {others.title}",
        description=f"{matrices.title} on the hidden matrices, {others.title} on all other parameters.",
        parameters=kept | of_others(others.parameters),
        default_space=joined(matrices.default_space, others.default_space),
        fixed=joined(matrices.fixed, others.fixed),
        finetune_space=joined(matrices.finetune_space, others.finetune_space),
        finetune_fixed=joined(matrices.finetune_fixed, others.finetune_fixed),
        paper_spaces={},
        others=others.name,
        open_prefixes=matrices.open_prefixes + tuple(f"{OTHERS}{prefix}" for prefix in others.open_prefixes),
    )


def create(name: str, params: ParamsT, **kwargs: Any) -> Optimizer:
    """Constructs an optimizer by its name.

    Args:
        name: a registered name or an import path.
        params: parameters, named parameters or groups, as any torch optimizer takes them.
        **kwargs: constructor keywords; JSON lists (``betas``) become tuples. Implementation flags (``fused``,
            ``foreach``, ``capturable``, ``maximize``) are passed through. The rest has its default.

    Raises:
        UnknownOptimizerError: no such optimizer.
        ImportPathError: the path leads to no optimizer.
        ValueError: the constructor refuses a value, or the optimizer needs the model: `admeta.create_for_model`.
    """
    return construct(get_whole(name), params, kwargs)


def create_captured(name: str, params: ParamsT, **kwargs: Any) -> Optimizer:
    """As ``create``, for a ``step`` that is captured in a CUDA graph: with what the registry says that needs.

    ``graph_kwargs`` are given, and the class is ``graph_target`` where there is one, Triton is installed and no option
    asks for what it lacks. Its checkpoints are those of ``create``'s.

    Args:
        name, params, **kwargs: as of ``create``; the parameters are on a card, or will be when ``step`` is called.

    Raises:
        UnknownOptimizerError, ImportPathError, ValueError: as of ``create``.
    """
    return construct(get_whole(name), params, kwargs, captured=True)


def can_be_captured(name: str) -> bool:
    """Whether its step runs in a CUDA graph. Imports the class that a path names, for its `capturable` flag."""
    info = get(name)
    flags = _graph_kwargs(info)
    return bool(flags) and (not info.others or can_be_captured(info.others))


def _graph_kwargs(info: OptimInfo) -> Mapping[str, object]:
    """What a captured step's constructor needs; for an imported class torch's `capturable` flag, where it has one."""
    if "" in info.open_prefixes:
        return {"capturable": True} if "capturable" in _keywords(info) else {}
    return info.graph_kwargs


def _keywords(info: OptimInfo) -> Mapping[str, inspect.Parameter]:
    """The constructor's keywords. Imports the class."""
    return inspect.signature(load_optimizer(info.target)).parameters


def weight_decay(info: OptimInfo, settings: Mapping[str, Any]) -> float | None:
    """The weight decay under these settings, by default the constructor's own; None for an optimizer without one."""
    found = settings.get("weight_decay")
    if found is None and "weight_decay" in info.parameters:
        found = info.parameters["weight_decay"].default
    elif found is None and "" in info.open_prefixes and "weight_decay" in _keywords(info):
        found = _keywords(info)["weight_decay"].default
    return float(found) if isinstance(found, int | float) else None


def why_no_width_rule(name: str) -> str | None:
    """Why the maximal update parametrisation does not hold for an optimizer; None where it has a rule.

    Args:
        name: a registered name, an import path, or two of these joined by "+".
    """
    info = get(name)
    for one in (info, get(info.others)) if info.others else (info,):
        if not one.width_rule:
            known = ", ".join(key for key, entry in known_optimizers().items() if entry.width_rule)
            return (
                f"{one.name} has no known rule of how its learning rate depends on the width, which 'mup' needs; use "
                f"one of {known}, or the standard parametrisation"
            )
    return None


def get_whole(name: str) -> OptimInfo:
    """The entry of an optimizer that moves all of a model's parameters."""
    info = get(name)
    if info.others or info.group_options:
        raise ValueError(
            f"{name} moves a model's hidden matrices, and another optimizer the other parameters: in a study give it "
            "roles: {others: {name: adamw}}; in Python use admeta.create_for_model"
        )
    return info


def construct(info: OptimInfo, params: Any, settings: Mapping[str, Any], *, captured: bool = False) -> Optimizer:
    """The optimizer of one entry over all given parameters, whatever its roles; see ``create`` and ``create_captured``.

    Raises:
        ImportPathError: its target cannot be imported or is not an optimizer.
        ValueError: the constructor refuses a value.
    """
    given = {**info.constructor_kwargs, **settings}
    target = info.target
    if captured:
        from admeta.implementation import has_triton

        given = {**info.constructor_kwargs, **_graph_kwargs(info), **settings}
        lacking = any(given.get(option) for option in info.graph_target_lacks)
        if info.graph_target and not lacking and has_triton():
            target = info.graph_target
    arguments = {key: tuple(value) if isinstance(value, list) else value for key, value in given.items()}
    optimizer: Optimizer = load_optimizer(target)(params, **arguments)
    return optimizer


def cautions(name: str, ends: Mapping[str, Sequence[Any]]) -> tuple[str, ...]:
    """Warnings about settings that are valid but risky; empty if there are none.

    Args:
        name: a registered name.
        ends: by parameter, the least and greatest value, or all choices, that it can have; others have their default.
    """
    info = get(name)
    known = {key: ends.get(key, (parameter.default,)) for key, parameter in info.parameters.items()}
    if name.partition("+")[0] != "admetas" or "full" not in known["dema"]:
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


def construction(
    name: str,
    settings: Mapping[str, object],
    *,
    weight_decay_on: Literal["all", "matrices"] = "all",
    parametrization: Literal["standard", "mup"] = "standard",
) -> str:
    """Lines that import the optimizer's class and construct it over `model`.

    Args:
        name: a registered name, an import path, or two of these joined by "+".
        settings: constructor keywords, those of the others' optimizer as ``others.lr``.
        weight_decay_on: the task's; "matrices" makes parameter groups, by `admeta.create_for_model`.
        parametrization: the task's; "mup" makes groups by role in the same way, for the model's `width_over_base`.

    Returns:
        Code; with roles it makes a list of two optimizers. Empty where the optimizer is of a package that is not
        installed here.
    """
    try:
        info = get(name)
        others = get(info.others) if info.others else None
    except AdmetaError:
        return ""
    if weight_decay_on == "matrices" or parametrization == "mup":
        values = "".join(f"        {key!r}: {value!r},\n" for key, value in settings.items())
        arguments = f"    {name!r},\n    model,\n    {{\n{values}    }},\n    weight_decay_on={weight_decay_on!r},\n"
        return f"from admeta import create_for_model\n\noptimizer = create_for_model(\n{arguments})\n"
    if others is None:
        return f"{_import(info)}\n\noptimizer = {_call(info, 'model.parameters()', settings)}\n"
    own = {key: value for key, value in settings.items() if not key.startswith(OTHERS)}
    added = {key.removeprefix(OTHERS): value for key, value in settings.items() if key.startswith(OTHERS)}
    imports = sorted({"from admeta import split_parameters", _import(info), _import(others)})
    matrices = "[p for _, p in matrices]"
    if info.group_options:
        options = ", ".join(f'"{key}": {value!r}' for key, value in info.group_options.items())
        matrices = f'[{{"params": {matrices}, {options}}}]'
    calls = [_call(info, matrices, own), _call(others, "[p for _, p in others]", added)]
    return (
        "\n".join(imports)
        + "\n\nmatrices, others = split_parameters(model)\noptimizers = [\n"
        + "".join(indent(f"{call},\n", "    ") for call in calls)
        + "]\n"
    )


def _import(info: OptimInfo) -> str:
    module, _, cls = info.target.partition(":")
    return f"from {'admeta' if module.startswith('admeta.') else module} import {cls}"


def _call(info: OptimInfo, params: str, settings: Mapping[str, object]) -> str:
    given = {**info.constructor_kwargs, **settings}
    values = [f"{key}={tuple(value) if isinstance(value, list) else value!r}" for key, value in given.items()]
    arguments = "".join(f"    {one},\n" for one in [params, *values])
    return f"{info.target.partition(':')[2]}(\n{arguments})"
