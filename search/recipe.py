"""A study's recipe: what makes the results of two studies comparable, as one hash.

Best settings, tables across studies and warm starts are only taken from studies of one recipe. What differs within a
recipe is what studies compare: the optimizer with its settings, the sampler, pruner, budget and training seeds.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from search.definition import StudyDefinition

WITHOUT_EFFECT = frozenset({"acceleration", "deterministic", "sleep_s"})
"""Fields of a task that change how fast it trains and not, beyond rounding, what comes out."""


def recipe_of(definition: StudyDefinition, *, data_fingerprint: str | None = None) -> str:
    """The recipe of a study: 64 hexadecimal digits, equal on any machine and for any order of fields.

    It covers the task's whole configuration (model, epochs, batch size, schedule, initial weights, …), the data and the
    objective. `split_seed` is part of it, since it decides which examples validation is measured on; the seeds of runs
    are no part of a task's configuration.

    Args:
        data_fingerprint: of the data set's files, known once a driver has opened them (`search.placement.check`). None:
            the data are named by the task's `data_dir`, which holds as long as nobody changes that folder.
    """
    # Fields at their defaults are left out, so that a release with one more field has the same hashes.
    task: Mapping[str, Any] = definition.task.model_dump(mode="json", exclude_defaults=True)
    kept = {name: value for name, value in task.items() if name not in WITHOUT_EFFECT}
    if data_fingerprint is not None:
        kept.pop("data_dir", None)
    objective = definition.objective.model_dump(mode="json")
    content = {"name": definition.task.name, "task": kept, "data": data_fingerprint, "objective": objective}
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
