"""Your own code, by import path: a function that trains and reports, or a data set and a model. Imports no torch."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, JsonValue, field_validator, model_validator

from admeta.imports import split_path
from tasks.config import BatchSize, Epochs, NamedSchedule, Schedule, TaskConfig, ValFraction


def _checked(path: str) -> str:
    split_path(path)
    return path


ImportPath = Annotated[str, Field(max_length=200), AfterValidator(_checked)]


class OwnConfig(TaskConfig):
    """Your own data set and model: tensors that a function of yours returns, trained by the engine's loop.

    Labels of int64 are classes (cross-entropy), of a floating type values (mean squared error): docs/own-code.md.
    """

    same_for_all: ClassVar[frozenset[str]] = TaskConfig.same_for_all | {"data"}

    name: Literal["own"] = "own"
    model: ImportPath = Field(description="a class or function that makes the model: my_module:Net")
    data: ImportPath = Field(description="a function of the data folder that returns the splits: my_module:dataset")
    epochs: Epochs = 10
    batch_size: BatchSize = 64
    schedule: NamedSchedule = Schedule(name="cosine")
    val_fraction: ValFraction = 0.1
    settings: dict[str, JsonValue] = Field(default={}, max_length=100, description="keyword arguments of the model")

    @classmethod
    def accepts_model(cls, model: str) -> bool:
        return True  # any import path

    def imports(self) -> dict[str, str]:
        return {"model": self.model, "data": self.data}


UNUSED = (
    *("accumulation", "grad_clip", "label_smoothing", "weight_decay_on"),
    *("precision", "acceleration", "deterministic", "init_from"),
)
"""Fields of the engine, which does not train here."""


class PythonConfig(TaskConfig):
    """Your own training code: a function that trains with a plain PyTorch loop, transformers' Trainer or Lightning.

    The function is called with one argument, a `tasks.own.context.Context`: docs/own-code.md.
    """

    same_for_all: ClassVar[frozenset[str]] = TaskConfig.same_for_all | {"run", *UNUSED}

    name: Literal["python"] = "python"
    run: ImportPath = Field(description="the function: my_module:train")
    model: str = Field("", max_length=100, description="a name for what it trains; default: the function's")
    epochs: Epochs = Field(10, description="reports of a full training")
    batch_size: int = Field(32, strict=True, ge=1, le=1_000_000, description="the function's ctx.batch_size")
    settings: dict[str, JsonValue] = Field(
        default={}, max_length=100, description="constants of your own, the function's ctx.settings"
    )

    @model_validator(mode="before")
    @classmethod
    def _named_after_the_function(cls, raw: Any) -> Any:
        if isinstance(raw, dict) and not raw.get("model") and isinstance(raw.get("run"), str):
            return {**raw, "model": raw["run"][:100]}
        return raw

    @field_validator("model")
    @classmethod
    def _is_a_name(cls, model: str) -> str:
        if not model.isprintable():
            raise ValueError("must be printable text")
        return model

    @model_validator(mode="after")
    def _without_the_engines_fields(self) -> PythonConfig:
        for name in UNUSED:
            value = getattr(self, name)
            if value != type(self).model_fields[name].default:
                raise ValueError(
                    f"{name} = {value} is for the engine's own loop, and this function trains by itself; leave it out, "
                    "or give the function a value of yours under 'settings'"
                )
        return self

    @classmethod
    def accepts_model(cls, model: str) -> bool:
        return True

    def imports(self) -> dict[str, str]:
        return {"run": self.run}
