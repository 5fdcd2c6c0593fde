"""Loaded data sets, kept for the process: a reused worker runs many trials on one of them."""

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
_loaded: OrderedDict[Hashable, Any] = OrderedDict()


def load_task(config: TaskConfig, *, data_dir: Path | None, device: torch.device) -> Task[Any, Any]:
    """The task of this configuration on this device, over data from the cache or freshly loaded.

    At most `MAX_LOADED` data sets stay; the one used longest ago goes first.

    Raises:
        DataError: the data set is missing or broken.
    """
    target = get(config.name).target
    if target is None:
        raise TypeError(f"task {config.name!r} has its own run class and no engine task")
    task_class: type[Task[Any, Any]] = load_target(target)
    key = (target, str(data_dir), str(device), task_class.cache_key(config))
    if key not in _loaded:
        while len(_loaded) >= MAX_LOADED:
            _loaded.popitem(last=False)
        _loaded[key] = task_class.load(config, data_dir=data_dir, device=device)
    _loaded.move_to_end(key)
    return task_class(config, _loaded[key], device=device)


def release() -> None:
    """Drop every cached data set, and with it its device memory."""
    _loaded.clear()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()  # a no-op where CUDA was never touched
