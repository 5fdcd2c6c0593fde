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


class DistributedRun:
    """A `tasks.engine.protocol.Run` over `n_devices` cards (processes, where `device` is "cpu").

    Args:
        n_devices: ranks; divides `config.batch_size`.
        others: as `tasks.runs.open_run`.

    Raises:
        ConfigError: fewer cards are visible, or the batch can't be shared evenly.
    """

    def __init__(
        self,
        config: TaskConfig,
        *,
        optimizer: str,
        params: Mapping[str, Any],
        seed: int,
        n_devices: int,
        data_dir: Path | None = None,
        device: str | None = None,
        threads: int = 1,
        init_from: Path | None = None,
    ) -> None:
        _check(config, n_devices=n_devices, device=device)
        self._closed = False
        self._scratch = tempfile.TemporaryDirectory(prefix="admeta-ranks-")
        request: dict[str, Any] = {
            "config": config.model_dump(mode="json"),
            "optimizer": optimizer,
            "params": dict(params),
            "seed": seed,
            "n": n_devices,
            "data_dir": None if data_dir is None else str(data_dir),
            "device": device,
            "threads": threads,
            "init_from": None if init_from is None else str(init_from),
            "rendezvous": str(Path(self._scratch.name) / "rendezvous"),
        }
        self._peers: list[_Peer] = []
        self._run: TrainingRun | None = None
        try:
            self._peers = [_Peer({**request, "rank": rank}) for rank in range(1, n_devices)]
            for peer in self._peers:
                peer.expect("ready")
            with self._together("open"):
                self._run = _open({**request, "rank": 0})
        except BaseException:
            self.close()
            raise

    @property
    def epoch(self) -> int:
        """Epochs completed."""
        return self._rank_0.epoch

    @property
    def step(self) -> int:
        """Optimizer steps completed."""
        return self._rank_0.step

    @property
    def n_epochs(self) -> int:
        """Epochs in the full budget."""
        return self._rank_0.n_epochs

    @property
    def done(self) -> bool:
        """Whether the budget is spent."""
        return self._rank_0.done

    @property
    def model(self) -> torch.nn.Module:
        """Rank 0's model."""
        return self._rank_0.model

    @property
    def step_status(self) -> str:
        """How rank 0's steps run; the others' run in the same way."""
        return self._rank_0.step_status

    def advance(self) -> Evaluation:
        """Train one epoch on all ranks and evaluate on rank 0.

        Raises:
            Diverged, OutOfMemory: on any rank.
            RankLost: a rank's process died.
        """
        with self._together("advance"):
            return self._rank_0.advance()

    def test(self) -> dict[str, float]:
        """The test set's metrics of the current weights, named `test_…`."""
        return self._rank_0.test()

    def environment(self) -> dict[str, Any]:
        """Rank 0's, and how many cards there are."""
        return {**self._rank_0.environment(), "n_devices": len(self._peers) + 1}

    def state_dict(self) -> dict[str, Any]:
        """Rank 0's; the ranks' weights and optimizer states are equal."""
        return self._rank_0.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state` on all ranks; raises CheckpointError where it is of another configuration."""
        file = Path(self._scratch.name) / "state.pt"
        torch.save(dict(state), file)
        with self._together("load", file=str(file)):
            self._rank_0.load_state_dict(state)
        file.unlink()

    def close(self) -> None:
        """End the other processes and give back device memory; may be called twice."""
        if self._closed:
            return
        self._closed = True
        for peer in self._peers:
            peer.kill()
        if self._run is not None:
            self._run.close()
        if dist.is_initialized():
            _abort()
        self._scratch.cleanup()

    @property
    def _rank_0(self) -> TrainingRun:
        assert self._run is not None
        return self._run

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


def _open(request: Mapping[str, Any]) -> TrainingRun:
    """A rank's run, after all ranks have joined the group."""
    device, ranks = request["device"], Ranks(rank=request["rank"], n=request["n"])
    own = pick_device(device) if device == "cpu" else pick_device(f"cuda:{ranks.rank}")
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
    return TrainingRun(
        parse_config(request["config"]),
        optimizer=request["optimizer"],
        params=request["params"],
        seed=request["seed"],
        data_dir=None if request["data_dir"] is None else Path(request["data_dir"]),
        device=str(own),
        threads=request["threads"],
        init_from=None if request["init_from"] is None else Path(request["init_from"]),
        ranks=ranks,
    )


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
                    run = _open(request)
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
