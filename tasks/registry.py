"""The tasks by name: the built-in ones (tasks.builtin), and users' own by the entry-point group `admeta.tasks`.

Imports no torch: everything heavy is named as "module:Class" and imported when a run starts.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from importlib import import_module
from importlib.metadata import entry_points
from types import MappingProxyType
from typing import Any

from tasks.builtin import TASKS
from tasks.config import TaskConfig
from tasks.errors import TaskError, UnknownTaskError
from tasks.info import Direction, TaskInfo

__all__ = ["ENTRY_POINT_GROUP", "TASKS", "Direction", "TaskInfo", "all_tasks", "get", "load_target", "parse_config"]

ENTRY_POINT_GROUP = "admeta.tasks"


@lru_cache(maxsize=1)
def all_tasks() -> Mapping[str, TaskInfo]:
    """The built-in tasks and those of installed packages, by name.

    Raises:
        TaskError: an entry point is not a `TaskInfo`, or takes a name that is taken.
    """
    known = dict(TASKS)
    for point in entry_points(group=ENTRY_POINT_GROUP):
        info = point.load()
        if not isinstance(info, TaskInfo):
            raise TaskError(f"entry point {point.name!r} is a {type(info).__name__}; point it at a TaskInfo")
        if info.name in known:
            raise TaskError(f"entry point {point.name!r} offers the task {info.name!r}, which exists; rename it")
        known[info.name] = info
    return MappingProxyType(known)


def get(name: str) -> TaskInfo:
    """The task of that name.

    Raises:
        UnknownTaskError: no such task; the message names the known ones and the nearest.
    """
    known = all_tasks()
    if name not in known:
        raise UnknownTaskError(name, known)
    return known[name]


def parse_config(raw: Mapping[str, Any]) -> TaskConfig:
    """The validated configuration of `task:` in a study definition.

    Args:
        raw: at least `name`; every other field has the task's default.

    Raises:
        UnknownTaskError: `name` is missing or unknown.
        pydantic.ValidationError: a field is unknown, or a value is out of its bounds.
    """
    return get(str(raw.get("name", ""))).config.model_validate(dict(raw))


def load_target(target: str) -> Any:
    """The object that "module:Class" names; imports the module."""
    module, _, attribute = target.partition(":")
    return getattr(import_module(module), attribute)
