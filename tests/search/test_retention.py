"""What stays of a study's checkpoints: by what SQL says of its runs, whoever wrote what and when."""

from __future__ import annotations

import logging
import time
from pathlib import Path

import pytest

from search import retention
from search.records import Lease, RunOutcome, RunRecord, SearchRecord, StudyRecord, run_folder
from search.retention import Retention, clear_up
from search.states import RunState, Stage
from tasks.engine.folders import LocalFolder
from tests.machine import wait_until
from tests.search.memory_store import MemoryStore
from tests.search.workers import define

FILES = ("epoch-000003.pt", "best.pt", "attempt-1.log", ".epoch-000004.pt-x1.tmp")
WEIGHTS = {"best.pt", "attempt-1.log"}
LOG = {"attempt-1.log"}


class Installation:
    """A study in memory and its folder of checkpoints; every run that began has left the same files."""

    def __init__(self, storage: Path, **changes: object) -> None:
        self.storage = storage
        self.store = MemoryStore()
        self.study: StudyRecord = self.store.add_study(define(**changes))
        lease = self.store.acquire_lease(self.study.id, owner="driver", ttl_s=60.0)
        assert lease is not None
        self.lease: Lease = lease
        self.searches: list[SearchRecord] = self.store.searches(self.study.id)

    def run(
        self,
        number: int,
        outcome: RunOutcome | None,
        *,
        stage: Stage = Stage.SEARCH,
        search: int = 0,
        begun: bool = True,
    ) -> RunRecord:
        record = self.searches[search]
        run = self.store.create_run(
            self.lease, record.id, trial_number=number, stage=stage, seed=0, params={"lr": 0.1 + number}
        )
        if begun:
            run = self.store.start_attempt(self.lease, run.id)
            folder = self.folder(run)
            folder.mkdir(parents=True)
            for name in FILES:
                (folder / name).write_bytes(b"x")
        return run if outcome is None else self.store.finish_run(self.lease, run.id, outcome)

    def folder(self, run: RunRecord) -> Path:
        [label] = [record.label for record in self.searches if record.id == run.search_id]
        return self.storage / run_folder(self.study.id, label, run)

    def left(self, run: RunRecord) -> set[str]:
        return {path.name for path in self.folder(run).iterdir()}

    def clear_up(self) -> None:
        clear_up(self.store, self.study.id, storage=str(self.storage))


def complete(value: float) -> RunOutcome:
    return RunOutcome(state=RunState.COMPLETE, value=value)


def test_the_best_trials_keep_weights_and_the_others_nothing(tmp_path: Path) -> None:
    there = Installation(tmp_path, keep_checkpoints=2, objective={"metric": "val_loss", "direction": "minimize"})
    losses = [0.5, 0.2, 0.4, 0.2, 0.9]
    runs = [there.run(number, complete(loss)) for number, loss in enumerate(losses)]
    other = there.run(0, complete(5.0), search=1)
    confirm = there.run(4, complete(9.0), stage=Stage.CONFIRM)
    pruned = there.run(5, RunOutcome(state=RunState.PRUNED, value=0.1))
    failed = there.run(6, RunOutcome(state=RunState.FAIL, error="diverged"))
    under_way = there.run(7, None)
    there.run(8, complete(0.2), begun=False)  # took over an equal trial's result
    for _ in range(2):
        there.clear_up()
        assert [there.left(run) for run in runs] == [LOG, WEIGHTS, LOG, WEIGHTS, LOG]
        assert there.left(other) == there.left(confirm) == WEIGHTS
        assert there.left(pruned) == there.left(failed) == LOG
        assert there.left(under_way) == set(FILES)
    better = there.run(9, complete(0.1))
    there.clear_up()
    assert (there.left(better), there.left(runs[1]), there.left(runs[3])) == (WEIGHTS, WEIGHTS, LOG)


def test_none_of_the_search_need_be_kept(tmp_path: Path) -> None:
    there = Installation(tmp_path, keep_checkpoints=0)
    run, confirm = there.run(0, complete(1.0)), there.run(0, complete(1.0), stage=Stage.CONFIRM)
    there.clear_up()
    assert (there.left(run), there.left(confirm)) == (LOG, WEIGHTS)


def test_a_study_that_left_nothing_is_fine(tmp_path: Path) -> None:
    there = Installation(tmp_path)
    there.run(0, complete(1.0), begun=False)
    there.clear_up()
    assert list(tmp_path.iterdir()) == []


def test_a_storage_that_fails_costs_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    there = Installation(tmp_path)
    run = there.run(0, RunOutcome(state=RunState.FAIL, error="x"))

    def refuse(self: LocalFolder, name: str) -> None:
        raise PermissionError(13, "Permission denied", name)

    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
        patch.setattr(LocalFolder, "remove", refuse)
        there.clear_up()
    assert "unneeded checkpoints were not removed: [Errno 13] Permission denied" in caplog.text
    there.clear_up()
    assert there.left(run) == LOG


def test_it_clears_up_while_the_study_runs_and_once_more_at_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "PAUSE_S", 0.01)
    there = Installation(tmp_path)
    run = there.run(0, RunOutcome(state=RunState.PRUNED, value=0.1))
    with Retention(there.store, there.study.id, storage=str(tmp_path)) as keeper:
        wait_until(lambda: there.left(run) == LOG, what="it clears up", poll_s=0.01)
        monkeypatch.setattr(retention, "PAUSE_S", 3600.0)
        time.sleep(0.05)
        (there.folder(run) / "epoch-000009.pt").write_bytes(b"of a worker that was thought dead")
        keeper.conclude()
        assert there.left(run) == LOG
