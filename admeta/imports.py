"""What a user names by import path: which paths are well formed, which the operator allows, and loading one.

Owns the form ``package.module:name``, and which optimizers of torch and pytorch-optimizer cannot train on the engine.
Imports nothing until something is loaded.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
import traceback
from collections.abc import Sequence
from contextlib import suppress
from modulefinder import ModuleFinder
from pathlib import Path
from typing import Any

from admeta.errors import ImportPathError

__all__ = [
    "DEFAULT_IMPORTS", "IMPORT_PATH", "MAX_MESSAGE", "NO_GRADIENT_GRAPH", "check_allowed", "code_lines", "in_words",
    "is_module_name", "is_path", "load", "load_optimizer", "source_files",
    "split_path", "why_refused",
]  # fmt: skip

DEFAULT_IMPORTS = ("torch.optim", "pytorch_optimizer")
"""Packages that a service lets studies name unless its operator says otherwise: libraries it has installed anyway."""

MAX_MESSAGE = 4000
"""Characters of other people's error messages that are stored: they may hold a whole batch."""

_MODULE = r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*"
# One attribute of one module: a longer chain of attributes would lead from a module to everything that it imported.
IMPORT_PATH = rf"(?a:({_MODULE}):([A-Za-z_]\w*))"
"""A regular expression of import paths."""
_PATH = re.compile(IMPORT_PATH)

_CLOSURE = (
    "it computes the loss again within a step (a closure), and the engine makes one forward and backward pass a step"
)
NO_GRADIENT_GRAPH = (
    "it differentiates the gradient (backward with create_graph=True), and the engine keeps no graph of the gradient"
)
_WRAPPER = "it wraps another optimizer, and a setting of a study cannot be one; name the optimizer itself"
_MODEL = "it takes the model or replaces the backward pass, and the engine gives it parameters with gradients"
_SPARSE = "it takes sparse gradients alone, and the engine's are dense"

_REFUSED = {
    **dict.fromkeys(("LBFGS", "SAM", "WSAM", "LookSAM", "GSAM", "BSAM", "FriendlySAM", "AliG"), _CLOSURE),
    **dict.fromkeys(("AdaHessian", "SophiaH"), NO_GRADIENT_GRAPH),
    **dict.fromkeys(("Lookahead", "TRAC", "OrthoGrad", "PCGrad", "ScheduleFreeWrapper", "SafeFP16Optimizer"), _WRAPPER),
    **dict.fromkeys(("LOMO", "AdaLOMO", "AdamMini"), _MODEL),
    "SparseAdam": _SPARSE,
}
"""Why optimizers of torch and pytorch-optimizer cannot train on the engine, by class name."""


def is_path(name: str) -> bool:
    """Whether an optimizer's name is an import path; a registered name has no colon."""
    return ":" in name


def is_module_name(text: str) -> bool:
    """Whether the text could be a module's name: ``torch.optim``."""
    return re.fullmatch(_MODULE, text, re.ASCII) is not None


def split_path(path: str) -> tuple[str, str]:
    """Module and name of an import path.

    Raises:
        ImportPathError: it is not of the form ``package.module:name``.
    """
    found = _PATH.fullmatch(path)
    if found is None:
        meant = ":".join(path.removesuffix(".py").rsplit(".", 1))
        meant = f". Did you mean {meant!r}?" if _PATH.fullmatch(meant) else ""
        raise ImportPathError(
            f"{path!r} is not an import path; write the module, a colon and one name in it: 'torch.optim:NAdam'{meant}"
        )
    return found[1], found[2]


def why_refused(path: str) -> str:
    """Why a known optimizer of torch or pytorch-optimizer cannot train on the engine; empty where nothing is known."""
    module, name = split_path(path)
    return _REFUSED.get(name, "") if module.split(".")[0] in ("torch", "pytorch_optimizer") else ""


def check_allowed(path: str, allowed: Sequence[str]) -> None:
    """Refuse an import path outside the packages or modules that the operator allows.

    Args:
        allowed: dotted names; each allows that module and those inside it.

    Raises:
        ImportPathError: with the list.
    """
    module, _ = split_path(path)
    if any(module == one or module.startswith(f"{one}.") for one in allowed):
        return
    listed = ", ".join(allowed) or "nothing"
    raise ImportPathError(
        f"{path!r} is outside the packages that this service imports for studies, which are: {listed}. Its operator "
        "can allow another with 'admeta serve --allow-imports'."
    )


def load(path: str) -> Any:
    """The object at an import path; imports its module.

    Raises:
        ImportPathError: no such module or name, importing it failed, or the object was made in another package: a
            module that is allowed must not give away all that it imported.
    """
    name, attribute = split_path(path)
    package = name.partition(".")[0]
    try:
        module = importlib.import_module(name)
    except (Exception, SystemExit) as error:  # a script that parses arguments ends the process
        raise ImportPathError(
            f"{path!r} cannot be imported: {in_words(error)}{code_lines(error, package)}. {_advice(path, error)}"
        ) from error
    if not hasattr(module, attribute):
        raise ImportPathError(f"{path!r}: module {name!r} has no {attribute!r}")
    found = getattr(module, attribute)
    home = str(getattr(found, "__module__", None) or name)
    if home.partition(".")[0] != package:
        raise ImportPathError(f"{path!r}: {attribute!r} is made in the module {home!r}; name it by that module")
    return found


def _advice(path: str, error: BaseException) -> str:
    """What to do about an import path that cannot be imported."""
    module, attribute = split_path(path)
    if module.endswith(".py"):
        return f"Name the module without .py: '{module.removesuffix('.py')}:{attribute}'"
    if isinstance(error, ModuleNotFoundError):
        return "Install the package on the workers, or give its folder to 'admeta serve --code'"
    if isinstance(error, SystemExit):
        return "Put what the script does when it is run under if __name__ == '__main__':"
    return "Correct the code and submit again"


def source_files(path: str) -> dict[str, Path]:
    """The source of an import path: its module's file, and the files next to it that these import, directly or not.

    They are found in the source, without an import, so that they do not depend on what this process imported before.

    Returns:
        Files by their path from the folder in which Python finds the top-level module; of an installed package all its
        files; empty where the module has no source here.
    """
    name, _ = split_path(path)
    package = name.partition(".")[0]
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None or not found.origin.endswith(".py"):
        return {}
    origin = Path(found.origin)
    folder = origin.parent.parent if found.submodule_search_locations else origin.parent
    if folder.name in ("site-packages", "dist-packages"):
        files = origin.parent.rglob("*.py") if found.submodule_search_locations else [origin]
        return {file.relative_to(folder).as_posix(): file for file in files}
    finder = ModuleFinder(path=[str(folder)])
    with suppress(ImportError, SyntaxError, ValueError, OSError, RecursionError):  # what can't be read ends the search
        finder.import_hook(name)
    files = [Path(file) for module in finder.modules.values() if (file := getattr(module, "__file__", None))]
    return {file.relative_to(folder).as_posix(): file for file in [origin, *files]}


def in_words(error: BaseException) -> str:
    """The type and the message of an error of other people's code, long messages cut to MAX_MESSAGE characters."""
    try:
        words = str(error)
    except Exception:  # noqa: BLE001 - also other people's code
        words = "(its message cannot be read)"
    cut = words if len(words) <= MAX_MESSAGE else f"{words[: MAX_MESSAGE // 2]} … {words[-MAX_MESSAGE // 2 :]}"
    return f"{type(error).__name__}: {cut or 'no message'}"


def code_lines(error: BaseException, package: str) -> str:
    """Where an error passed through a user's own code: `` (train.py, line 12, in train; net.py, line 3, in forward)``.

    Args:
        package: the top-level package of that code, or its only module.

    Returns:
        The last three places, the innermost last; empty where there is none.
    """
    own = re.compile(rf"/{re.escape(package)}(\.py$|/)")
    frames = [
        f"{frame.filename.rpartition('/')[2]}, line {frame.lineno}, in {frame.name}"
        for frame in traceback.extract_tb(error.__traceback__)
        if own.search(frame.filename)
    ]
    return f" ({'; '.join(frames[-3:])})" if frames else ""


def load_optimizer(path: str) -> type[Any]:
    """The optimizer class at an import path; imports its module.

    Raises:
        ImportPathError: it cannot be loaded, is not a torch optimizer, or cannot train on the engine.
    """
    from torch.optim import Optimizer

    found = load(path)
    if not (isinstance(found, type) and issubclass(found, Optimizer)):
        raise ImportPathError(f"{path!r} is not a subclass of torch.optim.Optimizer; name a class that is")
    if reason := why_refused(path) or _why_not_by_signature(found):
        raise ImportPathError(f"{path!r} cannot train here: {reason}")
    return found


def _why_not_by_signature(cls: type[Any]) -> str:
    parameters = inspect.signature(cls.step).parameters
    needs = any(p.name == "closure" and p.default is inspect.Parameter.empty for p in parameters.values())
    return _CLOSURE if needs else ""
