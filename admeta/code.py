"""Python code that constructs an optimizer with a trial's settings, to paste into a training script; without torch."""

from __future__ import annotations

from collections.abc import Mapping
from textwrap import indent

from admeta import registry
from admeta.errors import AdmetaError
from admeta.info import OTHERS, OptimInfo

__all__ = ["construction"]


def construction(name: str, settings: Mapping[str, object]) -> str:
    """Lines that import the optimizer's class and construct it over `model`.

    Args:
        name: a registered name, an import path, or two of these joined by "+".
        settings: constructor keywords, those of the others' optimizer as ``others.lr``.

    Returns:
        Code; with roles it makes a list of two optimizers. Empty where the optimizer is of a package that is not
        installed here.
    """
    try:
        info = registry.get(name)
        others = registry.get(info.others) if info.others else None
    except AdmetaError:
        return ""
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
