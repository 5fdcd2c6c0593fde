"""The driver over a real local Ray, on the store in memory: Tune runs the trials, the store has what happened."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import ray

from search import driver, placement
from search.assignment import NAMESPACE
from search.definition import StudyDefinition
from search.driver import DriverOptions, drive, find_driver, has_started
from search.records import CompetingStudy, Lease, StudyRecord
from search.states import RunState, Stage, StudyState
from search.tuning import SCRATCH_PREFIX
from tasks.engine import checkpoint
from tasks.engine.folders import private_folder
from tests.local_ray import local_ray as own_ray
from tests.machine import PATIENCE_S, wait_until
from tests.search.memory_store import MemoryStore
from tests.search.workers import define

pytestmark = [pytest.mark.ray, pytest.mark.slow]


@pytest.fixture(scope="module")
def local_ray(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with own_ray(tmp_path_factory.mktemp("home"), num_cpus=2):
        yield


def digits(**changes: object) -> StudyDefinition:
    fields: dict[str, object] = {
        "task": {"name": "digits", "model": "linear", "epochs": 2},
        "optimizers": [{"name": "sgdm"}],
        "budget": {"trials_per_optimizer": 1},
        "resources": {"cpus": 1, "gpus": 0},
        "checkpoint_every_s": 3600,  # so that a slow machine leaves no more of a search run than a fast one
    }
    return define(**{**fields, **changes})


def run(store: MemoryStore, definition: StudyDefinition, storage: Path) -> StudyRecord:
    study = store.add_study(definition)
    drive(study.id, store=store, options=DriverOptions(owner="test", storage=str(storage)))
    return store.get_study(study.id)


@pytest.mark.usefixtures("local_ray")
def test_a_study_may_start_from_an_earlier_trials_weights(tmp_path: Path) -> None:
    """The fine-tuned runs are better after one epoch than the first study's were; a missing trial is refused."""
    store = MemoryStore()
    first = run(store, digits(name="pretrain", confirm={"top_k": 1, "seeds": [0]}), tmp_path)
    assert first.state is StudyState.COMPLETED
    origin = {"study": "pretrain", "optimizer": "sgdm", "trial": 0}
    task = {"name": "digits", "model": "linear", "epochs": 2, "init_from": origin}
    definition = StudyDefinition.model_validate(
        {**digits(name="finetune", confirm={"top_k": 0}).to_json(), "task": task}
    )
    second = run(store, definition, tmp_path)
    assert second.state is StudyState.COMPLETED
    curves = {study.id: [store.points(r.id) for r in store.runs(study.id)] for study in (first, second)}
    assert curves[second.id][0][0].metrics["val_loss"] < curves[first.id][0][0].metrics["val_loss"]

    for name, change, reason in (
        ("lost", {"init_from": {**origin, "trial": 7}}, "no trial 7 of optimizer 'sgdm' in study 'pretrain'"),
        ("other-model", {"model": "mlp"}, "init_from: trial 0 of pretrain/sgdm is of another model: "),
        (
            "without-a-checkpoint",
            {"init_from": {**origin, "study": "finetune"}},
            "init_from: trial 0 of finetune/sgdm left no checkpoint; ",
        ),
    ):
        changed = {**definition.to_json(), "name": name, "task": {**task, **change}}
        refused = run(store, StudyDefinition.model_validate(changed), tmp_path)
        assert refused.state is StudyState.FAILED
        assert refused.reason is not None
        assert reason in refused.reason
        assert not store.runs(refused.id)


@pytest.mark.usefixtures("local_ray")
def test_an_ended_study_keeps_the_weights_of_its_best(tmp_path: Path) -> None:
    """The best trial's, without its optimizer's state, and the confirm runs'; another study starts from them."""
    store = MemoryStore()
    definition = digits(
        name="tidy",
        budget={"trials_per_optimizer": 3},
        confirm={"top_k": 1, "seeds": [0]},
        checkpoint_every_s=0,
        keep_checkpoints=1,
    )
    study = run(store, definition, tmp_path)
    assert study.state is StudyState.COMPLETED
    searched = [r for r in store.runs(study.id) if r.stage is Stage.SEARCH]
    best = max(searched, key=lambda r: (r.value or 0.0, -r.trial_number))
    left = {path.relative_to(tmp_path / study.id).as_posix() for path in tmp_path.rglob("*.pt")}
    folder = f"sgdm/{best.trial_number:05d}"
    assert left == {f"{folder}/search-100/best.pt", f"{folder}/confirm-0/best.pt"}
    assert set(checkpoint.load(tmp_path / study.id / folder / "search-100/best.pt")) == {"model"}

    others = [r.trial_number for r in searched if r is not best]
    for number, state in ((best.trial_number, StudyState.COMPLETED), (others[0], StudyState.FAILED)):
        origin = {"study": "tidy", "optimizer": "sgdm", "trial": number}
        task = {"name": "digits", "model": "linear", "epochs": 1, "init_from": origin}
        tuned = {**digits(name=f"from-{number}", confirm={"top_k": 0}).to_json(), "task": task}
        assert run(store, StudyDefinition.model_validate(tuned), tmp_path).state is state


@pytest.mark.usefixtures("local_ray")
def test_what_no_run_could_train_fails_the_study_before_its_first_run(tmp_path: Path) -> None:
    store = MemoryStore()
    definition = StudyDefinition.model_validate(
        {**digits(name="too-large").to_json(), "task": {"name": "digits", "batch_size": 5000}}
    )
    study = run(store, definition, tmp_path)
    assert study.state is StudyState.FAILED
    assert study.reason is not None
    assert "5000" in study.reason
    assert not store.runs(study.id)


@pytest.mark.usefixtures("local_ray")
def test_what_is_wrong_with_the_data_is_the_studys_reason_at_once(tmp_path: Path) -> None:
    """A driver that dies of it would be started again and again, and the reason would not name the file."""
    rows = "text,label\n" + "".join(f"word {i % 3},{'yes' if i % 2 else 'no'}\n" for i in range(40))
    for name, text in (("train", rows), ("test", rows), ("val", "text,label\nword,yes\nword,yes\n")):
        (tmp_path / f"{name}.csv").write_text(text)
    recording = tmp_path / "calls/train/a/0.wav"
    recording.parent.mkdir(parents=True)
    recording.write_bytes(b"RIFF")
    texts = {"name": "text_classification", "model": "tiny", "batch_size": 8, "val_file": "val.csv"}
    sounds = {"name": "audio_folder", "model": "spectrogram", "data_dir": "calls"}
    for name, task, metric, reason in (
        ("texts", texts, "val_mcc", "all 2 validation rows are of class 'yes', for which val_mcc is undefined"),
        ("sounds", sounds, "val_accuracy", "recording train/a/0.wav cannot be read"),
    ):
        store = MemoryStore()
        raw = {**digits(name=name).to_json(), "task": task, "objective": {"metric": metric}}
        study = store.add_study(StudyDefinition.model_validate(raw))
        drive(study.id, store=store, options=DriverOptions(owner="test", storage=str(tmp_path), data_dir=str(tmp_path)))
        ended = store.get_study(study.id)
        assert ended.state is StudyState.FAILED
        assert str(ended.reason).startswith(reason)
        assert not store.runs(study.id)


@pytest.mark.usefixtures("local_ray")
def test_the_check_finds_the_fingerprint_of_the_data_on_a_worker(tmp_path: Path) -> None:
    definition = define(task={"name": "gpt", "model": "nano", "context": 16, "batch_size": 2})
    found = []
    for folder, text in (("a", "to be or not to be"), ("b", "to be or not to be"), ("c", "to be or not to bee")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "train.txt").write_text(20 * text)
        found.append(
            placement.check(
                definition,
                data_dir=str(tmp_path / folder),
                origins=(),
                is_stopping=lambda: False,
                tell=lambda _: None,
                meanwhile=lambda: None,
            )
        )
    assert found[0] is not None
    assert found[0] == found[1] != found[2]


def test_the_first_fingerprint_of_a_studys_data_stays(caplog: pytest.LogCaptureFixture) -> None:
    store = MemoryStore()
    study = store.add_study(define())
    lease = store.acquire_lease(study.id, owner="test", ttl_s=60)
    assert lease is not None
    for fingerprint, known in ((None, None), ("a", "a"), ("a", "a"), ("b", "a"), (None, "a")):
        with_it = driver._with_fingerprint(store.get_study(study.id), store, lease, fingerprint)
        assert (with_it.data_fingerprint, store.get_study(study.id).data_fingerprint) == (known, known)
    assert [record.message for record in caplog.records] == [
        f"study {study.id}: its data or code have changed since its first run; clone it for these"
    ]


@pytest.mark.usefixtures("local_ray")
def test_a_study_with_runs_is_paused_where_it_cannot_go_on(tmp_path: Path) -> None:
    """A data folder that is away at a restart, say: what the study has stays, and so does its right to go on."""
    store = MemoryStore()
    study = store.add_study(digits(name="begun", task={"name": "cifar10", "model": "resnet20", "epochs": 1}))
    lease = store.acquire_lease(study.id, owner="before", ttl_s=60.0)
    assert lease is not None
    [search] = store.searches(study.id)
    begun = store.create_run(lease, search.id, trial_number=0, stage=Stage.SEARCH, seed=0, params={"lr": 0.1})
    store.start_attempt(lease, begun.id)
    store.release_lease(lease)
    drive(study.id, store=store, options=DriverOptions(owner="test", storage=str(tmp_path), data_dir=str(tmp_path)))
    paused = store.get_study(study.id)
    assert paused.state is StudyState.PAUSED
    assert paused.reason is not None
    assert "CIFAR10 is not in" in paused.reason
    assert paused.reason.endswith("correct that, then resume the study")
    [run_of_it] = store.runs(study.id)
    assert run_of_it.state is RunState.WAITING
    assert store.acquire_lease(study.id, owner="next", ttl_s=60.0) is not None, "nobody holds it"


@pytest.mark.usefixtures("local_ray")
def test_workers_are_reused_from_run_to_run(tmp_path: Path) -> None:
    store = MemoryStore()
    study = run(store, define(resources={"cpus": 1, "gpus": 0}, budget={"trials_per_optimizer": 6}), tmp_path)
    runs = store.runs(study.id)
    assert Counter((r.stage, r.state) for r in runs) == {
        (Stage.SEARCH, RunState.COMPLETE): 12,
        (Stage.CONFIRM, RunState.COMPLETE): 4,
    }
    assert len({start.pid for starts in store.starts.values() for start in starts}) <= 3


@pytest.mark.usefixtures("local_ray")
def test_a_worker_that_starts_is_not_killed_for_one_that_is_free(tmp_path: Path) -> None:
    """Runs of a third of a second end while further workers start: these come to work all the same."""
    store = MemoryStore()
    before = n_workers_made()
    definition = define(
        task={"name": "synthetic", "model": "idle", "epochs": 1, "sleep_s": 0.3},
        optimizers=[{"name": "sgdm"}],
        budget={"trials_per_optimizer": 80},
        confirm={"top_k": 0},
        resources={"cpus": 0.5, "gpus": 0},
    )
    study = run(store, definition, tmp_path)
    assert study.state is StudyState.COMPLETED
    assert n_workers_made() - before == 4
    assert len({start.pid for starts in store.starts.values() for start in starts}) == 4


@pytest.mark.usefixtures("local_ray")
def test_a_study_that_no_machine_has_room_for_says_what_it_waits_for(tmp_path: Path) -> None:
    store = MemoryStore()
    study = store.add_study(define(name="wants-a-card", resources={"cpus": 1, "gpus": 0.25}))
    options = DriverOptions(owner="test", storage=str(tmp_path))
    with ThreadPoolExecutor(1) as pool:
        driven = pool.submit(drive, study.id, store=store, options=options)
        wait_until(
            lambda: str(store.get_study(study.id).reason).startswith("waits for a machine"),
            what="it says what it waits for",
        )
        waiting = store.get_study(study.id)
        store.set_study_state(Lease(study_id=study.id, owner="test", ttl_s=15), StudyState.CANCELLED)
        assert driven.result(PATIENCE_S) is StudyState.CANCELLED
    assert waiting.state is StudyState.RUNNING
    assert waiting.reason is not None
    assert "1 CPUs and 0.25 GPUs for a run; the largest in the cluster has 2 and 0" in waiting.reason


def n_workers_made() -> int:
    """Trial workers that this Ray was ever asked for."""
    return sum("TrialWorker" in actor["ActorClassName"] for actor in ray._private.state.actors().values())


@pytest.mark.usefixtures("local_ray")
def test_max_hours_end_a_study_whose_trials_would_take_an_hour(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each running trial ends with its epoch, and the study says why it is COMPLETED."""
    store = MemoryStore()
    monkeypatch.setattr(driver, "_clock_since", lambda *_, **__: lambda: 0.0 if len(store.curves) < 2 else 7.0)
    task = {"name": "synthetic", "model": "quadratic", "epochs": 10_000, "steps_per_epoch": 2, "sleep_s": 0.3}
    budget = {"trials_per_optimizer": 20, "max_hours": 6 / 3600}
    study = run(store, define(task=task, budget=budget, max_failures=0), tmp_path)
    assert study.state is StudyState.COMPLETED
    assert study.reason is not None
    assert "sgdm: budget.max_hours (0.00166666666667) was spent" in study.reason
    runs = store.runs(study.id)
    assert {run.state for run in runs} == {RunState.PRUNED}
    assert all(run.value == store.points(run.id)[-1].value for run in runs)


@pytest.mark.usefixtures("local_ray")
def test_whether_another_services_driver_has_started_is_known_while_it_works(tmp_path: Path) -> None:
    class Waits:
        def __init__(self) -> None:
            wait_until((tmp_path / "start").exists, what="it may start")

        def run(self) -> None:
            wait_until((tmp_path / "end").exists, what="it may end")

    other = ray.remote(Waits).options(name="driver-other", namespace=NAMESPACE, num_cpus=0).remote()
    run = other.run.remote()
    found = find_driver("other")
    assert not has_started(found)
    (tmp_path / "start").touch()
    wait_until(lambda: has_started(found), what="it has started")
    (tmp_path / "end").touch()
    ray.get(run)
    ray.kill(other)
    wait_until(lambda: find_driver("other") is None, what="its name is free")


def test_folders_of_killed_drivers_are_removed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A driver that is killed leaves its folder for Tune behind; the next one on the machine removes it."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    dead = subprocess.Popen(["true"])
    dead.wait()
    left, other = tmp_path / f"{SCRATCH_PREFIX}{dead.pid}-x", tmp_path / f"{SCRATCH_PREFIX}{os.getpid()}-y"
    for folder in (left, other):
        (folder / "study").mkdir(parents=True)
    with private_folder(SCRATCH_PREFIX) as own:
        assert sorted(tmp_path.iterdir()) == sorted([other, own])
    assert list(tmp_path.iterdir()) == [other]


class CompetingStore:
    """A study of higher priority that wants the whole cluster at once, from a store's first finished run on."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self._competing = store.competing_studies
        self.n_places: list[float] = []
        self.wants = False

    def competing_studies(self, study_id: str) -> list[CompetingStudy]:
        if len(self.n_places) == 0 and any(run.state.is_finished for run in self._store.runs(study_id)):
            self.wants = True
        if not self.wants:
            return self._competing(study_id)
        self.n_places.append(ray.available_resources().get("CPU", 0.0))
        if self.n_places[-1] == 2 or len(self.n_places) > PATIENCE_S:
            self.wants = False
        return [CompetingStudy(priority=1, n_runs=2, cpus=1, gpus=0)]


@pytest.mark.usefixtures("local_ray")
def test_a_study_that_may_have_no_place_holds_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tune keeps a worker for the next run, and none of another study could start there."""
    store = MemoryStore()
    competing = CompetingStore(store)
    monkeypatch.setattr(store, "competing_studies", competing.competing_studies)
    task = {"name": "synthetic", "model": "quadratic", "epochs": 2, "sleep_s": 0.2}
    study = run(store, digits(name="low", task=task, budget={"trials_per_optimizer": 6}), tmp_path)
    assert study.state is StudyState.COMPLETED
    assert competing.n_places
    assert competing.n_places[-1] == 2
