"""What the registry records of an optimizer, and the rules of its parameters.

Owns: OptimInfo, ParamInfo and the domains a value may come from. Does not own: the list itself
(admeta.registry) and the optimizers. Imports no torch: servers and clients read it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from admeta.errors import ParameterError, nearest_name
from admeta.spaces import ParamSpace

__all__ = [
    "AnyOf", "BoolDomain", "ChoiceDomain", "Domain", "FloatDomain", "FloatsDomain", "IntDomain", "NoneDomain",
    "OptimInfo", "ParamInfo", "Requirement", "Source",
]  # fmt: skip


@dataclass(frozen=True)
class FloatDomain:
    """A finite real number between two bounds; an open bound is itself excluded."""

    low: float = -math.inf
    high: float = math.inf
    low_open: bool = False
    high_open: bool = False

    def accepts(self, value: object) -> bool:
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            return False
        above = value > self.low if self.low_open else value >= self.low
        below = value < self.high if self.high_open else value <= self.high
        return above and below

    def rule(self) -> str:
        if self.low == self.high:
            return f"{self.low:g}"
        left = "(" if self.low_open or math.isinf(self.low) else "["
        right = ")" if self.high_open or math.isinf(self.high) else "]"
        low = "−∞" if math.isinf(self.low) else f"{self.low:g}"
        high = "∞" if math.isinf(self.high) else f"{self.high:g}"
        return f"a finite number in {left}{low}, {high}{right}"

    def to_json(self) -> dict[str, object]:
        return {
            "type": "float",
            "low": None if math.isinf(self.low) else self.low,
            "high": None if math.isinf(self.high) else self.high,
            "low_open": self.low_open,
            "high_open": self.high_open,
        }


@dataclass(frozen=True)
class IntDomain:
    """A whole number in [low, high]; ``high`` None means no upper bound."""

    low: int = 0
    high: int | None = None

    def accepts(self, value: object) -> bool:
        if isinstance(value, bool) or not isinstance(value, int):
            return False
        return value >= self.low and (self.high is None or value <= self.high)

    def rule(self) -> str:
        return f"a whole number ≥ {self.low}" + ("" if self.high is None else f" and ≤ {self.high}")

    def to_json(self) -> dict[str, object]:
        return {"type": "int", "low": self.low, "high": self.high}


@dataclass(frozen=True)
class BoolDomain:
    """true or false."""

    def accepts(self, value: object) -> bool:
        return isinstance(value, bool)

    def rule(self) -> str:
        return "true or false"

    def to_json(self) -> dict[str, object]:
        return {"type": "bool"}


@dataclass(frozen=True)
class ChoiceDomain:
    """One of a fixed list of strings."""

    choices: tuple[str, ...]

    def accepts(self, value: object) -> bool:
        return isinstance(value, str) and value in self.choices

    def rule(self) -> str:
        return "one of " + ", ".join(repr(choice) for choice in self.choices)

    def to_json(self) -> dict[str, object]:
        return {"type": "choice", "choices": list(self.choices)}


@dataclass(frozen=True)
class FloatsDomain:
    """A list of ``length`` numbers, each from ``each``."""

    length: int
    each: FloatDomain

    def accepts(self, value: object) -> bool:
        if not isinstance(value, list | tuple) or len(value) != self.length:
            return False
        return all(self.each.accepts(item) for item in value)

    def rule(self) -> str:
        return f"a list of {self.length} numbers, each {self.each.rule()}"

    def to_json(self) -> dict[str, object]:
        return {"type": "floats", "length": self.length, "each": self.each.to_json()}


@dataclass(frozen=True)
class NoneDomain:
    """null alone; ``meaning`` says what it switches off."""

    meaning: str

    def accepts(self, value: object) -> bool:
        return value is None

    def rule(self) -> str:
        return f"null ({self.meaning})"

    def to_json(self) -> dict[str, object]:
        return {"type": "none", "meaning": self.meaning}


@dataclass(frozen=True)
class AnyOf:
    """A value from any of several domains."""

    domains: tuple[FloatDomain | IntDomain | BoolDomain | ChoiceDomain | FloatsDomain | NoneDomain, ...]

    def accepts(self, value: object) -> bool:
        return any(domain.accepts(value) for domain in self.domains)

    def rule(self) -> str:
        return ", or ".join(domain.rule() for domain in self.domains)

    def to_json(self) -> dict[str, object]:
        return {"type": "any_of", "domains": [domain.to_json() for domain in self.domains]}


Domain = FloatDomain | IntDomain | BoolDomain | ChoiceDomain | FloatsDomain | NoneDomain | AnyOf


@dataclass(frozen=True)
class ParamInfo:
    """One constructor keyword: its default as a JSON value, its domain and what it does."""

    name: str
    default: object
    domain: Domain
    doc: str

    def to_json(self) -> dict[str, object]:
        """Plain JSON, as ``GET /v1/optimizers`` gives it."""
        return {
            "name": self.name,
            "default": self.default,
            "domain": self.domain.to_json(),
            "rule": self.domain.rule(),
            "doc": self.doc,
        }


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
        graph_target_lacks: options that ``graph_target`` doesn't have; where one is true, ``target`` it is.
        requirements: what the constructor demands of two parameters together.
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

    @property
    def capturable(self) -> bool:
        """Whether ``step`` can run inside a CUDA graph (with ``graph_kwargs``)."""
        return bool(self.graph_kwargs)

    def check(self, name: str, value: object) -> None:
        """Refuses a parameter this optimizer doesn't have, or a value outside its domain.

        Raises:
            ParameterError: with the value, the rule and the nearest known name.
        """
        info = self.parameters.get(name)
        if info is None:
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
                hint=f"The default is {info.default!r}.",
            )
