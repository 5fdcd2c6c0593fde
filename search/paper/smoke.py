"""A study in small: the same task, optimizers, spaces and stages, in seconds on a CPU with a data set of a few hundred.

It shows that a study runs from end to end. Its numbers mean nothing, and since its model is none of the paper's, they
never stand beside the paper's.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from search.definition import StudyDefinition
from tasks.config import TaskConfig, TrialRef

SUFFIX = "-smoke"
SMALL_MODELS = ("tiny", "resnet20", "linear")
"""What is trained instead, the first that the task knows; a task that knows none keeps its model."""

AT_MOST: Mapping[str, float] = MappingProxyType(
    {"epochs": 1, "batch_size": 8, "accumulation": 1, "max_length": 96, "doc_stride": 16, "max_length_s": 0.5}
)
"""Fields of the task that are cut down to this, where it has them."""

VAL_FRACTION = 0.5  # so that a class of two samples is in training and in validation
N_TRIALS = 2
N_SEEDS = 1


def smoke(definition: StudyDefinition) -> StudyDefinition:
    """The study in small. It starts from the small form of the study that the whole one starts from."""
    raw = definition.to_json()
    return StudyDefinition.model_validate(
        {
            **raw,
            "name": definition.name + SUFFIX,
            "description": f"In small, to see that it runs: {definition.description}",
            "task": _small_task(definition.task),
            "pruner": {"name": "none"},  # after one epoch there is nothing to stop
            "budget": {"trials_per_optimizer": min(N_TRIALS, definition.budget.trials_per_optimizer)},
            "confirm": {
                "top_k": min(1, definition.confirm.top_k),
                "seeds": definition.confirm.seeds[:N_SEEDS],
            },
            "resources": {"cpus": 1, "gpus": 0},
            "checkpoint_every_s": 0,  # a study may start from its trials, however short they are
        }
    )


def _small_task(task: TaskConfig) -> dict[str, Any]:
    raw = task.model_dump(mode="json")
    raw |= {name: min(raw[name], limit) for name, limit in AT_MOST.items() if name in raw}
    if "val_fraction" in raw:
        raw["val_fraction"] = VAL_FRACTION
    raw["model"] = next((model for model in SMALL_MODELS if model in type(task).models), task.model)
    if isinstance(task.init_from, TrialRef):
        raw["init_from"]["study"] += SUFFIX
    return raw
