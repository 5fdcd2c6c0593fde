"""Search spaces of one parameter each, as plain data; imports nothing but the standard library.

Owns: what a space is. Does not own: sampling (search) and the rules of a parameter (admeta.info).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["RECIPE", "Categorical", "Float", "Int", "ParamSpace", "split_recipe"]

RECIPE = "recipe."
"""What the name of a field of the task begins with among an optimizer's settings: recipe.batch_size."""


def split_recipe(values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Values by name as those of the optimizer and those of the training recipe, the latter without `RECIPE`."""
    own = {name: value for name, value in values.items() if not name.startswith(RECIPE)}
    return own, {name.removeprefix(RECIPE): value for name, value in values.items() if name not in own}


@dataclass(frozen=True)
class Float:
    """Real numbers in [low, high], uniform in the value, or in its logarithm with ``log``.

    ``step`` makes it the grid low, low + step, …; not together with ``log``.
    """

    low: float
    high: float
    log: bool = False
    step: float | None = None

    def __post_init__(self) -> None:
        if not (math.isfinite(self.low) and math.isfinite(self.high)):
            raise ValueError(f"Float(low={self.low}, high={self.high}): both bounds must be finite")
        _check_range(self)


@dataclass(frozen=True)
class Int:
    """Whole numbers in [low, high], both included."""

    low: int
    high: int
    log: bool = False
    step: int | None = None

    def __post_init__(self) -> None:
        _check_range(self)


@dataclass(frozen=True)
class Categorical:
    """One of the given JSON values (numbers, strings, booleans, None, or lists of them)."""

    choices: tuple[object, ...]

    def __post_init__(self) -> None:
        if not self.choices:
            raise ValueError("Categorical(choices=()): at least one choice is needed")


ParamSpace = Float | Int | Categorical


def _check_range(space: Float | Int) -> None:
    if space.low >= space.high:
        raise ValueError(f"{space}: low must be below high; fix the parameter instead of searching one value")
    if space.log and space.low <= 0:
        raise ValueError(f"{space}: a log scale needs low > 0")
    if space.step is not None and (space.log or space.step <= 0):
        raise ValueError(f"{space}: step must be positive and has no meaning on a log scale")
