"""What the registry records of a task. Imports no torch: servers and clients read it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from tasks.config import TaskConfig
from tasks.errors import TaskError

Direction = Literal["maximize", "minimize"]
ENGINE_RUN = "tasks.engine.run:TrainingRun"
DISTRIBUTED_RUN = "tasks.engine.distributed:DistributedRun"


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
        extra_test_metrics: what the test set has besides (MNLI's mismatched genres).
        needs_data: whether files in the data folder (or a network) are needed.
        space: which of an optimizer's spaces is searched where a study names none: "finetune" for pretrained models.
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
    extra_test_metrics: tuple[str, ...] = ()
    needs_data: bool = False
    space: Literal["default", "finetune"] = "default"
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

    @property
    def test_metrics(self) -> tuple[str, ...]:
        """Every metric of the test set, in order of name."""
        return tuple(sorted({*map(self.test_name, self.metrics), *self.extra_test_metrics}))

    def test_name(self, metric: str) -> str:
        """The test set's name of a validation metric."""
        return "test_" + metric.removeprefix("val_")
