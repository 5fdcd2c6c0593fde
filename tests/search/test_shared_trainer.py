"""Shared trainers over a real Ray: light workers, one process that trains their runs, and the death of either."""

from __future__ import annotations

import math
import os
import queue
import re
import signal
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import nn

from admeta.spaces import split_recipe
from search import shared_trainer
from search.driver import DriverOptions, drive
from search.placement import place
from search.places import OUT_OF_COHORT
from search.records import RunRecord
from search.shared_trainer import FIRST_RUN_S, LINGER_S, SharedTrainer, _is_alive
from search.states import FailureKind, RunState, Stage, StudyState
from tasks.config import with_recipe
from tasks.registry import parse_config
from tasks.runs import open_run
from tests.local_ray import local_ray as own_ray
from tests.machine import PATIENCE_S, wait_until
from tests.search.memory_store import MemoryStore
from tests.search.workers import define
from tests.tasks.engine.models import Leaking, Reading, import_path
from tests.tasks.engine.test_sharing import write_refusing_control

MODEL = "mlp"
STEP_S = 0.02
"""Of a slow optimizer; an epoch has 18 steps."""


@pytest.fixture(scope="module")
def local_ray(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Told of a card, whether there is one or not, for which NVIDIA's multi-process service does not start."""
    folder = tmp_path_factory.mktemp("bin")
    write_refusing_control(folder, reason="no service here")
    with ExitStack() as stack:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
            stack.enter_context(own_ray(folder, num_cpus=1, num_gpus=1))
        yield


def digits(**changes: Any) -> Any:
    fields: dict[str, Any] = {
        "task": {"name": "digits", "model": MODEL, "epochs": 3},
        "optimizers": [{"name": "sgdm"}, {"name": "adamw"}],
        "budget": {"trials_per_optimizer": 3},
        "confirm": {"top_k": 1, "seeds": [0]},
        "resources": {"cpus": 1, "gpus": 0, "cohort": 4},
        "checkpoint_every_s": 3600,
    }
    return define(**{**fields, **changes})


class Late(torch.optim.SGD):
    """SGD that makes the weights huge once a file exists, where `diverges` is 1.

    It is slow until another file exists, so that a test meets its runs while they train, on any machine.
    """

    def __init__(self, params: Any, *, lr: float, diverges: int = 0, flag: str = "", hurry: str = "") -> None:
        super().__init__(params, lr=lr)
        self._flag = Path(flag) if diverges else None
        self._hurry = Path(hurry) if hurry else None

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        super().step(closure)
        if self._hurry is not None and not self._hurry.exists():
            time.sleep(STEP_S)
        if self._flag is not None and self._flag.exists():
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.mul_(1e30)


def slow(hurry: Path) -> dict[str, Any]:
    """An optimizer of a study whose runs are slow until the file is there."""
    space = {"lr": {"type": "float", "low": 0.01, "high": 0.1, "log": True}}
    return {"name": f"{__name__}:Late", "label": "late", "space": space, "fixed": {"hurry": str(hurry)}}


def environments(store: MemoryStore, study_id: str) -> list[dict[str, Any]]:
    return [dict(start.environment) for run in store.runs(study_id) for start in store.starts[run.id]]


def trainer_of(environment: Mapping[str, Any]) -> int:
    """The process that trains the run."""
    shared = environment.get("cohort") or environment["side_by_side"]
    return int(shared["pid"])


def assert_trained_alone(store: MemoryStore, run: RunRecord, definition: Any, *, exactly: bool = False) -> None:
    """The run's curve is that of the same run in a process of its own."""
    label = next(one.label for one in store.searches(definition_id(store)) if one.id == run.search_id)
    spec = definition.planned_search(label).optimizer
    settings, recipe = split_recipe({**spec.fixed, **run.params})
    task = parse_config(with_recipe(definition.task.model_dump(mode="json"), recipe))
    alone = open_run(task, optimizer=spec.name, params=settings, seed=run.seed, device="cpu")
    for point in store.points(run.id):
        evaluation = alone.advance()
        assert (point.epoch, point.step, point.lr) == (evaluation.epoch, evaluation.step, evaluation.lr)
        for name in ("train_loss", "val_loss"):
            rel = 0.0 if exactly else 1e-3
            assert point.metrics[name] == pytest.approx(evaluation.metrics[name], rel=rel, abs=0.0)
    assert alone.done


def definition_id(store: MemoryStore) -> str:
    [study] = store.studies.values()
    return study.id


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.usefixtures("local_ray")
def test_a_study_is_trained_by_one_process(tmp_path: Path) -> None:
    """Six trials and two confirm runs in four slots; each is what it would be alone. The trainer ends after them."""
    store, definition = MemoryStore(), digits()
    study = store.add_study(definition)
    drive(study.id, store=store, options=DriverOptions(owner="test", storage=str(tmp_path)))
    assert store.get_study(study.id).state is StudyState.COMPLETED
    runs = store.runs(study.id)
    assert [run.state for run in runs] == [RunState.COMPLETE] * 8
    found = environments(store, study.id)
    assert {one["cohort"]["slots"] for one in found} == {4}
    assert len({one["cohort"]["slot"] for one in found}) > 1
    assert all(one["placement"] == "4 runs are trained as one stacked model by one process" for one in found)
    [trainer] = {one["cohort"]["pid"] for one in found}
    assert all(run.test_metrics for run in runs if run.stage is Stage.CONFIRM)
    for run in (runs[0], runs[-1]):
        assert_trained_alone(store, run, definition)
    wait_until(lambda: not _is_alive(trainer), what=f"the trainer ends {LINGER_S:g} s after its last run")


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.usefixtures("local_ray")
def test_runs_on_a_card_without_its_service_are_trained_by_one_process(tmp_path: Path) -> None:
    """Each in a network of its own, of its own size and batches; but not those whose memory is searched for."""
    store = MemoryStore()
    definition = digits(
        optimizers=[{"name": "sgdm"}, {"name": "adamw", "fixed": {"recipe.batch_size": 32}}],
        resources={"cpus": 0.25, "gpus": 0.25},
    )
    study = store.add_study(definition)
    drive(study.id, store=store, options=DriverOptions(owner="test", storage=str(tmp_path / "a")))
    runs = store.runs(study.id)
    assert [run.state for run in runs] == [RunState.COMPLETE] * 8
    found = environments(store, study.id)
    [trainer] = {one["side_by_side"]["pid"] for one in found}
    why = "nvidia-cuda-mps-control did not start (no service here)"
    assert {one["sharing"] for one in found} == {f"{why}: the runs that share this card are trained by one process"}
    assert all(run.test_metrics for run in runs if run.stage is Stage.CONFIRM)
    for run in (runs[0], runs[-1]):
        assert_trained_alone(store, run, definition, exactly=True)
    wait_until(lambda: not _is_alive(trainer), what=f"the trainer ends {LINGER_S:g} s after its last run")

    second = digits(
        optimizers=[{"name": "sgdm"}],
        objectives=["peak_memory_bytes"],
        confirm={"top_k": 0},
        resources={"cpus": 0.25, "gpus": 0.25},
        name="memory",
    )
    study = store.add_study(second)
    drive(study.id, store=store, options=DriverOptions(owner="test", storage=str(tmp_path / "b")))
    found = environments(store, study.id)
    assert [one.get("side_by_side") for one in found] == [None] * 3
    turns = "this run and others take turns on the card (its memory is an objective)"
    assert {one["sharing"] for one in found} == {f"{why}: {turns}"}


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.usefixtures("local_ray")
@pytest.mark.parametrize(
    "resources",
    [{"cpus": 1, "gpus": 0, "cohort": 4}, {"cpus": 0.25, "gpus": 0.25}],
    ids=["cohort", "side by side"],
)
def test_the_death_of_the_trainer_or_of_a_worker_costs_an_attempt(resources: dict[str, Any], tmp_path: Path) -> None:
    """Every run goes on from its last checkpoint, and the study ends as if nothing had happened.

    Of runs side by side each goes on in a process of its own: one of them may end its process each time.
    """
    store, hurry = MemoryStore(), tmp_path / "hurry"
    definition = digits(
        task={"name": "digits", "model": MODEL, "epochs": 30},
        optimizers=[slow(hurry)],
        budget={"trials_per_optimizer": 4},
        pruner={"name": "none"},
        confirm={"top_k": 0},
        checkpoint_every_s=0,
        max_failures=3,
        resources=resources,
    )
    study = store.add_study(definition)

    def epochs() -> list[int]:
        return [max((point.epoch for point in store.points(run.id)), default=0) for run in store.runs(study.id)]

    options = DriverOptions(owner="test", storage=str(tmp_path), allow_imports=("tests",))
    with ThreadPoolExecutor(1) as pool:
        driven = pool.submit(drive, study.id, store=store, options=options)
        wait_until(lambda: len(epochs()) == 4 and min(epochs()) >= 2, what="all four train")
        trainer = trainer_of(environments(store, study.id)[-1])
        os.kill(trainer, signal.SIGKILL)
        wait_until(lambda: sum(len(one) for one in store.starts.values()) >= 8, what="all four start again")
        last = store.starts[store.runs(study.id)[0].id][-1]
        if "cohort" in last.environment:
            assert trainer_of(last.environment) != trainer
        else:
            assert last.environment["sharing"].endswith("take turns on the card (an attempt of it failed)")
        os.kill(last.pid, signal.SIGKILL)
        hurry.touch()
        assert driven.result(PATIENCE_S) is StudyState.COMPLETED
    runs = store.runs(study.id)
    assert [run.state for run in runs] == [RunState.COMPLETE] * 4
    assert all(run.attempt >= 2 for run in runs)
    resumed = [start.resumed_from_epoch for run in runs for start in store.starts[run.id][1:]]
    assert min(resumed) > 0
    for run in runs[:2]:
        assert_trained_alone(store, run, definition)


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.usefixtures("local_ray")
def test_a_machine_that_leaves_costs_no_attempt(tmp_path: Path) -> None:
    """SIGTERM to the trainer and all workers, as before a machine is taken away: every run is saved first."""
    store, hurry = MemoryStore(), tmp_path / "hurry"
    definition = digits(
        task={"name": "digits", "model": MODEL, "epochs": 60},
        optimizers=[slow(hurry)],
        budget={"trials_per_optimizer": 2},
        pruner={"name": "none"},
        confirm={"top_k": 0},
        max_failures=0,
    )
    study = store.add_study(definition)
    options = DriverOptions(owner="test", storage=str(tmp_path), allow_imports=("tests",))
    with ThreadPoolExecutor(1) as pool:
        driven = pool.submit(drive, study.id, store=store, options=options)
        wait_until(lambda: sum(bool(one) for one in store.starts.values()) == 2, what="both train")
        starts = [one[-1] for one in store.starts.values()]
        for pid in [starts[0].environment["cohort"]["pid"], *(start.pid for start in starts)]:
            os.kill(pid, signal.SIGTERM)
        hurry.touch()
        assert driven.result(PATIENCE_S) is StudyState.COMPLETED
    runs = store.runs(study.id)
    assert [(run.state, run.n_failures) for run in runs] == [(RunState.COMPLETE, 0)] * 2
    assert all(store.starts[run.id][-1].resumed_from_epoch > 0 for run in runs)
    assert_trained_alone(store, runs[0], definition)


class Hungry(nn.Module):
    """A model whose stacked steps find no memory from the second on."""

    def __init__(self, n_classes: int) -> None:
        super().__init__()
        self.linear = nn.Linear(64, n_classes)
        self.n_steps = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if torch._C._functorch.is_batchedtensor(x) and self.training:
            self.n_steps += 1
            if self.n_steps >= 2:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
        out: torch.Tensor = self.linear(x.flatten(1))
        return out


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.usefixtures("local_ray")
@pytest.mark.parametrize(
    ("model", "refusal", "gpus", "shares", "words"),
    [
        (
            import_path(Reading),
            r"the model cannot be stacked \(vmap",
            "auto",
            {0.5},
            "2 trials a card, as CPUs and the study allow",
        ),
        (
            f"{__name__}:Hungry",
            r"out of memory on \S+ during training: CUDA out of memory",
            0,
            {0.0},
            "set in the definition",
        ),
    ],
    ids=["cannot be stacked, auto", "no memory, no card"],
)
def test_runs_that_cannot_be_a_cohort_have_a_process_each(
    model: str, refusal: str, gpus: Any, shares: set[float], words: str, tmp_path: Path
) -> None:
    """As without a cohort, on as many shares of a card as pay; it costs no failure, and every record says why."""
    store = MemoryStore()
    definition = digits(
        task={"name": "digits", "model": model, "epochs": 1},
        optimizers=[{"name": "sgdm"}],
        budget={"trials_per_optimizer": 3},
        confirm={"top_k": 0},
        resources={"cpus": 0.5, "gpus": gpus, "cohort": 4},
        max_failures=0,
    )
    study = store.add_study(definition)
    options = DriverOptions(owner="test", storage=str(tmp_path), allow_imports=("tests",))
    assert drive(study.id, store=store, options=options) is StudyState.COMPLETED
    runs = store.runs(study.id)
    assert [(run.state, run.n_failures) for run in runs] == [(RunState.COMPLETE, 0)] * 3
    found = environments(store, study.id)
    assert len(found) == 3
    for one in found:
        why, _, placement = one["placement"].rpartition("; ")
        assert re.match(f"no cohort: {refusal}", why)
        assert placement == words
        assert "cohort" not in one
    assert {one["gpus"] for one in found} == shares


def two_that_become_nan(flag: Path, *, hurry: Path, epochs: int) -> dict[str, Any]:
    """Fields of a study of two trials: one diverges once the flag is there, and makes both NaN in a cohort.

    Both are slow until `hurry` is there.
    """
    return {
        "task": {"name": "digits", "model": import_path(Leaking), "epochs": epochs},
        "optimizers": [
            {
                **slow(hurry),
                "space": {"diverges": {"type": "categorical", "choices": [0, 1]}},
                "fixed": {"lr": 0.05, "flag": str(flag), "hurry": str(hurry)},
            }
        ],
        "sampler": {"name": "grid"},
        "budget": {"trials_per_optimizer": 2},
        "pruner": {"name": "none"},
        "confirm": {"top_k": 0},
        "checkpoint_every_s": 0,
        "max_failures": 0,
    }


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.usefixtures("local_ray")
def test_a_run_that_makes_its_cohort_nan_fails_alone(tmp_path: Path) -> None:
    """All slots are NaN in the same step, so each run goes on from its checkpoint by itself: one diverges there."""
    store, flag, hurry = MemoryStore(), tmp_path / "diverge", tmp_path / "hurry"
    definition = digits(**two_that_become_nan(flag, hurry=hurry, epochs=100))
    study = store.add_study(definition)
    options = DriverOptions(owner="test", storage=str(tmp_path / "runs"), allow_imports=("tests",))

    def trains() -> bool:
        return [len(store.points(run.id)) > 1 for run in store.runs(study.id)] == [True, True]

    with ThreadPoolExecutor(1) as pool:
        driven = pool.submit(drive, study.id, store=store, options=options)
        wait_until(trains, what="both train")
        flag.touch()
        hurry.touch()
        assert driven.result(PATIENCE_S) is StudyState.COMPLETED
    good, bad = sorted(store.runs(study.id), key=lambda run: run.params["diverges"])
    assert (good.state, good.n_failures, bad.state, bad.failure) == ("COMPLETE", 0, "FAIL", FailureKind.DIVERGED)
    assert (len(store.points(good.id)), bad.attempt) == (100, 2)
    first, last = store.starts[bad.id]
    assert first.environment["cohort"]["slots"] == 4
    assert "cohort" not in last.environment
    assert last.environment["placement"] == OUT_OF_COHORT
    assert last.resumed_from_epoch > 0
    assert all(start.resumed_from_epoch > 0 for start in store.starts[good.id][1:])
    assert_trained_alone(store, good, definition)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA card")
@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.usefixtures("local_ray")
def test_a_cohort_has_the_card_of_its_workers(tmp_path: Path) -> None:
    """Its process sees the card though it holds none in Ray; each run is charged its part of the seconds."""
    store = MemoryStore()
    definition = digits(resources={"cpus": 1, "gpus": "auto", "cohort": 4}, confirm={"top_k": 0})
    study = store.add_study(definition)
    drive(study.id, store=store, options=DriverOptions(owner="test", storage=str(tmp_path)))
    runs = store.runs(study.id)
    assert [run.state for run in runs] == [RunState.COMPLETE] * 6
    found = environments(store, study.id)
    assert {(one["device"], one["gpus"], one["cohort"]["slots"]) for one in found} == {("cuda:0", 0.25, 4)}
    assert all("graph: 1 shape(s)" in one["step"] for one in found[-2:])
    for run in runs:
        assert 0 < run.cost.gpu_s < 0.3 * (run.cost.train_s + run.cost.eval_s)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"resources": {"gpus": 2, "cohort": 4}}, "it trains on one card, and gpus is 2"),
        ({"task": {"name": "synthetic"}}, "task 'synthetic' is not trained by the engine"),
        ({"task": {"name": "digits", "accumulation": 2}}, "accumulation is 2"),
        ({"task": {"name": "digits", "deterministic": True}}, "deterministic is set"),
        (
            {"optimizers": [{"name": "sgdm", "fixed": {"recipe.batch_size": 32}}]},
            "its runs must be equal in 'batch_size', which 'sgdm' sets or searches",
        ),
    ],
)
def test_a_study_that_cannot_be_a_cohort_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=f"no cohort of 4 can be trained: {message}.*Set it to 1"):
        digits(**changes)
    assert digits(optimizers=[{"name": "sgdm", "fixed": {"recipe.grad_clip": 1.0}}]).resources.cohort == 4


def test_a_cohort_has_no_more_slots_than_runs_at_once() -> None:
    assert [digits(max_concurrent_trials=n).n_slots for n in (None, 1, 3, 8)] == [4, 1, 3, 4]
    placed = place(digits(max_concurrent_trials=2), known={})
    assert (placed.cohort, placed.each.cpus, placed.each.gpus) == (2, 0.5, 0)
    assert placed.reason == "2 runs are trained as one stacked model by one process"


def test_a_trainer_waits_for_its_first_run_and_the_next_after_a_long_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine the worker that started it asks late; and reading the data of a run may take minutes."""
    clock = [0.0]
    monkeypatch.setattr(shared_trainer, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    trainer: Any = object.__new__(SharedTrainer)
    trainer._end_by, trainer._gives_way, trainer._seats, trainer._slots = math.inf, False, {}, None
    trainer._empty_since, trainer._looked_at = 0.0, math.inf  # it looks for no dead workers
    clock[0] = FIRST_RUN_S - 1
    assert not trainer._is_over()

    def read_for_long() -> None:
        trainer._slots = object()
        clock[0] += 10 * LINGER_S

    asked: list[Any] = [(read_for_long, Future())]
    lingered_s: list[float] = []

    def get(**_: Any) -> Any:
        if asked:
            return asked.pop()
        lingered_s.append(clock[0] - trainer._empty_since)
        clock[0] += 1.0
        raise queue.Empty

    trainer._commands = SimpleNamespace(get=get)
    trainer._train()
    assert lingered_s == [float(n) for n in range(int(LINGER_S) + 1)]


def test_a_trainer_ends_once_its_card_is_broken_and_tells_the_run_that_broke_it() -> None:
    trainer: Any = object.__new__(SharedTrainer)
    trainer._end_by = math.inf

    def raises(error: Exception) -> None:
        raise error

    for error, ends in ((ValueError("of one run"), False), (torch.AcceleratorError("an illegal address"), True)):
        answer: Future[None] = Future()
        trainer._resolve(answer, lambda error=error: raises(error))
        assert answer.exception() is error
        assert (trainer._end_by < math.inf) == ends
