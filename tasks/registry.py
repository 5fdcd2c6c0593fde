"""What the registry records of a task. Imports no torch: servers and clients read it.

The built-in tasks: literal data, as the registry gives it. Imports no torch: targets are named, not imported.

The tasks by name: the built-in ones (tasks.registry), and users' own by the entry-point group `admeta.tasks`.

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

from tasks.answering.config import SquadV1Config, SquadV2Config
from tasks.audio.config import AudioFolderConfig, CommonLanguageConfig, FsddConfig, SuperbKsConfig
from tasks.config import TaskConfig
from tasks.entities.config import Conll2003Config
from tasks.errors import TaskError, UnknownTaskError
from tasks.synthetic.config import SyntheticConfig
from tasks.text.config import (
    ColaConfig,
    MnliConfig,
    MrpcConfig,
    QnliConfig,
    QqpConfig,
    RteConfig,
    Sst2Config,
    StsbConfig,
    TextClassificationConfig,
    TextRegressionConfig,
)
from tasks.vision.config import Cifar10Config, Cifar100Config, DigitsConfig, ImageFolderConfig

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


VISION_METRICS: Mapping[str, Direction] = MappingProxyType({"val_accuracy": "maximize", "val_loss": "minimize"})

ACCURACY: Mapping[str, Direction] = VISION_METRICS
F1: Mapping[str, Direction] = MappingProxyType({"val_f1": "maximize", **VISION_METRICS})
MCC: Mapping[str, Direction] = MappingProxyType({"val_mcc": "maximize", **VISION_METRICS})
CORRELATIONS: Mapping[str, Direction] = MappingProxyType(
    {"val_spearman": "maximize", "val_pearson": "maximize", "val_loss": "minimize"}
)
SQUAD: Mapping[str, Direction] = MappingProxyType(
    {"val_f1": "maximize", "val_exact_match": "maximize", "val_loss": "minimize"}
)
GLUE_FILES = "From GLUE's own files in the data folder, or fetched from the hub; its development set is the test set."

TASKS: Mapping[str, TaskInfo] = {
    "digits": TaskInfo(
        name="digits",
        title="Handwritten digits 8×8",
        description="scikit-learn's 1,797 real handwritten digits, 1,197 / 300 / 300, stratified; seconds on one core.",
        config=DigitsConfig,
        target="tasks.vision.datasets:DigitsTask",
        metrics=VISION_METRICS,
        default_metric="val_accuracy",
        target_value=0.97,
    ),
    "cifar10": TaskInfo(
        name="cifar10",
        title="CIFAR-10",
        description="60,000 photographs of 32×32 in ten classes; 45,000 / 5,000 / 10,000, augmented as the paper does.",
        config=Cifar10Config,
        target="tasks.vision.datasets:Cifar10Task",
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
        target="tasks.vision.datasets:Cifar100Task",
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
        target="tasks.vision.datasets:ImageFolderTask",
        metrics=VISION_METRICS,
        default_metric="val_accuracy",
        needs_data=True,
    ),
    "cola": TaskInfo(
        name="cola",
        title="CoLA",
        description=f"8,551 English sentences, acceptable or not; Matthews correlation. {GLUE_FILES}",
        config=ColaConfig,
        target="tasks.text.glue:ColaTask",
        metrics=MCC,
        default_metric="val_mcc",
        needs_data=True,
        space="finetune",
        kind="text",
    ),
    "sst2": TaskInfo(
        name="sst2",
        title="SST-2",
        description=f"67,349 phrases of film reviews, positive or not; accuracy. {GLUE_FILES}",
        config=Sst2Config,
        target="tasks.text.glue:GlueClassification",
        metrics=ACCURACY,
        default_metric="val_accuracy",
        needs_data=True,
        space="finetune",
        kind="text",
    ),
    "mrpc": TaskInfo(
        name="mrpc",
        title="MRPC",
        description=f"3,668 pairs of sentences, paraphrases or not; F1. {GLUE_FILES}",
        config=MrpcConfig,
        target="tasks.text.glue:ParaphraseTask",
        metrics=F1,
        default_metric="val_f1",
        needs_data=True,
        space="finetune",
        kind="text",
    ),
    "stsb": TaskInfo(
        name="stsb",
        title="STS-B",
        description=f"5,749 pairs of sentences and how alike they are; Spearman correlation. {GLUE_FILES}",
        config=StsbConfig,
        target="tasks.text.glue:StsbTask",
        metrics=CORRELATIONS,
        default_metric="val_spearman",
        needs_data=True,
        space="finetune",
        kind="text",
    ),
    "qqp": TaskInfo(
        name="qqp",
        title="QQP",
        description=f"363,846 pairs of questions, duplicates or not; F1. {GLUE_FILES}",
        config=QqpConfig,
        target="tasks.text.glue:ParaphraseTask",
        metrics=F1,
        default_metric="val_f1",
        needs_data=True,
        space="finetune",
        kind="text",
    ),
    "mnli": TaskInfo(
        name="mnli",
        title="MNLI",
        description=f"392,702 pairs, entailment or not, or neither; matched and mismatched accuracy. {GLUE_FILES}",
        config=MnliConfig,
        target="tasks.text.glue:GlueClassification",
        metrics=ACCURACY,
        default_metric="val_accuracy",
        extra_test_metrics=("test_accuracy_mismatched", "test_loss_mismatched"),
        needs_data=True,
        space="finetune",
        kind="text",
    ),
    "qnli": TaskInfo(
        name="qnli",
        title="QNLI",
        description=f"104,743 pairs of a question and a sentence, which answers it or not; accuracy. {GLUE_FILES}",
        config=QnliConfig,
        target="tasks.text.glue:GlueClassification",
        metrics=ACCURACY,
        default_metric="val_accuracy",
        needs_data=True,
        space="finetune",
        kind="text",
    ),
    "rte": TaskInfo(
        name="rte",
        title="RTE",
        description=f"2,490 pairs of texts, the first entailing the second or not; accuracy. {GLUE_FILES}",
        config=RteConfig,
        target="tasks.text.glue:GlueClassification",
        metrics=ACCURACY,
        default_metric="val_accuracy",
        needs_data=True,
        space="finetune",
        kind="text",
    ),
    "text_classification": TaskInfo(
        name="text_classification",
        title="Own texts, classes",
        description="Your own texts, or pairs of them, with classes, from CSV, TSV or JSONL; F1 is macro-averaged.",
        config=TextClassificationConfig,
        target="tasks.text.own:TextClassificationTask",
        metrics=MappingProxyType({**F1, **MCC}),
        default_metric="val_accuracy",
        needs_data=True,
        space="finetune",
        kind="text",
    ),
    "text_regression": TaskInfo(
        name="text_regression",
        title="Own texts, numbers",
        description="Your own texts, or pairs of them, with a number each, from CSV, TSV or JSONL.",
        config=TextRegressionConfig,
        target="tasks.text.own:TextRegressionTask",
        metrics=CORRELATIONS,
        default_metric="val_spearman",
        needs_data=True,
        space="finetune",
        kind="text",
    ),
    "squad_v1": TaskInfo(
        name="squad_v1",
        title="SQuAD 1.1",
        description="87,599 questions answered by a span of a passage; exact match and F1. Its official files, or "
        "fetched from the hub; its development set (10,570) is the test set.",
        config=SquadV1Config,
        target="tasks.answering.task:SquadV1Task",
        metrics=SQUAD,
        default_metric="val_f1",
        needs_data=True,
        space="finetune",
        kind="text",
    ),
    "squad_v2": TaskInfo(
        name="squad_v2",
        title="SQuAD 2.0",
        description="130,319 questions, a third of them without an answer; exact match and F1. Its official files, or "
        "fetched from the hub; its development set (11,873) is the test set.",
        config=SquadV2Config,
        target="tasks.answering.task:SquadV2Task",
        metrics=MappingProxyType({**SQUAD, "val_best_f1": "maximize", "val_best_exact_match": "maximize"}),
        default_metric="val_f1",
        needs_data=True,
        space="finetune",
        kind="text",
    ),
    "conll2003": TaskInfo(
        name="conll2003",
        title="CoNLL-2003 named entities",
        description="14,041 / 3,250 / 3,453 sentences from the news; F1 of whole entities. The shared task's files, or "
        "your own of that layout.",
        config=Conll2003Config,
        target="tasks.entities.task:Conll2003Task",
        metrics=MappingProxyType(
            {"val_f1": "maximize", "val_precision": "maximize", "val_recall": "maximize", "val_loss": "minimize"}
        ),
        default_metric="val_f1",
        needs_data=True,
        space="finetune",
        kind="text",
    ),
    "fsdd": TaskInfo(
        name="fsdd",
        title="Spoken digits",
        description="3,000 recordings of the ten digits by six speakers, 2,430 / 270 / 300; minutes on one core.",
        config=FsddConfig,
        target="tasks.audio.datasets:FsddTask",
        metrics=ACCURACY,
        default_metric="val_accuracy",
        target_value=0.95,
        needs_data=True,
        kind="audio",
    ),
    "superb_ks": TaskInfo(
        name="superb_ks",
        title="SUPERB keyword spotting",
        description="Speech Commands v0.01: ten words, silence and all else, a second each; 51,094 / 6,798 / 3,081.",
        config=SuperbKsConfig,
        target="tasks.audio.datasets:SuperbKsTask",
        metrics=ACCURACY,
        default_metric="val_accuracy",
        needs_data=True,
        space="finetune",
        kind="audio",
    ),
    "common_language": TaskInfo(
        name="common_language",
        title="Common Language",
        description="Which of 45 languages is spoken; 22,194 / 5,888 / 5,963 recordings.",
        config=CommonLanguageConfig,
        target="tasks.audio.datasets:CommonLanguageTask",
        metrics=ACCURACY,
        default_metric="val_accuracy",
        needs_data=True,
        space="finetune",
        kind="audio",
    ),
    "audio_folder": TaskInfo(
        name="audio_folder",
        title="Own recordings",
        description="Your own recordings in class folders, with a test folder or without, a folder or a tar archive.",
        config=AudioFolderConfig,
        target="tasks.audio.datasets:AudioFolderTask",
        metrics=ACCURACY,
        default_metric="val_accuracy",
        needs_data=True,
        space="finetune",
        kind="audio",
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
