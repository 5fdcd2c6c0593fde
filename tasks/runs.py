"""Opening a run, and checking before a study that its task can be trained."""

from __future__ import annotations

import contextlib
import hashlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from admeta.imports import source_files
from tasks.config import TaskConfig, TrialRef, resolve_inside, with_recipe
from tasks.data import trees
from tasks.engine.protocol import Run
from tasks.errors import CheckpointError, ConfigError, DataError, TaskError
from tasks.registry import DISTRIBUTED_RUN, ENGINE_RUN, get, load_target, parse_config

if TYPE_CHECKING:
    from tasks.engine.task import Task


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
    n_devices: int = 1,
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
        init_from: the checkpoint of the trial that `config.init_from` names; a path in the configuration is resolved
            here, under the data folder.
        n_devices: cards of this host over which to train each step, by data parallelism, a process each; a task that
            trains no network takes one.

    Raises:
        TaskError: the configuration does not fit, data are missing, or the checkpoint is of another model.
    """
    info = get(config.name)
    distributed = n_devices > 1 and info.run == ENGINE_RUN
    run = load_target(DISTRIBUTED_RUN if distributed else info.run)
    weights = _weights_file(config, data_dir=data_dir) or init_from
    if isinstance(config.init_from, TrialRef) and weights is None:
        raise ConfigError(
            f"init_from: {_named(config.init_from)} was not resolved to a file; start the run through a study, or give "
            "a path"
        )
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
            init_from=weights,
            **({"n_devices": n_devices} if distributed else {}),
        ),
    )


def check(
    config: TaskConfig,
    *,
    data_dir: Path | None = None,
    origins: Sequence[str] | None = None,
    metric: str | None = None,
    optimizers: Mapping[str, tuple[str, Sequence[Mapping[str, Any]]]] | None = None,
    recipes: Sequence[Mapping[str, Any]] = (),
) -> None:
    """Check before the first trial that the task can be trained. Reads the data set, so call it once a study.

    Args:
        origins: as in `initial_weights`.
        metric: the objective, such as `val_mcc`, which the validation set must define; None: not checked.
        optimizers: by label a name of `admeta.registry` and settings: constructed with each, stepped with the first.
        recipes: values of fields of the task; the data must fit the task with each of these too.

    Raises:
        ConfigError: a batch larger than the training set, a model that does not fit the inputs or cannot be built, or
            an optimizer that cannot train it.
        DataError: data missing or broken, or no such file to start from.
        CheckpointError: the checkpoint to start from is missing, damaged or of another model.
    """
    info = get(config.name)
    if info.target is None:
        if config.imports():
            load_target(info.run).check(config)
        return
    from tasks.engine.checkpoint import load_weights, read_weights
    from tasks.engine.optimizers import try_optimizer

    with initial_weights(config, data_dir=data_dir, origins=origins) as weights:
        whole = config.model_dump(mode="json")
        for recipe in recipes:
            task = _load(parse_config(with_recipe(whole, recipe)), data_dir)
            task.check_fit()
            task.check_model()
        task = _load(config, data_dir)
        task.check_fit()
        task.check_model()
        if metric is not None:
            task.check_metric(metric.removeprefix("val_"))
        model = task.build_model()  # fails if the checkpoint is damaged or has no such head
        if weights is not None:
            origin = config.init_from
            source = _named(origin) if isinstance(origin, TrialRef) else str(origin)
            load_weights(model, read_weights(weights), source=f"init_from: {source}")
        for label, (name, many) in (optimizers or {}).items():
            try_optimizer(task, model, label=label, name=name, many=many)


def _load(config: TaskConfig, data_dir: Path | None) -> Task[Any, Any]:
    """The task with its data on the CPU; whatever a library raises on the way is a DataError."""
    import torch

    from tasks.engine.task import load_task

    try:
        return load_task(config, data_dir=data_dir, device=torch.device("cpu"))
    except TaskError:
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {(str(error).splitlines() or ['no message'])[0]}"
        raise DataError(f"the data set of {config.name} cannot be loaded ({reason}); check its files") from error


def data_fingerprint(config: TaskConfig, *, data_dir: Path | None) -> str | None:
    """A digest of the data that the configuration names: a folder or an archive (`data_dir`), or single files in it.

    The source of what it names by import path counts too: a changed function or model is another recipe.

    Returns:
        64 hexadecimal digits; None where it names none, as a data set that is known by the task's own name, or where
        the files cannot be read.
    """
    data = _data_fingerprint(config, data_dir)
    code: dict[str, Path] = {}
    for path in config.imports().values():
        code |= source_files(path)
    if not code:
        return data
    of_code = trees.fingerprint(Path(), code)
    return of_code if data is None else hashlib.blake2b(f"{data} {of_code}".encode(), digest_size=32).hexdigest()


def _data_fingerprint(config: TaskConfig, data_dir: Path | None) -> str | None:
    names = {field: getattr(config, field) for field in type(config).model_fields if field.endswith("_file")}
    if data_dir is None or (config.data_dir is None and not names):
        return None
    try:
        root = data_dir if config.data_dir is None else resolve_inside(data_dir, config.data_dir)
        files = {field: resolve_inside(root, name) for field, name in names.items() if name is not None}
        return trees.fingerprint(root, files or None)
    except (DataError, ConfigError, OSError):
        return None


@contextlib.contextmanager
def initial_weights(
    config: TaskConfig, *, data_dir: Path | None, origins: Sequence[str] | None
) -> Iterator[Path | None]:
    """A local file with the weights that `config.init_from` names, for the duration of the context; None: new weights.

    Args:
        origins: folders or addresses of the runs of the trial that it names; the first with a checkpoint gives its
            best. None: a trial is not looked for.

    Raises:
        CheckpointError: none of them has a checkpoint.
        DataError: no such file in the data folder.
    """
    origin = config.init_from
    if not isinstance(origin, TrialRef) or origins is None:
        yield _weights_file(config, data_dir=data_dir)
        return
    with tempfile.TemporaryDirectory() as scratch:
        yield _best_of(origin, origins, into=Path(scratch))


def _best_of(origin: TrialRef, origins: Sequence[str], *, into: Path) -> Path:
    from tasks.engine.checkpoint import fetch_best

    for folder in origins:
        if (found := fetch_best(folder, into=into)) is not None:
            return found
    raise CheckpointError(
        f"init_from: {_named(origin)} left no checkpoint; complete runs of the confirm stage do, and of the search "
        "stage the keep_checkpoints best, where they took longer than checkpoint_every_s"
    )


def _named(origin: TrialRef) -> str:
    return f"trial {origin.trial} of {origin.study}/{origin.optimizer}"


def _weights_file(config: TaskConfig, *, data_dir: Path | None) -> Path | None:
    """The file that a path in `config.init_from` names; None where it names a trial or nothing."""
    if not isinstance(config.init_from, str):
        return None
    if data_dir is None:
        raise DataError(f"init_from {config.init_from!r} is relative to the data folder: set ADMETA_DATA or --data")
    return resolve_inside(data_dir, config.init_from)
