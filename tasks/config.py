"""What a user may write under `task:` in a study definition: the part common to every task.

Each task subclasses `TaskConfig` with its own name, models and defaults. Never imports torch: the service and the
client read these models too.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, ClassVar, Literal, get_args, get_origin

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    field_validator,
    model_validator,
)

from tasks.errors import DataError, nearest

# Strict: JSON's true is not 1, and "3" is not 3.
Count = Annotated[int, Field(strict=True)]
Number = Annotated[float, Field(strict=True)]
Flag = Annotated[bool, Field(strict=True)]


def check_relative(value: str) -> str:
    """A path of a definition: relative, with forward slashes and without `..`; resolved under the data folder.

    Raises:
        ValueError: the path is empty, absolute, or could leave the data folder.
    """
    parts = PurePosixPath(value).parts
    bad = not parts or value.startswith(("/", "~")) or ".." in parts or "\\" in value or not value.isprintable()
    if bad or re.match(r"^[A-Za-z][A-Za-z0-9+.-]*:", value):
        raise ValueError(
            f"{value!r} is not a path inside the data folder; give it relative to that folder "
            "(ADMETA_DATA or --data), without '..', a drive or a scheme"
        )
    return value


RelativePath = Annotated[str, Field(max_length=500), AfterValidator(check_relative)]


def resolve_inside(root: Path, relative: str) -> Path:
    """`relative` under `root`, with all links followed.

    Raises:
        DataError: the path leaves the root (through `..`, an absolute path or a link), or does not exist.
    """
    base = root.resolve()
    path = (base / relative).resolve()
    if not path.is_relative_to(base):
        raise DataError(f"{relative!r} leads out of the data folder; move the data into it")
    if not path.exists():
        raise DataError(f"{relative!r} is not in the data folder {root}; put the data there or correct the path")
    return path


class Part(BaseModel):
    """Base of the configuration's parts: no unknown fields, no NaN or infinity, immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, validate_default=True)


_OWNERS = {"milestones": ("multistep",), "gamma": ("multistep",), "final": ("linear", "cosine")}
"""Fields that only these schedules use."""


class Schedule(Part):
    """The learning rate as a factor on the optimizer's own, over fractions of the run.

    Fractions, so that a shorter budget keeps the shape: the paper's 80 and 120 of 160 epochs are 0.5 and 0.75.
    A plain name means that schedule with its defaults: `schedule: cosine`.
    """

    name: Literal["constant", "linear", "cosine", "multistep"] = "constant"
    warmup: Number = Field(0.0, ge=0.0, lt=1.0, description="fraction of the run over which lr rises linearly from 0")
    milestones: tuple[Number, ...] = Field((0.5, 0.75), description="multistep: fractions at which lr drops")
    gamma: Number = Field(0.1, gt=0.0, le=1.0, description="multistep: factor at each milestone")
    final: Number = Field(0.0, ge=0.0, le=1.0, description="linear, cosine: factor at the end of the run")

    @model_validator(mode="after")
    def _fields_are_the_schedules_own(self) -> Schedule:
        for field, owners in _OWNERS.items():
            value = getattr(self, field)
            if self.name not in owners and value != type(self).model_fields[field].default:
                raise ValueError(
                    f"{field} = {value} is for {' and '.join(owners)}, but the schedule's name is {self.name!r}; name "
                    f"{' or '.join(owners)}, or leave {field} out"
                )
        return self

    @model_validator(mode="after")
    def _milestones_rise(self) -> Schedule:
        marks = self.milestones
        if any(not 0.0 < mark < 1.0 for mark in marks) or list(marks) != sorted(set(marks)):
            raise ValueError(f"milestones {list(marks)} must rise strictly within (0, 1): fractions of the run")
        if self.name == "multistep" and marks and marks[0] < self.warmup:
            raise ValueError(
                f"milestone {marks[0]} is in the warm-up, the first {self.warmup} of the run, where lr still rises; "
                "shorten the warm-up or move the milestone"
            )
        return self

    def lr_factor(self, step: int, *, n_steps: int) -> float:
        """The factor on the optimizer's own learning rate for one step.

        Args:
            step: the step about to be made, from 0.
            n_steps: steps in the full budget.

        Returns:
            During warm-up (step + 1) / n_warmup. After it, over the whole run: 1 (constant); `gamma` to the power of
            the milestones passed (multistep); and over the rest of the run, from 1 to `final`: linear, or half a
            cosine. Milestones are fractions of the whole run, warm-up included, as the paper's 80 and 120 of 160 are.
        """
        n_warmup = round(self.warmup * n_steps)
        if step < n_warmup:
            return (step + 1) / n_warmup
        progress = (step - n_warmup) / max(1, n_steps - n_warmup)
        match self.name:
            case "constant":
                return 1.0
            case "multistep":
                return float(self.gamma ** sum(step >= round(mark * n_steps) for mark in self.milestones))
            case "linear":
                return self.final + (1.0 - self.final) * (1.0 - progress)
            case "cosine":
                return self.final + (1.0 - self.final) * (0.5 * (1.0 + math.cos(math.pi * progress)))


def named_schedule(value: object) -> object:
    """A plain name means the schedule of that name with its defaults."""
    return {"name": value} if isinstance(value, str) else value


Epochs = Annotated[int, Field(strict=True, ge=1, le=100_000)]
BatchSize = Annotated[int, Field(strict=True, ge=1, le=1_000_000, description="samples in one forward pass")]
Accumulation = Annotated[
    int, Field(strict=True, ge=1, le=10_000, description="forward passes whose gradients make one optimizer step")
]
GradClip = Annotated[Number | None, Field(gt=0.0, description="largest 2-norm of the whole gradient")]
WeightDecayOn = Annotated[
    Literal["all", "matrices"],
    Field(description="matrices: none on biases, norms and other one-dimensional parameters"),
]
ValFraction = Annotated[
    float, Field(strict=True, gt=0.0, lt=1.0, description="of the training set, held out for validation")
]
NamedSchedule = Annotated[Schedule, BeforeValidator(named_schedule)]


Width = Annotated[
    Annotated[int, Field(strict=True, ge=1, le=65_536)] | None,
    Field(description="of the model's vectors, a multiple of a head's width, which stays; null: the model's own"),
]
BaseWidth = Annotated[
    Annotated[int, Field(strict=True, ge=1, le=65_536)] | None,
    Field(description="mup: the width at which it is the standard parametrisation; null: the model's own"),
]
Parametrization = Annotated[
    Literal["standard", "mup"],
    Field(
        description="mup: initial weights, the output and the learning rate of each role depend on the width so that "
        "the best settings do not (Yang, Hu et al., Tensor Programs V, table 8)"
    ),
]


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A transformer's width and how it is parametrised.

    Attributes:
        n_heads: heads of attention, each as wide as at any other width: then µP's scale 1/d of attention is constant.
        over_base: the width over that at which µP is the standard parametrisation; 1 without µP.
    """

    width: int
    n_heads: int
    over_base: float = 1.0


def shape_of(own: tuple[int, int], *, width: int | None, parametrization: str, base_width: int | None) -> Shape:
    """The shape that a task's fields of these names ask for.

    Args:
        own: heads and width of the model by its name.

    Raises:
        ValueError: a width is no multiple of a head's, or there is a base without µP.
    """
    n_heads, own_width = own
    of_head = own_width // n_heads
    for name, value in (("width", width), ("base_width", base_width)):
        if value is not None and value % of_head:
            raise ValueError(
                f"{name} {value} is no multiple of {of_head}, the width of one of this model's heads; choose one "
                "such as "
                f"{max(1, round(value / of_head)) * of_head}"
            )
    if parametrization != "mup" and base_width is not None:
        raise ValueError(f"base_width {base_width} is for 'parametrization: mup'; set that, or leave base_width out")
    chosen = width or own_width
    over_base = chosen / (base_width or own_width) if parametrization == "mup" else 1.0
    return Shape(width=chosen, n_heads=chosen // of_head, over_base=over_base)


class TrialRef(Part):
    """A trial of an earlier study, whose best checkpoint starts this one's training."""

    study: str = Field(min_length=1, max_length=100)
    optimizer: str = Field(min_length=1, max_length=100)
    trial: Count = Field(ge=0)

    def __str__(self) -> str:
        return f"{self.study}/{self.optimizer}/{self.trial}"


def _kind_of_origin(value: object) -> str:
    return "path" if isinstance(value, str) else "TrialRef"


# Chosen by hand: for a bad path pydantic would also report that it is not an object.
Origin = Annotated[
    Annotated[TrialRef, Tag("TrialRef")] | Annotated[RelativePath, Tag("path")], Discriminator(_kind_of_origin)
]


class TaskConfig(Part):
    """What a trial trains, apart from the optimizer: the fields that every task has."""

    models: ClassVar[tuple[str, ...]] = ()
    open_models: ClassVar[str | None] = None
    """A regular expression of further model names that a task accepts (such as hub names); None: only `models`."""
    same_for_all: ClassVar[frozenset[str]] = frozenset(
        [
            "name",
            "model",
            "parametrization",
            "base_width",
            "epochs",
            "precision",
            "acceleration",
            "deterministic",
            "split_seed",
            "data_dir",
            "init_from",
            "val_fraction",
            "test_fraction",
            "train_file",
            "val_file",
            "test_file",
            "on_bad_audio",
            "on_bad_image",
            "on_bad_answer",
        ]
    )
    """Fields that no study searches: they decide what is measured, for how long it trains, or on which machine."""

    name: str
    model: str
    epochs: Epochs
    batch_size: BatchSize
    accumulation: Accumulation = 1
    schedule: NamedSchedule = Schedule()
    grad_clip: GradClip = None
    label_smoothing: Number = Field(0.0, ge=0.0, lt=1.0)
    weight_decay_on: WeightDecayOn = "all"
    precision: Literal["auto", "fp32", "tf32", "bf16"] = Field("auto", description="auto: bf16 on a GPU, fp32 on a CPU")
    acceleration: Literal["eager", "graph", "compile"] = Field(
        "graph", description="GPU only: graph captures the whole step; compile also compiles the model first"
    )
    deterministic: Flag = Field(default=False, description="bit-for-bit repeatable on a GPU too, at some speed")
    split_seed: Count = Field(0, ge=0, le=2**32 - 1, description="of the validation split: one for all trials")
    data_dir: RelativePath | None = Field(None, description="the data set's folder, inside the data folder")
    init_from: Origin | None = Field(
        None, description="start from a trial's best weights, or from a checkpoint file inside the data folder"
    )

    @classmethod
    def recipe_fields(cls) -> list[str]:
        """The fields that a study may search, those of an object as `schedule.warmup`; `settings.*` has any names."""
        found: list[str] = []
        for name, field in cls.model_fields.items():
            if name in cls.same_for_all:
                continue
            kind = field.annotation
            if get_origin(kind) is dict:
                found.append(f"{name}.*")
                continue
            found.append(name)
            for part in (kind, *get_args(kind)):
                if isinstance(part, type) and issubclass(part, Part):
                    found += [f"{name}.{inner}" for inner in part.model_fields]
        return found

    @classmethod
    def defaults_of(cls, model: str | None) -> Mapping[str, Any]:
        """The defaults that a model has in place of the task's own, by field."""
        return {}

    def imports(self) -> dict[str, str]:
        """The import paths ("module:name") in this configuration, by field: what an operator must allow."""
        return {}

    def libraries(self) -> tuple[str, ...]:
        """Modules that take long to import and that its runs need besides what all runs need.

        Processes that wait for the next study import them, so none may touch CUDA.
        """
        return ("torch._inductor.compile_fx",) if self.acceleration == "compile" else ()

    def space(self, own: str, *, recipe: Iterable[str] = ()) -> str:
        """Which of an optimizer's spaces is searched where a study names none.

        Args:
            own: the task's.
            recipe: the fields that are searched with it, as `recipe_fields` names them.
        """
        return own

    @field_validator("model", check_fields=False)
    @classmethod
    def _model_is_known(cls, model: str) -> str:
        if not cls.accepts_model(model):
            raise ValueError(
                f"unknown model {model!r} for task {cls.model_fields['name'].default!r}."
                f"{nearest(model, cls.models)} Known models: {', '.join(cls.models)}"
            )
        return model

    @classmethod
    def accepts_model(cls, model: str) -> bool:
        """Whether this task knows a model of that name."""
        return model in cls.models or (cls.open_models is not None and bool(re.fullmatch(cls.open_models, model)))


def with_recipe(task: Mapping[str, Any], recipe: Mapping[str, Any]) -> dict[str, Any]:
    """A task's configuration with some of its fields set, for `tasks.registry.parse_config` to check.

    With another schedule's name, the task's values for fields that only its own schedule has are left out.

    Args:
        task: a whole configuration as JSON values.
        recipe: values by field; a field of an object is written with a dot.
    """
    changed = dict(task)
    if (name := recipe.get("schedule.name")) is not None and isinstance(schedule := task.get("schedule"), dict):
        changed["schedule"] = {key: value for key, value in schedule.items() if name in _OWNERS.get(key, (name,))}
    for path, value in recipe.items():
        field, dot, inner = path.partition(".")
        changed[field] = {**(changed.get(field) or {}), inner: value} if dot else value
    return changed
