"""The throughput of trials that train side by side on one device, each in its own process, as trials are.

Such a process (`python -m benchmarks.side_by_side`) reads a request from stdin, warms up, prints "ready", waits for
"go", trains for the requested seconds and prints its measurement.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from tasks.config import TaskConfig
from tasks.engine.device import held_memory_bytes
from tasks.engine.run import TrainingRun
from tasks.errors import OutOfMemory, TaskError
from tasks.registry import parse_config

WARM_UP_STEPS = 20
STEPS_AT_ONCE = 10


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One process's view.

    Attributes:
        step_s: seconds an optimizer step, mean over the window; epochs' batches included, evaluation not.
        samples_per_s: training samples a second.
        memory_bytes: device memory the process holds at most, context included; 0 on a CPU.
        setup_s: seconds from the start of the set-up to the first steady step (data, capture, compilation).
        status: how the steps ran (graph, or eager and why).
    """

    step_s: float
    samples_per_s: float
    memory_bytes: int
    setup_s: float
    status: str


def measure(
    config: TaskConfig,
    *,
    optimizer: str,
    params: Mapping[str, Any],
    data_dir: Path | None = None,
    device: str | None = None,
    seconds: float = 3.0,
    wait: contextlib.AbstractContextManager[None] | None = None,
) -> Measurement:
    """Train for some seconds in this process and say what it took.

    Args:
        seconds: length of the window after the warm-up.
        wait: entered between warm-up and window; processes that are measured together wait for each other in it.

    Raises:
        OutOfMemory: the card has no room.
    """
    begin = time.perf_counter()
    run = TrainingRun(config, optimizer=optimizer, params=params, seed=0, data_dir=data_dir, device=device)
    try:
        run.train_steps(WARM_UP_STEPS)
        setup_s = time.perf_counter() - begin
        with wait or contextlib.nullcontext():
            n_steps, spent = 0, 0.0
            while spent < seconds:
                spent += run.train_steps(STEPS_AT_ONCE)
                n_steps += STEPS_AT_ONCE
        held_bytes, _ = held_memory_bytes(next(run.model.parameters()).device)
        return Measurement(
            step_s=spent / n_steps,
            samples_per_s=n_steps * config.batch_size * config.accumulation / spent,
            memory_bytes=held_bytes,
            setup_s=setup_s,
            status=run.step_status,
        )
    finally:
        run.close()


def measure_together(
    config: TaskConfig,
    *,
    n_processes: int,
    optimizer: str,
    params: Mapping[str, Any],
    data_dir: Path | None = None,
    device: str | None = None,
    seconds: float = 3.0,
    environment: Mapping[str, str] | None = None,
) -> list[Measurement]:
    """The same in several processes at once on one device; the windows begin together.

    Args:
        environment: the processes' environment variables; None: this process's.

    Raises:
        OutOfMemory: one of them had no room.
        TaskError: one of them failed; with its message.
    """
    request = {
        "config": config.model_dump(mode="json"),
        "optimizer": optimizer,
        "params": dict(params),
        "data_dir": None if data_dir is None else str(data_dir),
        "device": device,
        "seconds": seconds,
    }
    with contextlib.ExitStack() as stack:
        processes = [stack.enter_context(_process(environment)) for _ in range(n_processes)]
        for process in processes:
            _say(process.stdin, json.dumps(request))
        for process in processes:
            _expect_ready(process)
        for process in processes:
            _say(process.stdin, "go")
        return [Measurement(**_answer(process)) for process in processes]


def total_samples_per_s(measurements: Sequence[Measurement]) -> float:
    """All processes together."""
    return sum(one.samples_per_s for one in measurements)


@contextlib.contextmanager
def _process(environment: Mapping[str, str] | None) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.side_by_side"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=None if environment is None else dict(environment),
        cwd=Path(__file__).resolve().parents[1],
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()


def _say(stream: IO[str] | None, line: str) -> None:
    assert stream is not None
    with contextlib.suppress(BrokenPipeError):  # `_answer` reports a process that died
        stream.write(line + "\n")
        stream.flush()


def _expect_ready(process: subprocess.Popen[str]) -> None:
    answer = _answer(process)
    if answer != {"ready": True}:
        raise TaskError(f"a measured process answered {answer} where it should be ready")


def _answer(process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("{"):
            answer: dict[str, Any] = json.loads(line)
            if "out_of_memory" in answer:
                raise OutOfMemory(**answer["out_of_memory"])
            if "error" in answer:
                raise TaskError(f"a measured process failed: {answer['error']}")
            return answer
    raise TaskError(f"a measured process ended with exit code {process.wait()} and no answer; see its stderr")


@contextlib.contextmanager
def _meet() -> Iterator[None]:
    _print({"ready": True})
    sys.stdin.readline()
    yield


def _print(answer: Mapping[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def main() -> None:
    """One measured process."""
    request = json.loads(sys.stdin.readline())
    try:
        measurement = measure(
            parse_config(request["config"]),
            optimizer=request["optimizer"],
            params=request["params"],
            data_dir=None if request["data_dir"] is None else Path(request["data_dir"]),
            device=request["device"],
            seconds=request["seconds"],
            wait=_meet(),
        )
    except OutOfMemory as error:
        _print({"out_of_memory": {"phase": error.phase, "device": error.device, "detail": error.detail}})
    except TaskError as error:
        _print({"error": str(error)})
    else:
        _print(asdict(measurement))


if __name__ == "__main__":
    main()
