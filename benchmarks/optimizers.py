"""Time and memory of one optimizer step, ours beside torch's and pytorch-optimizer's.

    python benchmarks/optimizers.py                    all lists that fit, markdown on stdout
    python benchmarks/optimizers.py --lists resnet110  one list
    python benchmarks/optimizers.py --compile          torch.compile of a step: seconds until the first, and graphs

Parameter lists are random tensors of the models' shapes. A step's time is the median over repeats of the mean over
consecutive steps (a multiple of 6, so that every mean holds the same share of synchronising steps), wall clock
around synchronised work; small lists' optimizers take turns, repeat by repeat, so that a busy host disturbs all alike.
"host" is the median time until one step has been issued to an idle card. "graph" is the replay of one captured step.
"moved" has every gradient at another address than the step before, as training with ``zero_grad()`` may give.
Bandwidth is the floor's bytes over the time, against a device-to-device copy measured in the same run. Extra memory
is the peak during steps above what was there before.
Without a card: processor time of one thread, least of the repeats, which other work on the machine disturbs little.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

import admeta

Shape = tuple[int, ...]
Factory = Callable[..., torch.optim.Optimizer]


def resnet110() -> list[Shape]:
    """CIFAR ResNet-110: 329 tensors, 1.7 M parameters."""
    shapes: list[Shape] = [(16, 3, 3, 3), (16,), (16,)]
    width_in = 16
    for width in (16, 32, 64):
        for _ in range(18):
            shapes += [(width, width_in, 3, 3), (width,), (width,), (width, width, 3, 3), (width,), (width,)]
            width_in = width
    return [*shapes, (10, 64), (10,)]


def bert(layers: int, width: int) -> list[Shape]:
    """BERT with a classifier: 201 tensors and 109 M parameters at (12, 768)."""
    shapes: list[Shape] = [(30522, width), (512, width), (2, width), (width,), (width,)]
    for _ in range(layers):
        shapes += [(width, width), (width,)] * 4 + [(width,), (width,)]
        shapes += [(4 * width, width), (4 * width,), (width, 4 * width), (width,), (width,), (width,)]
    return [*shapes, (width, width), (width,), (2, width), (2,)]


def transformer_1b() -> list[Shape]:
    """A 22-layer, 2048-wide decoder with grouped-query attention: 1.1 B parameters."""
    shapes: list[Shape] = [(32000, 2048)]
    for _ in range(22):
        shapes += [(2048, 2048), (256, 2048), (256, 2048), (2048, 2048), (5632, 2048), (5632, 2048), (2048, 5632)]
        shapes += [(2048,), (2048,)]
    return [*shapes, (2048,), (32000, 2048)]


SMALL = 2e7  # parameters; below it a step's time is the host's

LISTS: dict[str, Callable[[], list[Shape]]] = {
    "resnet110": resnet110,
    "bert-base": partial(bert, 12, 768),
    "bert-large": partial(bert, 24, 1024),
    "transformer-1b": transformer_1b,
}


@dataclass(frozen=True)
class Subject:
    """One optimizer as it is timed; ``floor`` is bytes read and written a parameter and step, k = 6, float32."""

    name: str
    factory: Factory
    floor: float
    capturable: bool = True


def subjects(device: str) -> list[Subject]:
    found = [
        Subject("torch AdamW(fused)", partial(torch.optim.AdamW, fused=True), 28.0),
        Subject("torch AdamW(foreach)", partial(torch.optim.AdamW, foreach=True), 28.0),
        Subject("torch SGD(fused, momentum)", partial(torch.optim.SGD, momentum=0.9, fused=True), 20.0),
        Subject("torch RAdam(foreach)", partial(torch.optim.RAdam, foreach=True), 28.0),
    ]
    try:
        import pytorch_optimizer
    except ImportError:
        pass
    else:
        found += [
            Subject("pytorch-optimizer Ranger", pytorch_optimizer.Ranger, 29.3, capturable=False),
            Subject("pytorch-optimizer AdaBelief", pytorch_optimizer.AdaBelief, 28.0, capturable=False),
        ]
    floors = {
        "AdmetaR": 37.3,
        "AdmetaS": 29.3,
        "Ranger": 33.3,
        "AdaBelief": 28.0,
        "KernelAdamW": 28.0,
        "KernelRAdam": 28.0,
    }
    for name, floor in floors.items():
        cls = getattr(admeta, name)
        if device == "cuda":
            found.append(Subject(f"{name}(fused)", partial(cls, fused=True), floor))
        found.append(Subject(f"{name}(foreach)", partial(cls, foreach=True), floor))
    if device == "cuda":
        for name, floor in {"AdmetaR": 24.7, "AdmetaS": 20.7, "Ranger": 22.7, "AdaBelief": 20.0}.items():
            factory = partial(getattr(admeta, name), fused=True, state_dtype="bfloat16")
            found.append(Subject(f"{name}(fused, bf16 state)", factory, floor))
    return found


@dataclass
class Row:
    """Milliseconds a step (None: not supported), and memory."""

    parameters: str
    optimizer: str
    eager_ms: float
    host_us: float | None = None
    moved_ms: float | None = None
    graph_ms: float | None = None
    copy_share: float | None = None
    state_bytes: float | None = None
    extra_mib: float | None = None


def sync(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def median_ms(step: Callable[[], object], device: str, *, repeats: int, steps: int) -> float:
    """Milliseconds a step: the median of the repeats on a card, the least of them on a CPU."""
    times = [timed(step, device, steps=steps) for _ in range(repeats)]
    return statistics.median(times) if device == "cuda" else min(times)


def timed(step: Callable[[], object], device: str, *, steps: int) -> float:
    """Milliseconds a step, mean of ``steps`` consecutive ones."""
    clock = time.perf_counter if device == "cuda" else time.process_time
    sync(device)
    begin = clock()
    for _ in range(steps):
        step()
    sync(device)
    return (clock() - begin) / steps * 1e3


def host_us(step: Callable[[], object]) -> float:
    """Microseconds until one step is issued to an idle card: median of 60."""
    times = []
    for _ in range(60):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        step()
        times.append((time.perf_counter() - begin) * 1e6)
    torch.cuda.synchronize()
    return statistics.median(times)


def make_params(shapes: list[Shape], device: str) -> list[torch.nn.Parameter]:
    params = [torch.nn.Parameter(torch.randn(shape, device=device) * 0.02) for shape in shapes]
    for p in params:
        p.grad = torch.randn_like(p) * 1e-3
    return params


def moved_step(optimizer: torch.optim.Optimizer, params: list[torch.nn.Parameter]) -> Callable[[], None]:
    sets = [[p.grad for p in params], [torch.randn_like(p) * 1e-3 for p in params]]
    turn = [0]

    def step() -> None:
        turn[0] ^= 1
        for p, grad in zip(params, sets[turn[0]], strict=True):
            p.grad = grad
        optimizer.step()

    return step


def graph_ms(subject: Subject, params: list[torch.nn.Parameter], *, repeats: int, steps: int) -> float:
    flags: dict[str, Any] = {} if "SGD" in subject.name else {"capturable": True}
    optimizer = subject.factory(params, lr=torch.tensor(1e-4, device="cuda"), **flags)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            optimizer.step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        optimizer.step()
    for _ in range(6):
        graph.replay()
    return median_ms(graph.replay, "cuda", repeats=repeats, steps=steps)


def measure(subject: Subject, listed: str, shapes: list[Shape], device: str, copy_rate: float) -> Row:
    """Times one optimizer on one list; ``copy_rate`` in bytes a second."""
    params = make_params(shapes, device)
    count = sum(p.numel() for p in params)
    optimizer = subject.factory(params, lr=1e-4)
    for _ in range(6):
        optimizer.step()
    repeats, steps = (7, 30) if count < SMALL else (5, 12)
    row = Row(listed, subject.name, median_ms(optimizer.step, device, repeats=repeats, steps=steps))
    tensors = [t for s in optimizer.state.values() for t in s.values() if isinstance(t, torch.Tensor)]
    row.state_bytes = sum(t.numel() * t.element_size() for t in tensors) / count
    if device != "cuda":
        return row
    row.host_us = host_us(optimizer.step)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    for _ in range(6):
        optimizer.step()
    row.extra_mib = (torch.cuda.max_memory_allocated() - before) / 2**20
    if count < SMALL:
        row.moved_ms = median_ms(moved_step(optimizer, params), device, repeats=repeats, steps=steps)
    del optimizer, tensors
    if subject.capturable:
        row.graph_ms = graph_ms(subject, params, repeats=repeats, steps=steps)
    row.copy_share = share(row, subject, count, copy_rate)
    return row


def share(row: Row, subject: Subject, count: int, copy_rate: float) -> float:
    """The floor's bytes over the best time, as a share of what a copy moves."""
    best = min(t for t in (row.eager_ms, row.graph_ms) if t is not None)
    return subject.floor * count / (best * 1e-3) / copy_rate


def take_turns(rows: list[Row], chosen: list[Subject], shapes: list[Shape], device: str) -> None:
    """Times eager steps again, the optimizers in turn: medians of 15 rounds (least of them without a card)."""
    steps = []
    for subject in chosen:
        steps.append(subject.factory(make_params(shapes, device), lr=1e-4).step)
        for _ in range(12):
            steps[-1]()
    rounds = [[timed(step, device, steps=30) for step in steps] for _ in range(15)]
    for row, times in zip(rows, zip(*rounds, strict=True), strict=True):
        row.eager_ms = statistics.median(times) if device == "cuda" else min(times)


def compiled(name: str, device: str) -> str:
    """A row: seconds until the first compiled step, and how often 14 steps with a schedule were traced."""
    from torch._dynamo.testing import CompileCounterWithBackend

    cls = torch.optim.AdamW if name == "AdamW" else getattr(admeta, name)
    cells = []
    for rate in (1e-3, torch.tensor(1e-3, device=device)):
        torch._dynamo.reset()
        params = [torch.nn.Parameter(torch.randn(shape, device=device)) for shape in resnet110()[:62]]
        optimizer = cls(params, lr=rate, foreach=None if device == "cuda" or isinstance(rate, float) else False)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)
        counter = CompileCounterWithBackend("inductor")
        step = torch.compile(optimizer.step, backend=counter)
        for i in range(14):
            optimizer.zero_grad()
            for p in params:
                p.grad = torch.randn_like(p)
            begin = time.perf_counter()
            step()
            sync(device)
            if i == 0:
                cells.append(f"{time.perf_counter() - begin:.1f}")
            schedule.step()
        cells.append(str(counter.frame_count))
    return f"| {name} | {' | '.join(cells)} |"


def copy_rate(device: str) -> float:
    """Bytes read and written a second by a large copy on the device."""
    if device != "cuda":
        return float("nan")
    source = torch.empty(2**30, dtype=torch.float32, device=device)
    target = torch.empty_like(source)
    ms = median_ms(partial(target.copy_, source), device, repeats=5, steps=6)
    return 2 * source.numel() * 4 / (ms * 1e-3)


def markdown(rows: list[Row]) -> str:
    def cell(value: float | None, form: str) -> str:
        return "–" if value is None else format(value, form)

    lines = []
    for listed in dict.fromkeys(row.parameters for row in rows):
        members = [row for row in rows if row.parameters == listed]
        base = members[0]
        lines += [
            f"\n### {listed}\n",
            "| optimizer | eager ms | ÷ AdamW(fused) | host µs | moved ms | graph ms | ÷ AdamW(fused) "
            "| of copy bandwidth | state B/param | extra MiB |",
            "|---|---|---|---|---|---|---|---|---|---|",
        ]
        for row in members:
            in_graph = row.graph_ms / base.graph_ms if row.graph_ms and base.graph_ms else None
            lines.append(
                f"| {row.optimizer} | {row.eager_ms:.3f} | {row.eager_ms / base.eager_ms:.2f} "
                f"| {cell(row.host_us, '.0f')} | {cell(row.moved_ms, '.3f')} "
                f"| {cell(row.graph_ms, '.3f')} | {cell(in_graph, '.2f')} "
                f"| {cell(row.copy_share, '.0%')} | {cell(row.state_bytes, '.1f')} | {cell(row.extra_mib, '.1f')} |"
            )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="Times optimizer steps.")
    parser.add_argument("--lists", nargs="+", choices=list(LISTS), default=None)
    parser.add_argument("--only", nargs="+", default=None, help="optimizers whose name contains one of these")
    parser.add_argument("--json", type=Path, default=None, help="also write the rows here")
    parser.add_argument("--compile", nargs="*", default=None, help="names: AdamW, AdmetaR, …; times torch.compile")
    arguments = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if arguments.compile is not None:
        print(f"{device}, torch {torch.__version__}, 62 tensors")
        print("| optimizer | s, float lr | graphs | s, tensor lr | graphs |\n|---|---|---|---|---|")
        for name in arguments.compile or ["AdamW", "AdmetaR", "AdmetaS"]:
            print(compiled(name, device), flush=True)
        return
    if device == "cpu":
        torch.set_num_threads(1)
    lists = arguments.lists or (list(LISTS) if device == "cuda" else ["resnet110"])
    rate = copy_rate(device)
    card = torch.cuda.get_device_name() if device == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    print(f"{card}, torch {torch.__version__}, copy {rate / 1e12:.2f} TB/s (read + write)")
    rows = []
    for listed in lists:
        shapes = LISTS[listed]()
        count = sum(math.prod(shape) for shape in shapes)
        chosen = [s for s in subjects(device) if not arguments.only or any(part in s.name for part in arguments.only)]
        measured = []
        for subject in chosen:
            measured.append(measure(subject, listed, shapes, device, rate))
            if device == "cuda":
                torch.cuda.empty_cache()
            print(f"# {listed}: {subject.name} {measured[-1].eager_ms:.3f} ms", flush=True)
        if count < SMALL:
            take_turns(measured, chosen, shapes, device)
            for row, subject in zip(measured, chosen, strict=True):
                row.copy_share = share(row, subject, count, rate) if device == "cuda" else None
        rows += measured
    print(markdown(rows))
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(row) for row in rows], indent=1))


if __name__ == "__main__":
    main()
