"""Search spaces of one parameter each, and conditions between parameters; imports nothing but the standard library.

Owns: what a space is, and what a condition says. Does not own: sampling (search) and the rules of a parameter
(admeta.info).
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["RECIPE", "Categorical", "Condition", "Float", "Int", "ParamSpace", "split_recipe"]

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


MAX_CONDITION = 200
"""Characters of a condition: it is computed for every draw."""

_ARITHMETIC: Mapping[type[ast.operator | ast.unaryop], Callable[..., float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
}
_COMPARISONS: Mapping[type[ast.cmpop], Callable[[float, float], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
_GRAMMAR = "a condition has names, numbers, + - * / **, comparisons, 'and', 'or', 'not' and parentheses"


@dataclass(frozen=True)
class Condition:
    """A comparison of parameters: ``lr * steady_gain <= 3``, ``0.01 < lr < 0.1 or momentum < 0.9``.

    Nothing of it is run as Python: its parts are computed in floats, one by one.

    Attributes:
        names: what it compares, in the order of first use; ``others.lr`` is one name.
    """

    text: str
    names: tuple[str, ...] = field(init=False)
    _tree: ast.expr = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if len(self.text) > MAX_CONDITION:
            raise ValueError(f"has {len(self.text)} characters; at most {MAX_CONDITION} are allowed")
        try:
            tree = ast.parse(self.text.strip(), mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            deep = isinstance(error, RecursionError | MemoryError)
            what = "it is nested too deeply" if deep else getattr(error, "msg", "it has characters that are no text")
            raise ValueError(f"{self.text!r} cannot be read ({what}); {_GRAMMAR}") from None
        self._check_truth(tree)
        object.__setattr__(self, "_tree", tree)
        object.__setattr__(self, "names", tuple(dict.fromkeys(_names_in(tree))))
        if not self.names:
            raise ValueError(f"{self.text!r} names no parameter")

    def holds(self, values: Mapping[str, float]) -> bool:
        """Whether it holds of these values, by name; not where it divides by 0, overflows or has no real value."""
        try:
            return self._truth(self._tree, values)
        except ArithmeticError:
            return False

    def _truth(self, node: ast.expr, values: Mapping[str, float]) -> bool:
        match node:
            case ast.BoolOp(op=ast.And()):
                return all(self._truth(part, values) for part in node.values)
            case ast.BoolOp():
                return any(self._truth(part, values) for part in node.values)
            case ast.UnaryOp():
                return not self._truth(node.operand, values)
            case ast.Compare():
                sides = [_number(side, values) for side in (node.left, *node.comparators)]
                compared = zip(sides, node.ops, sides[1:], strict=False)
                return all(_COMPARISONS[type(op)](a, b) for a, op, b in compared)
        raise AssertionError(f"{type(node).__name__} was not refused")

    def _check_truth(self, node: ast.expr) -> None:
        match node:
            case ast.BoolOp():
                for part in node.values:
                    self._check_truth(part)
            case ast.UnaryOp(op=ast.Not()):
                self._check_truth(node.operand)
            case ast.Compare() if all(type(op) in _COMPARISONS for op in node.ops):
                for side in (node.left, *node.comparators):
                    self._check_number(side)
            case ast.Constant() | ast.Name() | ast.Attribute() | ast.BinOp() | ast.UnaryOp():
                raise ValueError(
                    f"{self._part(node)} compares nothing; write {self._part(node)[1:-1]} <= 1, for example"
                )
            case _:
                raise ValueError(f"{self._part(node)} is not allowed; {_GRAMMAR}")

    def _check_number(self, node: ast.expr) -> None:
        match node:
            case ast.BinOp() if type(node.op) in _ARITHMETIC:
                self._check_number(node.left)
                self._check_number(node.right)
            case ast.UnaryOp() if type(node.op) in _ARITHMETIC:
                self._check_number(node.operand)
            case ast.Constant() if type(node.value) in (int, float):
                try:
                    finite = math.isfinite(float(node.value))  # type: ignore[arg-type]
                except OverflowError:
                    finite = False
                if not finite:
                    raise ValueError(f"{self._part(node)} is too large a number")
            case ast.Name() | ast.Attribute() if _name_of(node) is not None:
                pass
            case _:
                raise ValueError(f"{self._part(node)} is not allowed; {_GRAMMAR}")

    def _part(self, node: ast.expr) -> str:
        return repr(ast.get_source_segment(self.text.strip(), node) or self.text)


def _number(node: ast.expr, values: Mapping[str, float]) -> float:
    match node:
        case ast.BinOp():
            found = _ARITHMETIC[type(node.op)](_number(node.left, values), _number(node.right, values))
            if isinstance(found, complex) or not math.isfinite(found):  # a root of a negative number, or 1e300 * 1e300
                raise ArithmeticError
            return found
        case ast.UnaryOp():
            return _ARITHMETIC[type(node.op)](_number(node.operand, values))
        case ast.Constant():
            return float(node.value)  # type: ignore[arg-type]
    name = _name_of(node)
    assert name is not None
    return float(values[name])


def _name_of(node: ast.expr) -> str | None:
    """The name that a node stands for, dots included; None where it is none."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (before := _name_of(node.value)) is not None:
        return f"{before}.{node.attr}"
    return None


def _names_in(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.expr) and (name := _name_of(node)) is not None:
        yield name
        return
    for part in ast.iter_child_nodes(node):
        yield from _names_in(part)
