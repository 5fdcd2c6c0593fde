"""The tasks by name: a literal table, and users' own by the entry-point group `admeta.tasks`.

Imports no torch: everything heavy is named as "module:Class" and imported when a run starts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from importlib.metadata import entry_points
from types import MappingProxyType
from typing import Any, Literal

from tasks.config import TaskConfig
from tasks.digits.config import DigitsConfig
from tasks.errors import TaskError, UnknownTaskError
from tasks.synthetic.config import SyntheticConfig
from tasks.vision.config import Cifar10Config, Cifar100Config, ImageFolderConfig

Direction = Literal["maximize", "minimize"]
ENTRY_POINT_GROUP = "admeta.tasks"
ENGINE_RUN = "tasks.engine.run:TrainingRun"


@dataclass(frozen=True, kw_only=True)
class TaskInfo:
    """One task as the registry knows it.

    Attributes:
        config: the pydantic model of the task's part of a study definition; its defaults are the task's.
        target: "module:Class" of the `tasks.engine.task.Task`; None where `run` needs none.
        run: "module:Class" of the run (`tasks.engine.protocol.Run`); the engine's own, unless a task trains otherwise.
        metrics: what each evaluation reports, with the direction that is better. All names start with `val_`;
            the test set's are the same with `test_` (see `test_name`).
        default_metric: the objective where a study names none.
        target_value: a value of `default_metric` worth timing the way to, or None.
        needs_data: whether files in the data folder (or a network) are needed.
        kind: what an example is; decides nothing, only listed.
    """

    name: str
    title: str
    description: str
    config: type[TaskConfig]
    target: str | None
    metrics: Mapping[str, Direction]
    default_metric: str
    run: str = ENGINE_RUN
    target_value: float | None = None
    needs_data: bool = False
    kind: str = "image"

    def __post_init__(self) -> None:
        if self.default_metric not in self.metrics:
            raise TaskError(f"task {self.name!r}: default_metric {self.default_metric!r} is not among its metrics")
        if bad := [metric for metric in self.metrics if not metric.startswith("val_")]:
            raise TaskError(f"task {self.name!r}: metrics {bad} must start with 'val_': selection is on validation")

    @property
    def models(self) -> tuple[str, ...]:
        """The models by name; `config.open_models` may admit more."""
        return self.config.models

    @property
    def test_metric(self) -> str:
        """The name of `default_metric` among the test results: `test_accuracy` for `val_accuracy`."""
        return self.test_name(self.default_metric)

    def test_name(self, metric: str) -> str:
        """The test set's name of a validation metric."""
        return "test_" + metric.removeprefix("val_")


VISION_METRICS: Mapping[str, Direction] = MappingProxyType({"val_accuracy": "maximize", "val_loss": "minimize"})

TASKS: dict[str, TaskInfo] = {
    "digits": TaskInfo(
        name="digits",
        title="Handwritten digits 8×8",
        description="scikit-learn's 1,797 real handwritten digits, 1,197 / 300 / 300, stratified; seconds on one core.",
        config=DigitsConfig,
        target="tasks.digits.task:DigitsTask",
        metrics=VISION_METRICS,
        default_metric="val_accuracy",
        target_value=0.97,
    ),
    "cifar10": TaskInfo(
        name="cifar10",
        title="CIFAR-10",
        description="60,000 photographs of 32×32 in ten classes; 45,000 / 5,000 / 10,000, augmented as the paper does.",
        config=Cifar10Config,
        target="tasks.vision.cifar:Cifar10Task",
        metrics=VISION_METRICS,
        default_metric="val_accuracy",
        target_value=0.93,
        needs_data=True,
    ),
    "cifar100": TaskInfo(
        name="cifar100",
        title="CIFAR-100",
        description="60,000 photographs of 32×32 in a hundred classes; 45,000 / 5,000 / 10,000.",
        config=Cifar100Config,
        target="tasks.vision.cifar:Cifar100Task",
        metrics=VISION_METRICS,
        default_metric="val_accuracy",
        target_value=0.70,
        needs_data=True,
    ),
    "image_folder": TaskInfo(
        name="image_folder",
        title="Own images",
        description="Your own images in class folders train/<class>/ and test/<class>/, a folder or a tar archive.",
        config=ImageFolderConfig,
        target="tasks.vision.folder:ImageFolderTask",
        metrics=VISION_METRICS,
        default_metric="val_accuracy",
        needs_data=True,
    ),
    "synthetic": TaskInfo(
        name="synthetic",
        title="Toy surfaces",
        description="Quadratic valley, Rosenbrock and a noisy quadratic, minimised by the optimizer itself; "
        "and 'idle', which trains nothing and scores the learning rate by a formula.",
        config=SyntheticConfig,
        target=None,
        run="tasks.synthetic.run:SyntheticRun",
        metrics=MappingProxyType({"val_score": "maximize", "val_loss": "minimize"}),
        default_metric="val_score",
        kind="surface",
    ),
}


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
