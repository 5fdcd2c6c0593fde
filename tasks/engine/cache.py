"""Loaded tasks, kept for the process: a reused worker runs many trials on one data set."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import torch

from tasks.config import TaskConfig
from tasks.engine.task import Task
from tasks.registry import get, load_target

MAX_LOADED = 2
_loaded: OrderedDict[Hashable, Task[Any]] = OrderedDict()


def load_task(config: TaskConfig, *, data_dir: Path | None, device: torch.device) -> Task[Any]:
    """The task of this configuration on this device: from the cache, or loaded and kept.

    At most `MAX_LOADED` stay; the one used longest ago goes first.

    Raises:
        DataError: the data set is missing or broken.
    """
    target = get(config.name).target
    if target is None:
        raise TypeError(f"task {config.name!r} has its own run class and no engine task")
    task_class: type[Task[Any]] = load_target(target)
    key = (target, str(data_dir), str(device), task_class.cache_key(config))
    if key not in _loaded:
        while len(_loaded) >= MAX_LOADED:
            _loaded.popitem(last=False)
        _loaded[key] = task_class.load(config, data_dir=data_dir, device=device)
    _loaded.move_to_end(key)
    return _loaded[key]


def release() -> None:
    """Drop every cached task, and with it its device memory."""
    _loaded.clear()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
