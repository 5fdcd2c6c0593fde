"""Removes checkpoints that are no longer needed. Only those of runs that have ended in SQL are removed.

Kept are:
    running or waiting   the newest checkpoint, and the best weights so far
    COMPLETE             the best weights: of confirm runs, and of the `keep_checkpoints` best trials of each optimizer
    otherwise ended      nothing
"""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from typing import Self

from search.definition import StudyDefinition
from search.loop import best_first
from search.records import RunRecord, run_folder
from search.states import RunState, Stage
from search.store import Store
from tasks.engine.folders import find_unneeded, inside, open_folder

logger = logging.getLogger(__name__)

PAUSE_S = 30.0
SHARE = 0.05  # of a thread's time at most, since listing a large study takes seconds


def kept(runs: Sequence[RunRecord], definition: StudyDefinition) -> set[int]:
    """Ids of one search's complete runs whose best weights are kept."""
    searched = [
        run for run in runs if run.stage is Stage.SEARCH and run.attempt > 0
    ]  # without duplicates, which were not trained
    confirmed = [run for run in runs if run.stage is Stage.CONFIRM and run.state is RunState.COMPLETE]
    return {run.id for run in [*best_first(searched, definition)[: definition.keep_checkpoints], *confirmed]}


def clear_up(store: Store, study_id: str, *, storage: str) -> None:
    """Remove the unneeded checkpoints of a study's ended runs, with one listing of its folder.

    A failure is logged, and the next call tries again.
    """
    try:
        definition, runs = store.get_study(study_id).definition, store.runs(study_id)
        folder = open_folder(inside(storage, study_id))
        found: dict[str, list[str]] = defaultdict(list)
        for path in folder.all_names():
            place, _, name = path.rpartition("/")
            found[place].append(name)
        for record in store.searches(study_id):
            own = [run for run in runs if run.search_id == record.id]
            staying = kept(own, definition)
            for run in own:
                place = run_folder(study_id, record.label, run).removeprefix(f"{study_id}/")
                if run.state.is_finished and place in found:
                    for name in find_unneeded(found[place], keep_best=run.id in staying):
                        folder.remove(f"{place}/{name}")
    except Exception as error:  # noqa: BLE001 - a storage or database that is away must not fail the study
        logger.warning("study %s: unneeded checkpoints were not removed: %s", study_id, error)


class Retention:
    """Removes unneeded checkpoints while a study is driven, in a thread, since a storage may be slow."""

    def __init__(self, store: Store, study_id: str, *, storage: str) -> None:
        self._clear_up = partial(clear_up, store, study_id, storage=storage)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, name=f"retention-{study_id}", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def conclude(self) -> None:
        """Clear up for the last time, before the study's state changes: a lost worker may have written late."""
        self.__exit__()
        self._clear_up()

    def _work(self) -> None:
        pause_s = PAUSE_S
        while not self._over.wait(pause_s):
            begin = time.monotonic()
            self._clear_up()
            pause_s = max(PAUSE_S, (time.monotonic() - begin) / SHARE)
