"""Start a run, and refuse in advance what could not run: the two things `search` asks of `tasks`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from tasks.config import TaskConfig
from tasks.engine.protocol import Run
from tasks.registry import get, load_target


def open_run(
    config: TaskConfig,
    *,
    optimizer: str,
    params: Mapping[str, Any],
    seed: int,
    data_dir: Path | None = None,
    device: str | None = None,
    threads: int = 1,
    init_from: Path | None = None,
) -> Run:
    """A run at epoch 0.

    Args:
        config: the study's task.
        optimizer: a name of `admeta.registry`.
        params: that optimizer's constructor keywords, `lr` among them.
        seed: of weights, batch order, augmentation and dropout: the same for every optimizer.
        data_dir: the data folder.
        device: "cuda", "cuda:0", "cpu"; None: a GPU where there is one.
        threads: CPU threads torch may use.
        init_from: the checkpoint that `config.init_from` names, where the caller resolved a trial to a path.

    Raises:
        TaskError: the configuration does not fit, data are missing, or the checkpoint is foreign.
    """
    run = load_target(get(config.name).run)
    return cast(
        Run,
        run(
            config,
            optimizer=optimizer,
            params=params,
            seed=seed,
            data_dir=data_dir,
            device=device,
            threads=threads,
            init_from=init_from,
        ),
    )


def check(config: TaskConfig, *, data_dir: Path | None = None) -> None:
    """Refuse before the first trial what no trial could train; reads the data set, so call it once a study.

    Raises:
        ConfigError: a batch larger than the training set, a model that does not fit the inputs.
        DataError: data missing or broken.
    """
    if get(config.name).target is None:
        return
    import torch

    from tasks.engine.cache import load_task

    load_task(config, data_dir=data_dir, device=torch.device("cpu")).check_fit()
