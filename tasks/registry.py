"""The tasks by name: the built-in ones, and those of other packages by the entry-point group `admeta.tasks`.

Imports no torch, as servers and clients read it: everything heavy is named as "module:Class" and imported when a run
starts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from importlib.metadata import entry_points
from inspect import getdoc
from types import MappingProxyType
from typing import Any, Literal

from tasks.audio.config import AudioFolderConfig, CommonLanguageConfig, FsddConfig, SuperbKsConfig
from tasks.config import TaskConfig
from tasks.errors import TaskError, UnknownTaskError
from tasks.own import OwnConfig, PythonConfig
from tasks.synthetic import SyntheticConfig
from tasks.text.config import (
    ColaConfig,
    Conll2003Config,
    GptConfig,
    MnliConfig,
    MrpcConfig,
    QnliConfig,
    QqpConfig,
    RteConfig,
    SquadV1Config,
    SquadV2Config,
    Sst2Config,
    StsbConfig,
    TableConfig,
    TextClassificationConfig,
    TextRegressionConfig,
)
from tasks.vision.config import Cifar10Config, Cifar100Config, DigitsConfig, ImageFolderConfig

Direction = Literal["maximize", "minimize"]
ENGINE_RUN = "tasks.engine.run:TrainingRun"
DISTRIBUTED_RUN = "tasks.engine.distributed:DistributedRun"
COHORT = "tasks.engine.cohort:Cohort"
SIDE_BY_SIDE = "tasks.engine.side_by_side:SideBySide"

METRIC_NAME = r"[A-Za-z][A-Za-z0-9_.\-]{0,99}"
"""A regular expression of the metrics that own code may report."""


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
        target_value: a value of `default_metric`; comparisons report the time until it is reached. None: none.
        extra_test_metrics: what the test set has besides (MNLI's mismatched genres).
        space: which of an optimizer's spaces is searched where a study names none: "finetune" for pretrained models.
        kind: what an example is; only listed.
        open_metrics: whether studies may name any other metric, which a run then must report. They say its direction.
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
    space: Literal["default", "finetune"] = "default"
    kind: str = "image"
    open_metrics: bool = False

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

    def has_metric(self, name: str) -> bool:
        """Whether a study may compare by this metric: never by one of the test set."""
        open_name = self.open_metrics and re.fullmatch(METRIC_NAME, name) and not name.startswith("test_")
        return name in self.metrics or bool(open_name)

    def test_name(self, metric: str) -> str:
        """The test set's name of a validation metric."""
        return "test_" + metric.removeprefix("val_")


def _metrics(*maximized: str) -> Mapping[str, Direction]:
    """Validation metrics of which more is better, and the validation loss."""
    return MappingProxyType({**dict.fromkeys(maximized, "maximize"), "val_loss": "minimize"})


UNDEFINED: Mapping[str, str] = {
    "mcc": "all labels are of one class",
    "spearman": "the predictions, or the labels, are all equal",
    "pearson": "the predictions, or the labels, are all equal",
}
"""Metrics that an evaluation may leave undefined (NaN), by their names without the split, and when they are."""


def explain_undefined(metric: str) -> str | None:
    """When a metric such as `val_mcc` is undefined; None for a metric that always has a value."""
    return UNDEFINED.get(metric.partition("_")[2])


ACCURACY = _metrics("val_accuracy")
F1 = _metrics("val_f1", "val_accuracy")
CORRELATIONS = _metrics("val_spearman", "val_pearson")
TABLE: Mapping[str, Direction] = MappingProxyType(
    {
        "val_loss": "minimize",
        **dict.fromkeys(("val_accuracy", "val_f1", "val_mcc", "val_spearman", "val_pearson"), "maximize"),
    }
)
LIKELIHOOD: Mapping[str, Direction] = MappingProxyType({"val_loss": "minimize", "val_bits_per_byte": "minimize"})
SQUAD = ("val_f1", "val_exact_match")
GLUE_FILES = "From GLUE's own files in the data folder, or from the hub; its development set is the test set."


def _info(
    config: type[TaskConfig], target: str, metrics: Mapping[str, Direction] = ACCURACY, **fields: Any
) -> TaskInfo:
    """A built-in task: its title and description are the first paragraph of its configuration's docstring.

    Args:
        target: "module:Class", without the leading `tasks.`.
        metrics: the first is the objective.
    """
    title, _, description = " ".join(str(getdoc(config)).partition("\n\n")[0].split()).partition(": ")
    if target.startswith("text.glue:"):
        description = f"{description} {GLUE_FILES}"
    return TaskInfo(
        name=config.model_fields["name"].default,
        title=title,
        description=description[0].upper() + description[1:],
        config=config,
        target=f"tasks.{target}",
        metrics=metrics,
        default_metric=next(iter(metrics)),
        **fields,
    )


def _text(
    config: type[TaskConfig], target: str, metrics: Mapping[str, Direction] = ACCURACY, **fields: Any
) -> TaskInfo:
    return _info(config, target, metrics, kind="text", space="finetune", **fields)


def _audio(config: type[TaskConfig], target: str, **fields: Any) -> TaskInfo:
    return _info(config, f"audio.datasets:{target}", kind="audio", **fields)


TASKS: Mapping[str, TaskInfo] = {
    info.name: info
    for info in (
        _info(DigitsConfig, "vision.datasets:DigitsTask", target_value=0.97),
        _info(Cifar10Config, "vision.datasets:Cifar10Task", target_value=0.93),
        _info(Cifar100Config, "vision.datasets:Cifar100Task", target_value=0.70),
        _info(ImageFolderConfig, "vision.datasets:ImageFolderTask"),
        _text(ColaConfig, "text.glue:ColaTask", _metrics("val_mcc", "val_accuracy")),
        _text(Sst2Config, "text.glue:GlueClassification"),
        _text(MrpcConfig, "text.glue:ParaphraseTask", F1),
        _text(StsbConfig, "text.glue:StsbTask", CORRELATIONS),
        _text(QqpConfig, "text.glue:ParaphraseTask", F1),
        _text(
            MnliConfig,
            "text.glue:GlueClassification",
            extra_test_metrics=("test_accuracy_mismatched", "test_loss_mismatched"),
        ),
        _text(QnliConfig, "text.glue:GlueClassification"),
        _text(RteConfig, "text.glue:GlueClassification"),
        _text(
            TextClassificationConfig,
            "text.sentences:TextClassificationTask",
            _metrics("val_accuracy", "val_f1", "val_mcc"),
        ),
        _text(TextRegressionConfig, "text.sentences:TextRegressionTask", CORRELATIONS),
        _text(SquadV1Config, "answering.task:SquadV1Task", _metrics(*SQUAD)),
        _text(SquadV2Config, "answering.task:SquadV2Task", _metrics(*SQUAD, "val_best_f1", "val_best_exact_match")),
        _text(Conll2003Config, "entities.task:Conll2003Task", _metrics("val_f1", "val_precision", "val_recall")),
        _info(GptConfig, "gpt:GptTask", LIKELIHOOD, kind="text"),
        _info(TableConfig, "table:TableTask", TABLE, kind="row"),
        _audio(FsddConfig, "FsddTask", target_value=0.95),
        _audio(SuperbKsConfig, "SuperbKsTask", space="finetune"),
        _audio(CommonLanguageConfig, "CommonLanguageTask", space="finetune"),
        _audio(AudioFolderConfig, "AudioFolderTask", space="finetune"),
        TaskInfo(
            name="synthetic",
            title="Toy surfaces",
            description="Quadratic valley, Rosenbrock and a noisy quadratic, minimised by the optimizer itself; "
            "and 'idle', which trains nothing and scores the learning rate by a formula.",
            config=SyntheticConfig,
            target=None,
            run="tasks.synthetic:SyntheticRun",
            metrics=_metrics("val_score"),
            default_metric="val_score",
            kind="surface",
        ),
        _info(OwnConfig, "own.task:OwnTask", _metrics("val_accuracy"), kind="any"),
        TaskInfo(
            name="python",
            title="Your own training code",
            description="A function of yours that trains and reports its metrics, named by its import path.",
            config=PythonConfig,
            target=None,
            run="tasks.own.run:PythonRun",
            metrics=MappingProxyType({"val_loss": "minimize", "val_accuracy": "maximize"}),
            default_metric="val_loss",
            kind="any",
            open_metrics=True,
        ),
    )
}

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


OWN_FIELDS = frozenset(["schedule", "grad_clip", "weight_decay_on", "epochs", "init_from", "augment", "pad"])
"""Fields of a task in which the runs of a cohort may differ: the stacked pass does not read them."""


def shared_part(config: TaskConfig) -> str:
    """What the runs of a cohort (`tasks.engine.cohort`) have in common of their task, as text."""
    return config.model_dump_json(exclude=set(OWN_FIELDS))


def why_not_side_by_side(config: TaskConfig) -> str:
    """Why a run of this task is not trained beside others by one process; empty: it may be."""
    if get(config.name).run != ENGINE_RUN:
        return f"task '{config.name}' is not trained by the engine"
    if config.acceleration != "graph":
        return f"acceleration is {config.acceleration!r}, and one process is fast enough for captured steps alone"
    return ""


def why_not_together(config: TaskConfig) -> str:
    """Why runs of this task are not trained as a cohort, as far as its configuration says; empty: they may be."""
    if get(config.name).run != ENGINE_RUN:
        return f"task '{config.name}' is not trained by the engine"
    if config.accumulation > 1:
        return f"accumulation is {config.accumulation}; a cohort takes one batch a step"
    if config.deterministic:
        return "deterministic is set; a run in a cohort is repeated exactly only in an equal cohort"
    return ""
