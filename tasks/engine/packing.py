"""How many trials to put on one card (`resources.gpus: auto`), from the memory and time that a trial takes there.

A trial is measured alone and next to copies of itself, each in its own process, as trials are. Such a process
(`python -m tasks.engine.packing`) reads a request from stdin, warms up, prints "ready", waits for "go", trains for the
requested seconds and prints its measurement.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Any

import torch

from tasks.config import TaskConfig
from tasks.engine import sharing
from tasks.engine.run import TrainingRun
from tasks.errors import OutOfMemory, TaskError
from tasks.registry import parse_config

CONTEXT_BYTES = 600 * 2**20  # of a process on the card besides torch's allocator: CUDA context, cuDNN, cuBLAS
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
        on_gpu = torch.cuda.is_available() and next(run.model.parameters()).is_cuda
        return Measurement(
            step_s=spent / n_steps,
            samples_per_s=n_steps * config.batch_size * config.accumulation / spent,
            memory_bytes=torch.cuda.max_memory_reserved() + CONTEXT_BYTES if on_gpu else 0,
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
        [sys.executable, "-m", "tasks.engine.packing"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=None if environment is None else dict(environment),
        cwd=Path(__file__).resolve().parents[2],
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

CANDIDATES = (1, 2, 4, 8, 16)
MIN_GAIN = 1.05  # a further doubling must raise the total by this, or each trial becomes slower without a gain
MEMORY_SHARE = 0.9  # of the card; the rest is left for fragmentation and for an evaluation's peak

Measure = Callable[[int], Sequence[Measurement]]


@dataclass(frozen=True)
class Packing:
    """The choice and the measurements behind it.

    Attributes:
        trials_per_gpu: trials at once on one card.
        totals: training samples a second of all trials together, by number of trials tried.
        memory_bytes: device memory of one trial.
        reason: why no more, for the study's record.
    """

    trials_per_gpu: int
    totals: Mapping[int, float]
    memory_bytes: int
    reason: str

    @property
    def gpus(self) -> float:
        """A trial's share of a card, as Ray takes it."""
        return 1.0 / self.trials_per_gpu


def choose_packing(measure: Measure, *, card_bytes: int, at_most: int = CANDIDATES[-1]) -> Packing:
    """Try more and more trials at once until memory runs out or the total stops rising.

    Args:
        measure: measures that many trials at once.
        card_bytes: the card's memory.
        at_most: trials that could ever run on one card; no more are tried.

    Raises:
        OutOfMemory: not even one trial fits.
    """
    totals: dict[int, float] = {}
    candidates = [n for n in CANDIDATES if n <= max(1, at_most)]
    best, memory_bytes, reason = 1, 0, f"more than {candidates[-1]} were not tried"
    for n_trials in candidates:
        if n_trials * memory_bytes > MEMORY_SHARE * card_bytes:
            reason = f"{n_trials} trials of {_gib(memory_bytes)} do not fit in {_gib(card_bytes)}"
            break
        try:
            seen = measure(n_trials)
        except OutOfMemory:
            if n_trials == 1:
                raise
            reason = f"{n_trials} trials at once ran out of memory"
            break
        totals[n_trials] = total_samples_per_s(seen)
        memory_bytes = max(memory_bytes, *(one.memory_bytes for one in seen))
        if n_trials > 1 and totals[n_trials] < MIN_GAIN * totals[best]:
            gain = totals[n_trials] / totals[best] - 1
            reason = f"{n_trials} trials at once make {gain:+.0%} of the total of {best}"
            break
        best = n_trials
    return Packing(trials_per_gpu=best, totals=totals, memory_bytes=memory_bytes, reason=reason)


def measure_packing(
    config: TaskConfig,
    *,
    optimizer: str,
    params: Mapping[str, Any],
    data_dir: Path | None = None,
    device: str = "cuda",
    seconds: float = 3.0,
    at_most: int = CANDIDATES[-1],
) -> Packing:
    """`choose_packing` on this machine's card, measured with the study's own task; takes one to two minutes.

    The trials run as a study's do: at the same time where NVIDIA's multi-process service is available, else in turns.
    """
    import torch

    refusals: list[str] = []

    def together(n_processes: int) -> Sequence[Measurement]:
        environment = dict(os.environ)
        if n_processes > 1:
            refusals.append(sharing.join(environment, share=1 / n_processes))
        return measure_together(
            config,
            n_processes=n_processes,
            optimizer=optimizer,
            params=params,
            data_dir=data_dir,
            device=device,
            seconds=seconds,
            environment=environment,
        )

    card_bytes = torch.cuda.get_device_properties(device).total_memory
    packing = choose_packing(together, card_bytes=card_bytes, at_most=at_most)
    reasons = [packing.reason, *dict.fromkeys(filter(None, refusals))]
    return replace(packing, reason="; ".join(reasons))


def _gib(n_bytes: int) -> str:
    return f"{n_bytes / 2**30:.1f} GiB"
