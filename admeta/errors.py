"""Every error that admeta raises on purpose.

    AdmetaError
    ├── UnknownOptimizerError   no optimizer of that name
    ├── UnknownPresetError      no preset of that name
    ├── ParameterError          a parameter's name or value breaks its rule
    ├── RegistrationError       an installed package offers an optimizer that can't be taken
    └── ImportPathError         what an import path names cannot be loaded

Constructors of the optimizers raise ``ValueError`` with torch's own messages instead.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = [
    "AdmetaError",
    "ImportPathError",
    "ParameterError",
    "RegistrationError",
    "UnknownOptimizerError",
    "UnknownPresetError",
]


class AdmetaError(Exception):
    """Base of all errors of this package."""


class ParameterError(AdmetaError, ValueError):
    """A parameter is unknown to its optimizer, or its value breaks the parameter's rule."""

    def __init__(self, *, optimizer: str, parameter: str, value: object, rule: str, hint: str = "") -> None:
        self.optimizer = optimizer
        self.parameter = parameter
        self.value = value
        self.rule = rule
        self.hint = hint
        text = f"{optimizer}: {parameter} = {value!r}: {rule}."
        super().__init__(f"{text} {hint}" if hint else text)


class UnknownOptimizerError(AdmetaError, LookupError):
    """No optimizer is registered under the name."""

    def __init__(self, *, name: object, known: Iterable[str]) -> None:
        self.name = name
        self.known = tuple(sorted(known))
        self.nearest = nearest_name(str(name), self.known)
        meant = f"did you mean {self.nearest!r}? " if self.nearest else ""
        super().__init__(f"unknown optimizer {name!r}; {meant}known optimizers: {', '.join(self.known)}.")


class UnknownPresetError(AdmetaError, ValueError):
    """The optimizer has no preset of that name."""

    def __init__(self, *, optimizer: str, name: object, known: Iterable[str]) -> None:
        self.name = name
        self.known = tuple(sorted(known))
        super().__init__(f"{optimizer}: unknown preset {name!r}; known presets: {', '.join(self.known)}.")


class RegistrationError(AdmetaError):
    """An entry point of the group ``admeta.optimizers`` is refused."""


class ImportPathError(AdmetaError, ValueError):
    """An import path is malformed, not allowed, or names nothing that can be used."""


def nearest_name(name: str, known: Iterable[str]) -> str | None:
    """The known name that a mistyped one most likely stands for, or None when nothing is near."""
    found = difflib.get_close_matches(name.lower(), list(known), n=1, cutoff=0.6)
    return found[0] if found else None
