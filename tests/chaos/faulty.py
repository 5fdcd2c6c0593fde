"""A task whose runs fail on cue, as another package would bring one: by an entry point of the group `admeta.tasks`."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Literal

from tasks.engine.protocol import Evaluation
from tasks.errors import Diverged
from tasks.registry import TaskInfo
from tasks.synthetic import SyntheticConfig, SyntheticRun

ENTRY_POINTS = "[admeta.tasks]\nfaulty = tests.chaos.faulty:FAULTY\nbroken = tests.chaos.faulty:BROKEN\n"


Fault = Literal["raise_once", "raise_always", "exit_once", "exit_always", "diverge", "long_step"]


class FaultyConfig(SyntheticConfig):
    """What goes wrong, by the trial's learning rate as it is written, and in which epoch."""

    models: ClassVar[tuple[str, ...]] = ("idle",)

    name: Literal["faulty"] = "faulty"  # type: ignore[assignment]
    model: str = "idle"
    faults: dict[str, Fault] = {}  # noqa: RUF012 - pydantic copies it
    in_epoch: int = 3


class FaultyRun(SyntheticRun):
    """A run on the idle surface; that a fault struck is remembered in the data folder, whatever process it was in."""

    def __init__(
        self,
        config: FaultyConfig,
        *,
        optimizer: str,
        params: Mapping[str, Any],
        seed: int,
        data_dir: Path | None = None,
        **options: Any,
    ) -> None:
        super().__init__(config, optimizer=optimizer, params=params, seed=seed, data_dir=data_dir, **options)
        assert data_dir is not None
        self._in_epoch = config.in_epoch
        self._fault = config.faults.get(str(params["lr"]))
        self._folder = data_dir / f"faults-{params['lr']}"

    def advance(self) -> Evaluation:
        struck = self._folder.exists()
        if self.epoch + 1 == self._in_epoch and self._fault is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
            match self._fault:
                case "raise_once" | "raise_always" if not struck or self._fault == "raise_always":
                    raise OSError("the disk has a bad day")
                case "exit_once" | "exit_always" if not struck or self._fault == "exit_always":
                    os._exit(1)
                case "diverge":
                    raise Diverged(self.step, loss=float("nan"))
                case "long_step" if not struck:
                    _load_with_children(self._folder)
        return super().advance()


def _load_with_children(folder: Path) -> None:
    """Ten minutes of one step with two data loading processes, whose pids lie in the folder."""
    from torch.utils.data import DataLoader

    loader = DataLoader(_Sleepy(), batch_size=1, num_workers=2)  # type: ignore[arg-type]
    batches = iter(loader)
    pids = [worker.pid for worker in batches._workers]  # type: ignore[attr-defined]
    (folder / "pids.part").write_text(" ".join(map(str, [os.getpid(), *pids])))
    (folder / "pids.part").rename(folder / "pids")
    for _ in batches:
        pass


class _Sleepy:
    def __len__(self) -> int:
        return 600

    def __getitem__(self, index: int) -> int:
        time.sleep(1.0)
        return index


class BrokenConfig(SyntheticConfig):
    """A task that breaks its driver, before any trial."""

    models: ClassVar[tuple[str, ...]] = ("idle",)

    name: Literal["broken"] = "broken"  # type: ignore[assignment]
    model: str = "idle"


class BrokenTask:
    """What the driver asks first of a task raises."""

    @classmethod
    def cache_key(cls, config: BrokenConfig) -> str:
        raise RuntimeError(f"{cls.__name__} was never finished")


_METRICS = MappingProxyType({"val_score": "maximize", "val_loss": "minimize"})

FAULTY = TaskInfo(
    name="faulty",
    title="Faulty",
    description="Fails on cue.",
    config=FaultyConfig,
    target=None,
    run="tests.chaos.faulty:FaultyRun",
    metrics=_METRICS,  # type: ignore[arg-type]
    default_metric="val_score",
)
BROKEN = TaskInfo(
    name="broken",
    title="Broken",
    description="Breaks its driver.",
    config=BrokenConfig,
    target="tests.chaos.faulty:BrokenTask",
    metrics=_METRICS,  # type: ignore[arg-type]
    default_metric="val_score",
)


def install(folder: Path) -> str:
    """Make a folder that brings both tasks to whoever has it on PYTHONPATH; gives that path."""
    info = folder / "admeta_chaos-0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: admeta-chaos\nVersion: 0\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    return os.pathsep.join([str(folder), str(Path(__file__).parents[2])])
