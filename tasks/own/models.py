"""Models named by import path: making one, and checking what it returns."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from admeta.errors import ImportPathError
from admeta.imports import code_lines, in_words, load
from tasks.errors import ConfigError


def build_own(path: str, *args: Any, **settings: Any) -> nn.Module:
    """The model that the class or function at an import path makes of these arguments.

    Raises:
        ConfigError: it cannot be imported, raises, or makes no module.
    """
    try:
        model = load(path)(*args, **settings)
    except ImportPathError as error:
        raise ConfigError(f"task.model: {error}") from error
    except (Exception, SystemExit) as error:  # of the user's code
        given = ", ".join([*map(repr, args), *(f"{name}={value!r}" for name, value in settings.items())])
        raise ConfigError(f"task.model: '{path}' called with ({given}) raised {explained(path, error)}") from error
    if not isinstance(model, nn.Module):
        raise ConfigError(f"task.model: '{path}' made a {type(model).__name__}; it must make a torch.nn.Module")
    return model


def check_output(model: nn.Module, inputs: Tensor, *, want: tuple[int, ...], name: str) -> None:
    """Check that the model returns a tensor of that shape for these inputs; raises ConfigError."""
    try:
        with torch.no_grad():
            found = model.eval()(inputs)
    except (Exception, SystemExit) as error:  # of the user's code
        raise ConfigError(
            f"task.model: '{name}' does not take a batch of shape {tuple(inputs.shape)}: {explained(name, error)}"
        ) from error
    shape = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
    if shape != want:
        raise ConfigError(
            f"task.model: '{name}' returned {shape} for a batch of shape {tuple(inputs.shape)}; it must return {want}"
        )


def explained(path: str, error: BaseException) -> str:
    """An error of code at an import path, with its lines there."""
    return f"{in_words(error)}{code_lines(error, path.partition(':')[0].partition('.')[0])}"
