"""Which learning rates train out of the box: our optimizers beside AdamW on five small tasks, several seeds.

    python -m benchmarks.defaults                                 the three tasks that need no card
    python -m benchmarks.defaults --tasks gpt resnet20 --cifar cifar10-jpeg.tar.xz --workers 8
    python -m benchmarks.defaults --tasks mlp --rates adamw=1e-3 admetar=1e-2 --seeds 0 1 2 3 4

Constant learning rates, all else by default. A task's figure is the validation loss (for resnet20 also the accuracy)
at the end. Texts are the Python files and data set descriptions that are installed anyway.
"""

from __future__ import annotations

import argparse
import io
import itertools
import json
import math
import multiprocessing
import statistics
import sysconfig
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import admeta

RATES: dict[str, tuple[float, ...]] = {
    "adamw": (3e-4, 1e-3, 3e-3, 1e-2),
    "admetar": (1e-3, 3e-3, 1e-2, 3e-2),
    "admetas": (1e-3, 3e-3, 1e-2, 3e-2, 1e-1),
}
# Beside those: what takes less memory, at AdmetaR's own rates on the tasks that name them.
VARIANTS: dict[str, dict[str, Any]] = {
    "admetar state bf16": {"state_dtype": "bfloat16"},
    "admetar weights bf16 nearest": {},
    "admetar weights bf16 stochastic": {"rounding": "stochastic"},
}
Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Task:
    """A model and its data; ``batches`` draws training batches for ever, ``validation`` are all batches of the rest."""

    model: Callable[[], nn.Module]
    batches: Callable[[torch.device, int], Iterator[Batch]]
    validation: Callable[[torch.device], list[Batch]]
    steps: int
    autocast: bool = False


def draws(x: Tensor, y: Tensor, batch: int, seed: int) -> Iterator[Batch]:
    generator = torch.Generator().manual_seed(seed)
    while True:
        order = torch.randperm(len(x), generator=generator).to(x.device)
        for rows in order.split(batch)[: len(x) // batch]:
            yield x[rows], y[rows]


@cache
def digits() -> tuple[Tensor, Tensor]:
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    return torch.tensor(images / 16.0, dtype=torch.float32)[order], torch.tensor(labels)[order]


def on_digits(model: Callable[[], nn.Module], shape: tuple[int, ...], *, steps: int) -> Task:
    def batches(device: torch.device, seed: int) -> Iterator[Batch]:
        x, y = digits()
        return draws(x[:1400].view(-1, *shape).to(device), y[:1400].to(device), 64, seed)

    def validation(device: torch.device) -> list[Batch]:
        x, y = digits()
        return [(x[1400:].view(-1, *shape).to(device), y[1400:].to(device))]

    return Task(model, batches, validation, steps)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def convnet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1),
        nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(512, 10),
    )  # fmt: skip


class Transformer(nn.Module):
    """A decoder over bytes: ``layers`` blocks of pre-norm attention and GELU, learned positions."""

    def __init__(self, *, layers: int, width: int, heads: int, context: int) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(256, width), nn.Embedding(context, width)
        block = {"dim_feedforward": 4 * width, "dropout": 0.0, "batch_first": True, "norm_first": True}
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, heads, activation="gelu", **block)  # type: ignore[arg-type]
            for _ in range(layers)
        )
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 256, bias=False)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(context))

    def forward(self, x: Tensor) -> Tensor:
        h = self.tokens(x) + self.positions(torch.arange(x.shape[1], device=x.device))
        for block in self.blocks:
            h = block(h, src_mask=self.mask.to(h.dtype), is_causal=True)  # type: ignore[operator]
        return self.head(self.norm(h)).flatten(0, 1)  # type: ignore[no-any-return]


@cache
def text(kind: str) -> Tensor:
    if kind == "descriptions":
        import sklearn

        files = sorted((Path(sklearn.__file__).parent / "datasets" / "descr").glob("*.rst"))
    else:
        files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    return torch.frombuffer(bytearray(b"\n".join(f.read_bytes() for f in files)), dtype=torch.uint8).long()


def on_text(
    kind: str, *, layers: int, width: int, heads: int, context: int, batch: int, steps: int, autocast: bool
) -> Task:
    def windows(data: Tensor, starts: Tensor) -> Batch:
        rows = data[starts[:, None] + torch.arange(context + 1, device=data.device)]
        return rows[:, :-1], rows[:, 1:].flatten()

    def batches(device: torch.device, seed: int) -> Iterator[Batch]:
        data, generator = text(kind).to(device), torch.Generator().manual_seed(seed)
        end = int(0.9 * len(data)) - context - 1
        while True:
            yield windows(data, torch.randint(0, end, (batch,), generator=generator).to(device))

    def validation(device: torch.device) -> list[Batch]:
        data = text(kind).to(device)
        starts = torch.arange(int(0.9 * len(data)), len(data) - context - 1, context, device=device)[: 8 * batch]
        return [windows(data, part) for part in starts.split(batch) if len(part) == batch]

    def model() -> nn.Module:
        return Transformer(layers=layers, width=width, heads=heads, context=context)

    return Task(model, batches, validation, steps, autocast)


def decode_cifar(archive: Path, target: Path) -> None:
    """Reads the archive's train/CLASS/*.jpg and test/CLASS/*.jpg and writes them as tensors."""
    import numpy as np
    from PIL import Image

    found: dict[str, list[tuple[str, Any]]] = {"train": [], "test": []}
    with tarfile.open(archive) as tar:
        for member in tar:
            if member.isfile() and member.name.endswith(".jpg"):
                split, label = member.name.split("/")[-3:-1]
                source = tar.extractfile(member)
                assert source is not None
                found[split].append((label, np.asarray(Image.open(io.BytesIO(source.read())))))
    classes = sorted({label for label, _ in found["train"]})
    tensors = {}
    for split, members in found.items():
        tensors[split] = (
            torch.from_numpy(np.stack([image for _, image in members])).permute(0, 3, 1, 2).contiguous(),
            torch.tensor([classes.index(label) for label, _ in members]),
        )
    torch.save(tensors, target)


def resnet20() -> nn.Module:
    from tasks.vision.models import cifar_resnet

    return cifar_resnet(20, n_classes=10)


def on_cifar(decoded: Path, *, epochs: int) -> Task:
    @cache
    def tensors(device: torch.device) -> dict[str, Batch]:
        def prepared(images: Tensor, labels: Tensor) -> Batch:
            mean = torch.tensor([0.4914, 0.4822, 0.4465]).view(1, 3, 1, 1)
            std = torch.tensor([0.247, 0.2435, 0.2616]).view(1, 3, 1, 1)
            return ((images / 255.0 - mean) / std).to(device), labels.to(device)

        return {split: prepared(*pair) for split, pair in torch.load(decoded).items()}

    def batches(device: torch.device, seed: int) -> Iterator[Batch]:
        generator = torch.Generator().manual_seed(seed)
        for x, y in draws(*tensors(device)["train"], 128, seed):
            i, j, flip = torch.randint(0, 9, (3,), generator=generator).tolist()
            padded = functional.pad(x, (4, 4, 4, 4))[:, :, i : i + 32, j : j + 32]
            yield (padded.flip(3) if flip % 2 else padded), y

    def validation(device: torch.device) -> list[Batch]:
        x, y = tensors(device)["test"]
        return list(zip(x.split(1000), y.split(1000), strict=True))

    return Task(resnet20, batches, validation, 390 * epochs, autocast=True)


DECODED = Path(tempfile.gettempdir()) / "admeta-benchmark-cifar10.pt"
TASKS: dict[str, Callable[[], Task]] = {
    "mlp": lambda: on_digits(mlp, (64,), steps=220),
    "convnet": lambda: on_digits(convnet, (1, 8, 8), steps=220),
    "char": lambda: on_text(
        "descriptions", layers=2, width=64, heads=4, context=64, batch=32, steps=400, autocast=False
    ),
    "gpt": lambda: on_text("python", layers=4, width=256, heads=4, context=128, batch=64, steps=600, autocast=True),
    "resnet20": lambda: on_cifar(DECODED, epochs=3),
}


def make_optimizer(name: str, model: nn.Module, lr: Any, options: dict[str, Any]) -> torch.optim.Optimizer:
    if name == "adamw":
        return torch.optim.AdamW(model.parameters(), lr=lr, **options)
    return admeta.create(name.split()[0], model.parameters(), lr=lr, **options)


def train(task_name: str, optimizer_name: str, lr: float, seed: int, device_name: str) -> dict[str, Any]:
    """Trains once; on a card in a captured graph."""
    torch.set_num_threads(1)
    began, device, task = time.perf_counter(), torch.device(device_name), TASKS[task_name]()
    torch.manual_seed(seed)
    model = task.model().to(device)
    if "weights bf16" in optimizer_name:
        model = model.to(torch.bfloat16)
    captured = device.type == "cuda"
    rate: Any = torch.tensor(lr, device=device) if captured else lr
    options = {**VARIANTS.get(optimizer_name, {}), **({"capturable": True} if captured else {})}
    optimizer = make_optimizer(optimizer_name, model, rate, options)

    def loss_of(x: Tensor, y: Tensor) -> Tensor:
        x = x.to(next(model.parameters()).dtype) if x.is_floating_point() else x
        with torch.autocast(device.type, torch.bfloat16, enabled=task.autocast, cache_enabled=not captured):
            return functional.cross_entropy(model(x).float(), y)

    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(x, y)
        loss.backward()
        optimizer.step()
        return loss

    losses = torch.stack(list(steps_of(task, step, device, seed))).tolist()
    model.eval()
    correct = total = 0
    sums = []
    with torch.no_grad():
        for x, y in task.validation(device):
            sums.append(loss_of(x, y).item())
            if x.is_floating_point():
                correct += int((model(x.to(next(model.parameters()).dtype)).argmax(1) == y).sum())
                total += len(y)
    return {
        "task": task_name, "optimizer": optimizer_name, "lr": lr, "seed": seed, "loss": statistics.fmean(sums),
        "accuracy": correct / total if total else None, "seconds": time.perf_counter() - began,
        "curve": [round(statistics.fmean(losses[i : i + 20]), 4) for i in range(0, len(losses), 20)],
    }  # fmt: skip


def steps_of(task: Task, step: Callable[[Tensor, Tensor], Tensor], device: torch.device, seed: int) -> Iterator[Tensor]:
    """The training losses; on a card the step is captured after three eager ones, which count."""
    batches = itertools.islice(task.batches(device, seed), task.steps)
    if device.type != "cuda":
        for x, y in batches:
            yield step(x, y).detach()
        return
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for x, y in itertools.islice(batches, 3):
            yield step(x, y).detach()
    torch.cuda.current_stream().wait_stream(side)
    held_x, held_y = (t.clone() for t in next(batches))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step(held_x, held_y)
    graph.replay()
    yield loss.detach().clone()
    for x, y in batches:
        held_x.copy_(x)
        held_y.copy_(y)
        graph.replay()
        yield loss.detach().clone()


def work(job: tuple[str, str, float, int, str]) -> dict[str, Any]:
    try:
        return train(*job)
    except Exception as error:  # noqa: BLE001 - one run that fails must not end the others
        return dict(zip(("task", "optimizer", "lr", "seed"), job, strict=False)) | {"error": f"{error!r}"[:500]}


def table(rows: list[dict[str, Any]]) -> str:
    lines = ["| task | optimizer | lr | validation loss | accuracy | seeds |", "|---|---|---|---|---|---|"]
    found: dict[tuple[str, str, float], list[dict[str, Any]]] = {}
    for row in rows:
        found.setdefault((row["task"], row["optimizer"], row["lr"]), []).append(row)
    for (task, optimizer, lr), members in sorted(found.items()):
        good = [m for m in members if "error" not in m]
        if not good:
            lines.append(f"| {task} | {optimizer} | {lr:g} | {members[0]['error']} | | 0 |")
            continue
        losses = [m["loss"] for m in good]
        spread = statistics.stdev(losses) if len(losses) > 1 and all(map(math.isfinite, losses)) else math.nan
        accuracies = [m["accuracy"] for m in good if m["accuracy"] is not None]
        accuracy = f"{statistics.fmean(accuracies):.4f}" if accuracies else ""
        figure = f"{statistics.fmean(losses):.4f} ± {spread:.4f}"
        lines.append(f"| {task} | {optimizer} | {lr:g} | {figure} | {accuracy} | {len(good)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="Compares default learning rates.")
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=["mlp", "convnet", "char"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    parser.add_argument("--rates", nargs="+", default=None, help="NAME=LR[,LR…]; all of RATES if not given")
    parser.add_argument("--variants", type=float, default=None, help="also run the low-memory variants at this rate")
    parser.add_argument("--cifar", type=Path, default=None, help="archive with train/CLASS/*.jpg and test/CLASS/*.jpg")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--within", type=float, default=1e5, help="seconds after which no result is awaited")
    parser.add_argument("--json", type=Path, default=None)
    arguments = parser.parse_args()
    began = time.monotonic()
    if "resnet20" in arguments.tasks:
        decode_cifar(arguments.cifar, DECODED)
    rates = RATES
    if arguments.rates:
        pairs = (given.partition("=") for given in arguments.rates)
        rates = {name: tuple(map(float, values.split(","))) for name, _, values in pairs}
    jobs = [
        (task, name, lr, seed, arguments.device)
        for seed in arguments.seeds
        for task in arguments.tasks
        for name, values in (*rates.items(), *((v, (arguments.variants,)) for v in VARIANTS if arguments.variants))
        for lr in values
    ]
    rows: list[dict[str, Any]] = []
    with multiprocessing.get_context("spawn").Pool(arguments.workers) as pool:
        results = pool.imap_unordered(work, jobs)
        for _ in jobs:
            try:
                rows.append(results.next(timeout=max(0.1, arguments.within - (time.monotonic() - began))))
            except multiprocessing.TimeoutError:
                break
        pool.terminate()
    if arguments.json:
        arguments.json.write_text(json.dumps(rows))
    print(f"torch {torch.__version__}, {len(rows)} of {len(jobs)} runs in {time.monotonic() - began:.0f} s")
    print(table(rows))


if __name__ == "__main__":
    main()
