"""A study run to its end in this process: the coordinator's decisions and the real worker, without Ray between them.

What Ray and Tune add (processes, placement, retries after a death) is the business of tests/search/test_driver.py and
tests/chaos.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tasks.runs
from search.assignment import Assignment, Report
from search.coordinator import Coordinator, Idle
from search.definition import StudyDefinition
from search.driver import _origin_folders
from search.places import Workplace
from search.records import Capacity, Lease, StudyRecord
from search.states import StudyState
from search.trainable import TrialWorker
from tests.search.memory_store import MemoryStore


class InProcess:
    """Runs studies one after the other on one store, as a driver would, with one worker that is used again.

    Args:
        folder: for checkpoints.
        data_dir: the data folder.
    """

    def __init__(self, folder: Path, *, data_dir: Path) -> None:
        self.store = MemoryStore()
        self._folder = folder
        self._data_dir = data_dir
        self._worker: TrialWorker | None = None
        self._config: dict[str, Any] = {}

    def run(self, definition: StudyDefinition) -> StudyRecord:
        """Check the study and run it; COMPLETED, or the error of the check or the worker."""
        study = self.store.add_study(definition)
        lease = self.store.acquire_lease(study.id, owner="test", ttl_s=10)
        assert lease is not None
        self.store.set_study_state(lease, StudyState.RUNNING)
        origins = _origin_folders(study, self.store, storage=str(self._folder))
        tasks.runs.check(definition.task, data_dir=self._data_dir, origins=origins)
        coordinator = self._coordinator(study, lease, origins)
        while not isinstance(assignment := coordinator.next("only"), Idle):
            coordinator.begin("only")
            while not coordinator.report("only", self._step(assignment)):
                pass
        assert assignment is Idle.DONE
        self.store.set_study_state(lease, StudyState.COMPLETED)
        self.store.release_lease(lease)
        return self.store.get_study(study.id)

    def close(self) -> None:
        """End the worker."""
        if self._worker is not None:
            self._worker.stop()

    def _coordinator(self, study: StudyRecord, lease: Lease, origins: tuple[str, ...]) -> Coordinator:
        resources = study.definition.resources
        assert resources.gpus == 0
        workplace = Workplace(
            storage=str(self._folder),
            data_dir=str(self._data_dir),
            each=Capacity(cpus=resources.cpus, gpus=0),
            slots=lambda: 1,
            init_from=origins,
        )
        return Coordinator(store=self.store, lease=lease, study=study, workplace=workplace, elapsed_s=lambda: 0.0)

    def _step(self, assignment: Assignment) -> Report:
        config = assignment.to_config()
        if self._worker is None:
            self._worker = TrialWorker(config=config)
        elif self._config != config:
            self._worker.reset(config)
        self._config = config
        report: Report = self._worker.train()["report"]
        return report
