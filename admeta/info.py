"""What the registry records of an optimizer.

Owns: OptimInfo and ParamInfo. Does not own: the list itself (admeta.builtin), the rules of parameters
(admeta.parameters) and the optimizers. Imports no torch: servers and clients read it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from admeta.errors import ParameterError, nearest_name
from admeta.parameters import PARAMETERS, Domain, FloatsDomain
from admeta.spaces import ParamSpace

__all__ = ["OTHERS", "Derived", "OptimInfo", "ParamInfo", "Requirement", "Source", "of_others", "parameters_with"]


OTHERS = "others."
"""Prefix of the settings of the optimizer that moves all parameters but the hidden matrices (admeta.roles)."""


@dataclass(frozen=True)
class ParamInfo:
    """One constructor keyword: its default as a JSON value, its domain and what it does."""

    name: str
    default: object
    domain: Domain
    doc: str


def parameters_with(**defaults: object) -> dict[str, ParamInfo]:
    """Parameters of `admeta.parameters` with these defaults, in this order; `betas` as many as given."""
    found = {}
    for name, default in defaults.items():
        rule = PARAMETERS[name]
        domain = rule.study_domain or rule.domain
        if isinstance(domain, FloatsDomain) and isinstance(default, list):
            domain = replace(domain, length=len(default))
        found[name] = ParamInfo(name, default, domain, rule.doc)
    return found


def of_others(parameters: Mapping[str, ParamInfo]) -> dict[str, ParamInfo]:
    """The same parameters under the names that they have for the optimizer of the other parameters: `others.lr`."""
    return {f"{OTHERS}{name}": replace(one, name=f"{OTHERS}{name}") for name, one in parameters.items()}


@dataclass(frozen=True)
class Requirement:
    """A rule between two parameters: where ``where`` has ``value``, ``parameter`` must lie in a narrower domain."""

    where: str
    value: object
    parameter: str
    domain: Domain

    def rule(self) -> str:
        value = str(self.value).lower() if isinstance(self.value, bool) else repr(self.value)
        return f"with {self.where} = {value}, {self.parameter} must be {self.domain.rule()}"


@dataclass(frozen=True)
class Derived:
    """A number that follows from an optimizer's settings, by which a study may restrict its search.

    Attributes:
        value: computes it from the settings; a ValueError where it is not defined.
        of: the parameters that it follows from.
    """

    doc: str
    of: tuple[str, ...]
    value: Callable[[Mapping[str, Any]], float]


@dataclass(frozen=True)
class Source:
    """Where an optimizer comes from."""

    paper: str
    url: str


@dataclass(frozen=True)
class OptimInfo:
    """One optimizer: its class, its parameters and where to search them.

    Attributes:
        name: the registry's name, lower case.
        target: ``"module:Class"``; imported by ``registry.create`` and ``create_captured`` only.
        parameters: by constructor keyword, with the defaults that ``registry.create`` gives.
        default_space, fixed: what to search and what to hold when a model is trained from scratch.
        finetune_space, finetune_fixed: the same for a pretrained model.
        paper_spaces: grids of the Admeta paper's appendix by name (``"paper"``, ``"paper_finetune"``).
        constructor_kwargs: what ``registry.create`` passes unless told otherwise: the defaults here that
            differ from the class's own.
        graph_kwargs: extra keywords under which ``step`` may be captured in a CUDA graph, lr being a tensor.
        graph_target: the class whose step is captured, with ``target``'s update and checkpoints but faster there;
            empty for ``target`` itself. It needs Triton.
        graph_target_lacks: options that ``graph_target`` doesn't have; where one is true, ``target`` is used.
        requirements: what the constructor demands of two parameters together.
        derived: by name, numbers that a study's `when` may compare besides the parameters.
        others: the optimizer of all parameters but the hidden matrices, which ``target`` alone moves; its settings are
            those named ``others.…``. Empty: ``target`` moves all. See admeta.roles.
        group_options: keys that every parameter group must have besides its parameters.
        open_prefixes: what parameters may begin with of which the registry knows nothing: "" for an optimizer named by
            its import path, "others." where the optimizer of the other parameters is. The constructor checks them.
        width_rule: how its learning rate depends on a model's width in the maximal update parametrisation (µP): "adam",
            "sgd" or "muon" (admeta.roles); empty where no rule is known.
        note: what a reader of its results must know.
    """

    name: str
    target: str
    title: str
    description: str
    source: Source
    parameters: Mapping[str, ParamInfo]
    default_space: Mapping[str, ParamSpace]
    fixed: Mapping[str, object]
    finetune_space: Mapping[str, ParamSpace]
    finetune_fixed: Mapping[str, object]
    paper_spaces: Mapping[str, Mapping[str, ParamSpace]] = field(default_factory=dict)
    constructor_kwargs: Mapping[str, object] = field(default_factory=dict)
    graph_kwargs: Mapping[str, object] = field(default_factory=dict)
    graph_target: str = ""
    graph_target_lacks: tuple[str, ...] = ()
    requirements: tuple[Requirement, ...] = ()
    derived: Mapping[str, Derived] = field(default_factory=dict)
    others: str = ""
    group_options: Mapping[str, object] = field(default_factory=dict)
    open_prefixes: tuple[str, ...] = ()
    width_rule: Literal["", "adam", "sgd", "muon"] = ""
    note: str = ""

    def check(self, name: str, value: object) -> None:
        """Refuses a parameter this optimizer doesn't have, or a value outside its domain.

        Raises:
            ParameterError: with the value, the rule and the nearest known name.
        """
        info = self.parameters.get(name)
        if info is None:
            if any(
                name.removeprefix(prefix).isidentifier() for prefix in self.open_prefixes if name.startswith(prefix)
            ):
                return
            near = nearest_name(name, self.parameters)
            raise ParameterError(
                optimizer=self.name,
                parameter=name,
                value=value,
                rule=f"no such parameter; its parameters are {', '.join(sorted(self.parameters))}",
                hint=f"Did you mean {near!r}?" if near else "",
            )
        if not info.domain.accepts(value):
            raise ParameterError(
                optimizer=self.name,
                parameter=name,
                value=value,
                rule=f"must be {info.domain.rule()}",
                hint="" if info.default is None else f"The default is {info.default!r}.",
            )
