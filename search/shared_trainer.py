"""One process that trains several runs of a study: as one stacked model (`tasks.engine.cohort`), or side by side.

Side by side (`tasks.engine.side_by_side`) are runs that share a card where NVIDIA's multi-process service, under which
each has a process, cannot be started. Here are that process, the shared trainer, and a run in it.

Each run keeps its own worker in Ray Tune, a light process, which joins the trainer of its card (or of its node, where
there is none) and asks it for every epoch. The trainer trains whatever runs are within an epoch; a stacked model's
steps are no faster for fewer of them. It holds no resources of Ray: its runs hold theirs, an equal part each. A trainer
that dies is a lost worker for each of its runs. A worker that dies, or is killed because its run was cancelled, leaves
its slot to the next run.
"""

from __future__ import annotations

import hashlib
import io
import itertools
import math
import os
import queue
import signal
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import RayActorError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from search.assignment import NAMESPACE, Assignment
from search.packing import MOST
from tasks.config import TaskConfig
from tasks.engine.protocol import Evaluation
from tasks.errors import CannotStackError, OutOfMemory, TaskError
from tasks.registry import COHORT, SIDE_BY_SIDE, load_target, parse_config, shared_part

if TYPE_CHECKING:
    from tasks.engine.slots import SlotRun, Slots

LINGER_S = 10.0
"""For which a trainer without runs waits for the next one."""
FIRST_RUN_S = 120.0
"""For which a new trainer waits for its first run, whose worker started it, on a busy machine."""
GRACE_S = 25.0
"""For which a trainer works on after SIGTERM, so that its runs' workers can save them."""
TELL_S = 1.0
"""For which a trainer whose card is broken goes on, so that the run that broke it is told."""
LOOK_S = 0.5
"""Between two looks for workers that died."""
N_TRIES = 20
MOST_TRAINERS = 64
"""On one card or node, for one study and recipe."""


@dataclass(frozen=True, kw_only=True)
class Status:
    """Where a run stands, as its worker is told with each answer."""

    epoch: int
    step: int
    n_epochs: int
    step_status: str


class RemoteRun:
    """A `tasks.engine.protocol.Run` that a shared trainer trains."""

    def __init__(self, trainer: Any, ticket: int, status: Status) -> None:
        self._trainer = trainer
        self._ticket = ticket
        self._status = status
        self._closed = False

    @property
    def epoch(self) -> int:
        return self._status.epoch

    @property
    def step(self) -> int:
        return self._status.step

    @property
    def n_epochs(self) -> int:
        return self._status.n_epochs

    @property
    def done(self) -> bool:
        return self.epoch >= self.n_epochs

    @property
    def step_status(self) -> str:
        return self._status.step_status

    def advance(self) -> Evaluation:
        evaluation: Evaluation = self._ask("advance")
        return evaluation

    def test(self) -> dict[str, float]:
        metrics: dict[str, float] = self._ask("test")
        return metrics

    def environment(self) -> dict[str, Any]:
        """As of any run; `cohort` or `side_by_side` also names the trainer's process."""
        found: dict[str, Any] = self._ask("environment")
        return found

    def state_dict(self) -> dict[str, Any]:
        import torch

        state: dict[str, Any] = torch.load(io.BytesIO(self._ask("pack")), map_location="cpu", weights_only=True)
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        import torch

        stored = io.BytesIO()
        torch.save(dict(state), stored)
        self._ask("unpack", stored.getvalue())

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._trainer.leave.remote(self._ticket)  # not waited for: the trainer may be gone

    def _ask(self, what: str, *arguments: Any) -> Any:
        answer, self._status = _answer(self._trainer.ask.remote(self._ticket, what, *arguments))
        return answer


def join(
    assignment: Assignment, config: TaskConfig, *, init_from: Path | None, side_by_side: bool = False
) -> RemoteRun:
    """Take a free slot of a trainer beside this worker; start one where there is none.

    Args:
        side_by_side: in a network of its own; otherwise as a slot of one stacked model.

    Raises:
        CannotStackError: the model cannot be trained in a cohort.
        OutOfMemory: the card has no room for the cohort.
        TaskError: as `tasks.runs.open_run`.
        ray.exceptions.RayActorError: the trainer died.
    """
    request = {
        "task": dict(assignment.task),
        "optimizer": assignment.optimizer,
        "params": dict(assignment.settings),
        "seed": assignment.seed,
        "init_from": init_from,
        "pid": os.getpid(),
    }
    for index in range(MOST_TRAINERS):
        taken = None
        for attempt in range(N_TRIES):
            trainer = _trainer(assignment, config, index, side_by_side=side_by_side)
            try:
                taken = _answer(trainer.join.remote(**request))
                break
            except RayActorError:  # it was about to end
                if attempt == N_TRIES - 1:
                    raise
                time.sleep(LOOK_S)
        if taken is not None:
            return RemoteRun(trainer, *taken)
    raise TaskError(f"all {MOST_TRAINERS} processes for such runs on one node are full; let fewer run at once")


def _trainer(assignment: Assignment, config: TaskConfig, index: int, *, side_by_side: bool) -> Any:
    """The trainer of that number beside this worker."""
    target, n_slots = (SIDE_BY_SIDE, MOST) if side_by_side else (COHORT, assignment.cohort)
    # Networks of their own share torch's settings alone.
    in_common = f"{config.precision}/{config.deterministic}" if side_by_side else shared_part(config)
    cards = ",".join(map(str, ray.get_gpu_ids())) if assignment.gpus > 0 else "cpu"
    node = ray.get_runtime_context().get_node_id()
    kind = f"{target}/{n_slots}/{assignment.threads}/{in_common}"
    digest = hashlib.sha256(kind.encode()).hexdigest()[:12]
    return (
        ray.remote(SharedTrainer)
        .options(
            name=f"cohort-{assignment.study_id}-{digest}-{node}-{cards}-{index}",
            namespace=NAMESPACE,
            get_if_exists=True,
            lifetime="detached",  # it outlives the worker that happened to start it, and ends itself
            num_cpus=0,
            max_restarts=0,
            max_concurrency=4 * n_slots,  # calls that wait, each in a thread
            scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
        )
        .remote(
            target=target,
            n_slots=n_slots,
            data_dir=None if assignment.data_dir is None else Path(assignment.data_dir),
            device=None if assignment.gpus > 0 else "cpu",
            threads=assignment.threads,
            visible=os.environ.get("CUDA_VISIBLE_DEVICES") if assignment.gpus > 0 else None,
        )
    )


def _answer(asked: Any) -> Any:
    try:
        return ray.get(asked)
    except RayTaskError as error:
        if error.cause is None:
            raise
        raise error.cause from None


@dataclass
class _Seat:
    """A run in the trainer: its member, its worker's process, and the epoch that the worker waits for."""

    member: SlotRun
    pid: int
    waits: Future[Any] | None = None

    def status(self) -> Status:
        member = self.member
        return Status(epoch=member.epoch, step=member.step, n_epochs=member.n_epochs, step_status=member.step_status)

    def take_waits(self) -> Future[Any]:
        assert self.waits is not None
        waits, self.waits = self.waits, None
        return waits

    def finish(self) -> tuple[Evaluation, Status]:
        return self.member.finish(), self.status()

    def test(self) -> dict[str, float]:
        return self.member.test()

    def environment(self) -> dict[str, Any]:
        found = self.member.environment()
        how = next(name for name in ("cohort", "side_by_side") if name in found)
        return {**found, how: {**found[how], "pid": os.getpid()}}

    def pack(self) -> bytes:
        import torch

        stored = io.BytesIO()
        torch.save(self.member.state_dict(), stored)
        return stored.getvalue()

    def unpack(self, state: bytes) -> None:
        import torch

        self.member.load_state_dict(torch.load(io.BytesIO(state), map_location="cpu", weights_only=True))


class SharedTrainer:
    """The actor that trains runs together. One thread of its own does all that needs torch.

    Args:
        target: what holds the runs: `tasks.registry.COHORT` or SIDE_BY_SIDE.
        visible: cards that CUDA may see; None: what Ray says.
    """

    def __init__(
        self,
        *,
        target: str,
        n_slots: int,
        data_dir: Path | None,
        device: str | None,
        threads: int,
        visible: str | None,
    ) -> None:
        if visible is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = visible  # before torch is imported
        self._where: dict[str, Any] = {"data_dir": data_dir, "device": device, "threads": threads}
        self._target = target
        self._n_slots = n_slots
        self._slots: Slots[Any] | None = None
        self._refusal: TaskError | None = None
        self._gives_way = False
        self._seats: dict[int, _Seat] = {}
        self._tickets = itertools.count()
        self._commands: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = queue.SimpleQueue()
        self._empty_since = self._looked_at = time.monotonic()
        self._end_by = math.inf
        self._own_handle = ray.get_runtime_context().current_actor
        # Ray calls an actor's constructor on the main thread, the only one for signals, unless its methods are async.
        signal.signal(signal.SIGTERM, self._prepare_to_end)
        threading.Thread(target=self._work, name="trainer", daemon=True).start()

    def join(self, *, pid: int, **run: Any) -> tuple[int, Status] | None:
        """A run at epoch 0 in a free slot, for the worker of that process; None where none is free."""
        taken: tuple[int, Status] | None = self._do(partial(self._join, pid, **run))
        return taken

    def ask(self, ticket: int, what: str, *arguments: Any) -> tuple[Any, Status]:
        """What a run's method returns, and where the run stands then."""
        found: tuple[Any, Status]
        if what == "advance":
            found = self._do(partial(self._begin, ticket)).result()
        else:
            found = self._do(partial(self._call, ticket, what, *arguments))
        return found

    def leave(self, ticket: int) -> None:
        """Free a run's slot."""
        self._do(partial(self._leave, ticket))

    def _do(self, call: Callable[[], Any]) -> Any:
        """The call's result; the thread makes it between two steps."""
        answer: Future[Any] = Future()
        self._commands.put((call, answer))
        return answer.result()

    # What the thread does.

    def _work(self) -> None:
        try:
            self._train()
        finally:
            ray.kill(self._own_handle)

    def _train(self) -> None:
        while not self._is_over():
            if time.monotonic() - self._looked_at >= LOOK_S:
                self._look_for_dead_workers()
            waiting = [seat for seat in self._seats.values() if seat.waits is not None]
            try:
                call, answer = self._commands.get(block=not waiting, timeout=LOOK_S)
            except queue.Empty:
                if waiting and self._slots is not None:
                    self._slots.step()
                    ended = [seat for seat in waiting if not seat.member.is_training]
                    # Runs side by side have a few steps to work on while one is evaluated, and then need further ones.
                    for seat in ended if self._slots.is_one_network else ended[:1]:
                        self._resolve(seat.take_waits(), partial(self._finish, seat))
                continue
            self._resolve(answer, call)
            self._empty_since = time.monotonic()  # reading the data of a run that failed may have taken minutes

    def _resolve(self, answer: Future[Any], call: Callable[[], Any]) -> None:
        if not answer.set_running_or_notify_cancel():
            return
        try:
            answer.set_result(call())
        except Exception as error:  # noqa: BLE001 - the worker that asked raises it
            answer.set_exception(error)
            if _broke_the_card(error):
                self._end_by = min(self._end_by, time.monotonic() + TELL_S)

    def _is_over(self) -> bool:
        now = time.monotonic()
        if self._seats:
            self._empty_since = now
        gives_way = self._gives_way or self._end_by < math.inf
        linger_s = 0.0 if gives_way else FIRST_RUN_S if self._slots is None else LINGER_S
        return now > self._end_by or now - self._empty_since > linger_s

    def _join(
        self, pid: int, *, task: Mapping[str, Any], optimizer: str, params: Mapping[str, Any], seed: int, init_from: Any
    ) -> tuple[int, Status] | None:
        if self._end_by < math.inf:  # it was told to stop, and would take the run with it
            return None
        self._look_for_dead_workers()
        config = parse_config(task)
        if self._refusal is not None:
            raise self._refusal
        if self._slots is None:
            self._slots = load_target(self._target)(config, n_slots=self._n_slots, **self._where)
        if not self._slots.n_free:
            return None
        try:
            member = self._slots.open(config, optimizer=optimizer, params=params, seed=seed, init_from=init_from)
        except (CannotStackError, OutOfMemory) as error:
            self._refuse(error)
            raise
        ticket, seat = next(self._tickets), _Seat(member, pid)
        self._seats[ticket] = seat
        return ticket, seat.status()

    def _begin(self, ticket: int) -> Future[Any]:
        seat = self._seats[ticket]
        seat.member.begin()
        seat.waits = Future()
        return seat.waits

    def _finish(self, seat: _Seat) -> tuple[Evaluation, Status]:
        try:
            return seat.finish()
        except OutOfMemory as error:
            self._refuse(error)
            raise

    def _refuse(self, error: CannotStackError | OutOfMemory) -> None:
        self._gives_way = isinstance(error, OutOfMemory)
        if self._slots is not None and self._slots.is_one_network:
            self._refusal = error  # it holds for every run

    def _call(self, ticket: int, what: str, *arguments: Any) -> tuple[Any, Status]:
        seat = self._seats[ticket]
        answer = getattr(seat, what)(*arguments)
        return answer, seat.status()

    def _leave(self, ticket: int) -> None:
        if (seat := self._seats.pop(ticket, None)) is not None:
            if seat.waits is not None:
                seat.waits.cancel()  # its worker is dead; the thread that waits for it is not
            seat.member.close()

    def _look_for_dead_workers(self) -> None:
        self._looked_at = time.monotonic()
        for ticket in [ticket for ticket, seat in self._seats.items() if not _is_alive(seat.pid)]:
            self._leave(ticket)

    def _prepare_to_end(self, number: int, frame: object) -> None:
        self._end_by = min(self._end_by, time.monotonic() + GRACE_S)


def _broke_the_card(error: Exception) -> bool:
    """Whether no later call of this process can use the card: after an illegal address or a failed assertion there."""
    import torch

    return isinstance(error, torch.AcceleratorError)


def _is_alive(pid: int) -> bool:
    """Whether a process of this machine has not ended, as a zombie has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (OSError, IndexError):
        return False
