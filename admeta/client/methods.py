"""How a verb reads as a client's method."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any


def describe(method: Callable[..., Any], verb: Callable[..., Any], *, gives: str) -> None:
    """Let `help()` show a verb as the method that it has become.

    Args:
        method: what calls the verb with a client as its first argument.
        verb: returns a `Flow[…]` or `Items[…]`.
        gives: the method's result, with {} for what is within the brackets.
    """
    signature = inspect.signature(verb)
    inner = str(signature.return_annotation).partition("[")[2].removesuffix("]")
    client = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    parameters = [client, *signature.parameters.values()]
    shown = signature.replace(parameters=parameters, return_annotation=gives.format(inner))
    method.__signature__ = shown  # type: ignore[attr-defined]
