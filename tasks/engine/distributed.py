"""One run over several cards of a host: data parallelism with a process for each card; the caller is rank 0.

The other processes (`python -m tasks.engine.distributed`) open the same run and execute the orders that rank 0 writes
to their stdin, a line of JSON each. They end when that pipe closes, for whatever reason rank 0 ended. If one of them
fails, the run raises its error, after aborting the process group, because rank 0 may be waiting in it.

Several cards change the order of sums, and the dropout masks, which differ by rank. Batch norm's statistics are those
of the whole batch, and a mean over words is over the words of all ranks. On CPUs, where torch has no synchronized
batch norm, the statistics are those of each rank's share, and rank 0's are kept.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import IO, Any, NoReturn

import torch
import torch.distributed as dist

from tasks.config import TaskConfig
from tasks.engine.device import pick_device
from tasks.engine.protocol import Evaluation
from tasks.engine.run import TrainingRun
from tasks.engine.step import Ranks
from tasks.errors import CheckpointError, ConfigError, Diverged, OutOfMemory, RankLost, TaskError
from tasks.registry import parse_config

TIMEOUT = timedelta(minutes=10)  # of a collective, and of a process's start
EXIT_REPORT_S = 2.0  # for the other ranks to report their errors, after a failure
_ROOT = Path(__file__).resolve().parents[2]


class DistributedRun(TrainingRun):
    """A run over `n_devices` cards (processes, if `device` is "cpu"), of which this process is rank 0.

    Args:
        n_devices: ranks; divides `config.batch_size`.
        arguments: as `tasks.runs.open_run`.

    Raises:
        ConfigError: fewer cards are visible, or the batch cannot be divided evenly.
    """

    def __init__(self, config: TaskConfig, *, n_devices: int, device: str | None = None, **arguments: Any) -> None:
        _check(config, n_devices=n_devices, device=device)
        self._peers: list[_Peer] = []
        self._scratch = tempfile.TemporaryDirectory(prefix="admeta-ranks-")
        request: dict[str, Any] = {
            "config": config.model_dump(mode="json"),
            "arguments": {name: str(v) if isinstance(v, Path) else v for name, v in arguments.items()}
            | {"params": dict(arguments["params"])},
            "n": n_devices,
            "device": device,
            "rendezvous": str(Path(self._scratch.name) / "rendezvous"),
        }
        try:
            self._peers = [_Peer({**request, "rank": rank}) for rank in range(1, n_devices)]
            for peer in self._peers:
                peer.expect("ready")
            with self._together("open"):
                super().__init__(config, **arguments, **_join_group({**request, "rank": 0}))
        except BaseException:
            self._end_group()
            raise

    def advance(self) -> Evaluation:
        """Train one epoch on all ranks and evaluate on rank 0.

        Raises:
            Diverged, OutOfMemory: on any rank.
            RankLost: a rank's process died.
        """
        with self._together("advance"):
            return super().advance()

    def environment(self) -> dict[str, Any]:
        """Rank 0's, and how many cards there are."""
        return {**super().environment(), "n_devices": self._ranks.n}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state` on all ranks; raises CheckpointError where it is of another configuration."""
        file = Path(self._scratch.name) / "state.pt"
        torch.save(dict(state), file)
        with self._together("load", file=str(file)):
            super().load_state_dict(state)
        file.unlink()

    def close(self) -> None:
        """End the other processes and release device memory; may be called twice."""
        for peer in self._peers:
            peer.kill()
        super().close()
        self._end_group()

    def _end_group(self) -> None:
        for peer in self._peers:
            peer.kill()
        if dist.is_initialized():
            _abort()
        self._scratch.cleanup()

    @contextlib.contextmanager
    def _together(self, verb: str, **arguments: str) -> Iterator[None]:
        """All ranks execute an order: it is sent to the others first, and they have finished at the end."""
        for peer in self._peers:
            peer.send({"do": verb, **arguments})
        try:
            yield
            for peer in self._peers:
                peer.expect(verb)
        except BaseException as error:
            own = Diverged | OutOfMemory | CheckpointError  # rank 0 reports these itself
            cause = None if isinstance(error, own) else self._first_cause()
            for peer in self._peers:
                peer.kill()
            if cause is not None:
                raise cause from error
            raise

    def _first_cause(self) -> TaskError | None:
        """The failure that caused the others: if one rank dies, the collectives of the others fail too."""
        deadline = time.monotonic() + EXIT_REPORT_S
        for peer in self._peers:
            peer.listen_until(deadline)
        failures = sorted((peer for peer in self._peers if peer.failure), key=lambda peer: not peer.died)
        return failures[0].failure if failures else None


class _Peer:
    """The process of another rank, seen from rank 0. A thread reads its output, so that its end is noticed at once."""

    def __init__(self, request: Mapping[str, Any]) -> None:
        self.failure: TaskError | None = None
        self._rank = int(request["rank"])
        self.died = False
        self._killed = False
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tasks.engine.distributed"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=_ROOT,
        )
        self._answers: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._listener = threading.Thread(target=self._listen, name=f"rank-{self._rank}", daemon=True)
        self._listener.start()
        self.send(request)

    def send(self, message: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # `_listen` reports its end
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()

    def expect(self, verb: str) -> None:
        """Wait until the rank has finished an order; raises its failure."""
        try:
            answer = self._answers.get(timeout=TIMEOUT.total_seconds())
        except queue.Empty:
            raise RankLost(f"rank {self._rank} has not finished {verb!r} within {TIMEOUT}") from None
        if answer == verb:
            return
        raise self.failure or RankLost(f"rank {self._rank} answered {answer!r} to {verb!r}")

    def listen_until(self, deadline: float) -> None:
        """Wait until the rank has ended and its output is read, or until the deadline."""
        self._listener.join(timeout=max(0.0, deadline - time.monotonic()))

    def kill(self) -> None:
        self._killed = True
        self._process.kill()
        self._process.wait()
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                message = _parsed(line)
                if "done" in message:
                    self._answers.put(message["done"])
                elif "error" in message:
                    self._fail(_error(message, rank=self._rank))
        if self.failure is None and not self._killed:
            code = self._process.wait()
            self.died = True
            self._fail(RankLost(f"the process of rank {self._rank} ended with exit code {code} during the run"))
        self._answers.put(None)

    def _fail(self, failure: TaskError) -> None:
        self.failure = failure
        self._answers.put(None)
        if not isinstance(failure, Diverged) and dist.is_initialized():
            _abort()  # rank 0 may wait in a collective for this rank


def _check(config: TaskConfig, *, n_devices: int, device: str | None) -> None:
    if config.batch_size % n_devices:
        raise ConfigError(
            f"batch_size {config.batch_size} cannot be divided evenly among {n_devices} cards; make it a multiple of "
            f"{n_devices}, or ask for another number of cards (resources.gpus)"
        )
    if device != "cpu" and torch.cuda.device_count() < n_devices:
        raise ConfigError(
            f"the run needs {n_devices} cards, but this process sees {torch.cuda.device_count()}; "
            "lower resources.gpus, or let a node with as many cards join"
        )


def _join_group(request: Mapping[str, Any]) -> dict[str, Any]:
    """Wait until all ranks have joined the process group; this rank's device and place, as `TrainingRun` takes them."""
    ranks = Ranks(rank=request["rank"], n=request["n"])
    own = pick_device("cpu" if request["device"] == "cpu" else f"cuda:{ranks.rank}")
    if own.type == "cuda":
        torch.cuda.set_device(own)
    dist.init_process_group(
        "nccl" if own.type == "cuda" else "gloo",
        init_method=f"file://{request['rendezvous']}",
        rank=ranks.rank,
        world_size=ranks.n,
        timeout=TIMEOUT,
        device_id=own if own.type == "cuda" else None,
    )
    return {"device": str(own), "ranks": ranks}


def _open_run(request: Mapping[str, Any]) -> TrainingRun:
    """Another rank's run."""
    arguments = dict(request["arguments"])
    for name in ("data_dir", "init_from"):
        if arguments.get(name) is not None:
            arguments[name] = Path(arguments[name])
    return TrainingRun(parse_config(request["config"]), **arguments, **_join_group(request))


def _abort() -> None:
    """Abort the group without waiting for ranks that have ended."""
    with contextlib.suppress(RuntimeError, ValueError, AssertionError):  # another thread aborted it
        dist.distributed_c10d._abort_process_group()


def _parsed(line: str) -> dict[str, Any]:
    """A message, or nothing for other lines, which libraries may print."""
    try:
        message = json.loads(line)
    except ValueError:
        return {}
    return message if isinstance(message, dict) else {}


def _error(message: Mapping[str, Any], *, rank: int) -> TaskError:
    match message["error"]:
        case "out_of_memory":
            return OutOfMemory(**message["fields"])
        case "diverged":
            return Diverged(message["step"], loss=float("nan"))
        case _:
            return RankLost(f"rank {rank} failed: {message['error']}")


def main() -> None:
    """The process of another rank: executes the orders of rank 0, and ends with it."""
    orders: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    request = json.loads(sys.stdin.readline())
    threading.Thread(target=_read_orders, args=(sys.stdin, orders), daemon=True).start()
    run: TrainingRun | None = None
    _print({"done": "ready"})
    try:
        while True:
            order = orders.get()
            match order["do"]:
                case "open":
                    run = _open_run(request)
                case "advance":
                    assert run is not None
                    run.advance()
                case "load":
                    assert run is not None
                    run.load_state_dict(torch.load(order["file"], map_location="cpu", weights_only=True))
            _print({"done": order["do"]})
    except Diverged as error:
        _print({"error": "diverged", "step": error.step})
    except OutOfMemory as error:
        _print(
            {"error": "out_of_memory", "fields": {"phase": error.phase, "device": error.device, "detail": error.detail}}
        )
    except Exception as error:  # noqa: BLE001 - sent to rank 0, which raises it
        _print({"error": f"{type(error).__name__}: {error}"})
    _end()


def _read_orders(pipe: IO[str], orders: queue.SimpleQueue[dict[str, Any]]) -> None:
    for line in pipe:
        orders.put(json.loads(line))
    _end()  # rank 0 has ended, and this rank may be waiting for it in a collective


def _end() -> NoReturn:
    """End without cleaning up the process group, in which no rank answers."""
    sys.stdout.flush()
    os._exit(0)


def _print(message: Mapping[str, Any]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
