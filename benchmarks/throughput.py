"""Training throughput of the engine against the plain loop, alone and packed, and the accuracy both reach.

    python -m benchmarks.throughput --data DIR [--models resnet20 resnet110] [--parts …] [--out FILE]

Parts (each is a set of child processes, so that none inherits another's caches):
    plain      (a) the plain loop, alone
    engine     the engine alone: eager, graph, compile
    packed     the engine, several trials on the card, by time slicing and (where it can be started) under MPS
    tune       (b) the plain loop in Ray Tune, four trials on the card
    accuracy   30 epochs, sgdm and admetas, 3 seeds, engine and plain loop
Throughput is training images a second over a window after warm-up; trials an hour count 160 epochs with evaluation.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.side_by_side import Measurement, measure_together, total_samples_per_s
from tasks.engine import sharing
from tasks.errors import TaskError
from tasks.registry import parse_config
from tasks.vision.config import Cifar10Config

SGDM = {"lr": 0.2, "weight_decay": 5e-4}
RECIPE: dict[str, dict[str, Any]] = {  # of `accuracy`
    "task": {"schedule": {"name": "cosine", "warmup": 0.1}, "batch_size": 64, "pad": 2, "val_fraction": 0.02},
    "sgdm": {"lr": 0.1, "weight_decay": 5e-4},
    "admetas": {"lr": 0.02, "beta": 0.2, "lambd": 0.8, "weight_decay": 5e-4},
}
EPOCH_IMAGES = 45_000
PAPER_EPOCHS = 160
PARTS = ("plain", "engine", "packed", "tune", "accuracy")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the folder that holds CIFAR-10")
    parser.add_argument("--models", nargs="*", default=["resnet110", "resnet20"])
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=PARTS)
    parser.add_argument("--seconds", type=float, default=8.0, help="of each throughput window")
    parser.add_argument("--copies", type=int, nargs="+", default=[4, 8, 16], help="trials at once, for `packed`")
    parser.add_argument("--packed-ways", nargs="+", default=["sliced", "mps"], choices=["sliced", "mps"])
    parser.add_argument("--packed-modes", nargs="+", default=["graph", "compile"])
    parser.add_argument("--modes", nargs="+", default=["eager", "graph", "compile"], help="for `engine`")
    parser.add_argument("--epochs", type=int, default=30, help="for `accuracy`")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument(
        "--recipe", type=json.loads, default=RECIPE, help="of `accuracy`: task, sgdm and admetas, as JSON"
    )
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path, help="write all figures there as JSON")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(json.loads(options.child))
        return
    figures: dict[str, Any] = {"device": card_name(options.device)}
    print(f"card: {figures['device']}", flush=True)
    for model in options.models:
        figures[model] = throughput_of(model, options)
        save(figures, options.out)
    if "accuracy" in options.parts:
        figures["accuracy"] = accuracies(options)
        save(figures, options.out)


def throughput_of(model: str, options: argparse.Namespace) -> dict[str, float]:
    """Images a second of every way to train one model; prints a line each."""
    rates: dict[str, float] = {}

    def note(name: str, rate: float, remark: str = "") -> None:
        rates[name] = rate
        ratio = f"{rate / rates['plain']:6.2f} × (a)" if "plain" in rates else ""
        hours = rate * 3600 / (EPOCH_IMAGES * PAPER_EPOCHS)
        print(f"{model:10} {name:28} {rate:9.0f} img/s {hours:7.2f} trials/h {ratio}  {remark}", flush=True)

    if "plain" in options.parts:
        note("plain", run_children([plain_request(model, options)])[0]["rate"])
    if "tune" in options.parts:
        with attempt(f"{model} tune"):
            note("tune 4", sum(run_child(plain_request(model, options) | {"kind": "tune"})["rates"]))
    if "engine" in options.parts:
        for mode in options.modes:
            with attempt(f"{model} {mode}"):
                one = together(model, mode, 1, options)
                note(mode, total_samples_per_s(one), describe(one))
    if "packed" in options.parts:
        for way, mode, copies in itertools.product(options.packed_ways, options.packed_modes, options.copies):
            with attempt(f"{model} {mode} {way} {copies}"), card_for(way, copies) as environment:
                seen = together(model, mode, copies, options, environment)
                note(f"{mode} {way} {copies}", total_samples_per_s(seen), describe(seen))
    return rates


def together(
    model: str, mode: str, copies: int, options: argparse.Namespace, environment: Mapping[str, str] | None = None
) -> list[Measurement]:
    """The engine's steady state in so many processes at once."""
    return measure_together(
        parse_config({"name": "cifar10", "model": model, "acceleration": mode}),
        n_processes=copies,
        optimizer="sgdm",
        params=SGDM,
        data_dir=options.data,
        device=options.device,
        seconds=options.seconds,
        environment=environment,
    )


def describe(seen: list[Measurement]) -> str:
    one = max(seen, key=lambda measurement: measurement.setup_s)
    return f"{one.status}; {one.memory_bytes / 2**30:.2f} GiB each; set-up {one.setup_s:.1f} s"


@contextlib.contextmanager
def card_for(way: str, n_processes: int) -> Iterator[dict[str, str]]:
    """The environment of processes that use the card by turns ("sliced") or side by side ("mps").

    Raises:
        TaskError: they cannot use it side by side.
    """
    environment = dict(os.environ)
    try:
        if way == "mps" and (refusal := sharing.join(environment, share=1 / n_processes)):
            raise TaskError(refusal)
        yield environment
    finally:
        if way == "mps":
            sharing.leave()


def plain_request(model: str, options: argparse.Namespace, **fields: Any) -> dict[str, Any]:
    what = {"kind": "plain", "model": model, "optimizer": "sgdm", "params": SGDM, "seed": 0, "task": {}}
    where = {"data": str(options.data), "device": options.device, "seconds": options.seconds}
    return {**what, **where, **fields}


def accuracies(options: argparse.Namespace) -> dict[str, dict[str, list[float]]]:
    """Test accuracies of resnet20 by way and optimizer, over the seeds; all runs at once, side by side if possible."""
    print(f"accuracy: resnet20, {options.epochs} epochs, seeds {options.seeds}", flush=True)
    task = {**options.recipe["task"], "epochs": options.epochs}
    requests = [
        plain_request("resnet20", options, kind=kind, optimizer=name, params=options.recipe[name], seed=seed, task=task)
        for kind in ("accuracy_engine", "accuracy_plain")
        for name in ("sgdm", "admetas")
        for seed in options.seeds
    ]
    begin = time.perf_counter()
    way = "mps" if options.device != "cpu" and shutil.which(sharing.CONTROL) else "sliced"
    with card_for(way, len(requests) // n_cards(options.device)) as environment:
        answers = run_children(requests, environment, cards=n_cards(options.device))
    print(f"{len(requests)} runs at once in {time.perf_counter() - begin:.0f} s", flush=True)
    found: dict[str, dict[str, list[float]]] = {}
    for request, answer in zip(requests, answers, strict=True):
        found.setdefault(request["kind"], {}).setdefault(request["optimizer"], []).append(answer["accuracy"])
    for kind, optimizers in found.items():
        for name, values in optimizers.items():
            mean, spread = statistics.mean(values), statistics.stdev(values) if len(values) > 1 else 0.0
            each = ", ".join(f"{value:.2%}" for value in values)
            print(f"{kind:16} {name:8} {mean:.2%} ± {spread:.2%}  ({each})", flush=True)
    return found


def run_children(
    requests: list[dict[str, Any]], environment: Mapping[str, str] | None = None, *, cards: int = 1
) -> list[dict[str, Any]]:
    """Each request in a process of its own, all at once; one after the other they take the host's next card."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(cards)))).split(",")
    environments = [
        {**(environment or os.environ), "CUDA_VISIBLE_DEVICES": visible[i % cards]} if cards > 1 else environment
        for i in range(len(requests))
    ]
    with ThreadPoolExecutor(len(requests)) as pool:
        return list(pool.map(run_child, requests, environments))


def run_child(request: dict[str, Any], environment: Mapping[str, str] | None = None) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.throughput", "--data", "-", "--child", json.dumps(request)]
    env = None if environment is None else dict(environment)
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, env=env)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        raise TaskError(f"{request['kind']} {request['model']} failed with exit code {done.returncode}")
    answer: dict[str, Any] = json.loads(lines[-1])
    if "accuracy" in answer:
        print(
            f"{request['kind']:16} {request['optimizer']:8} seed {request['seed']}: {answer['accuracy']:.2%}",
            flush=True,
        )
    return answer


def child(request: dict[str, Any]) -> None:
    """Answer one request on stdout."""
    kinds = {
        "plain": lambda: {"rate": plain_rate(request)},
        "tune": lambda: {"rates": tune_rates(request)},
        "accuracy_plain": lambda: {"accuracy": plain_accuracy(request)},
        "accuracy_engine": lambda: {"accuracy": engine_accuracy(request)},
    }
    print(json.dumps(kinds[request["kind"]]()), flush=True)


def cifar(request: Mapping[str, Any]) -> Cifar10Config:
    config = parse_config({"name": "cifar10", "model": request["model"], **request["task"]})
    assert isinstance(config, Cifar10Config)
    return config


def plain_loop(request: Mapping[str, Any]) -> Any:
    from benchmarks.plain_loop import PlainLoop

    keys = ("optimizer", "params", "seed", "device", "workers")
    given = {key: request[key] for key in keys if key in request}
    return PlainLoop(cifar(request), data_dir=Path(request["data"]), **given)


def plain_rate(request: Mapping[str, Any], meet: Any = None) -> float:
    """Images a second of the plain loop over the window, its DataLoader and kernels warm."""
    loop = plain_loop(request)
    loop.train(max_steps=request.get("warm_up", 30))
    if meet is not None:
        meet()
    images = seconds = 0.0
    while seconds < request["seconds"]:
        more_images, more_seconds = loop.train(max_seconds=request["seconds"] - seconds)
        images, seconds = images + more_images, seconds + more_seconds
    return float(images / seconds)


def tune_rates(request: Mapping[str, Any], n_trials: int = 4) -> list[float]:
    """The plain loop as a Ray Tune trainable, four trials on the card; each trial's rate while all four train."""
    import ray
    from ray import tune

    scratch = Path(tempfile.mkdtemp())
    folder = scratch / "ready"
    folder.mkdir()

    def meet_others(index: int) -> None:
        (folder / str(index)).touch()
        while len(list(folder.iterdir())) < n_trials:
            time.sleep(0.05)

    def trainable(config: dict[str, Any]) -> dict[str, float]:
        return {"rate": plain_rate(request, lambda: meet_others(config["index"]))}

    on_gpu = request["device"] != "cpu"
    ray.init(include_dashboard=False, log_to_driver=False, runtime_env={"env_vars": {"PYTHONPATH": python_path()}})
    share = {"cpu": (os.cpu_count() or n_trials) / n_trials, "gpu": 1 / n_trials if on_gpu else 0}
    tuner = tune.Tuner(
        tune.with_resources(trainable, share),
        param_space={"index": tune.grid_search(list(range(n_trials)))},
        run_config=tune.RunConfig(storage_path=str(scratch / "results")),
    )
    return [float(result.metrics["rate"]) for result in tuner.fit()]


def python_path() -> str:
    root = str(Path(__file__).resolve().parents[1])
    return os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])


def plain_accuracy(request: Mapping[str, Any]) -> float:
    import torch

    # Faster, and the same mathematics: the choice of kernels, and the order of an image's numbers in memory.
    torch.backends.cudnn.benchmark = True
    loop = plain_loop({**request, "workers": max(2, min(8, (os.cpu_count() or 1) // 8))})
    loop.model.to(memory_format=torch.channels_last)
    for _ in range(loop.config.epochs):
        loop.train()
    return float(loop.test_accuracy())


def engine_accuracy(request: Mapping[str, Any]) -> float:
    from tasks.runs import open_run

    keys = ("optimizer", "params", "seed", "device")
    run = open_run(cifar(request), data_dir=Path(request["data"]), **{key: request[key] for key in keys})
    while not run.done:
        run.advance()
    return run.test()["test_accuracy"]


@contextlib.contextmanager
def attempt(what: str) -> Iterator[None]:
    """One part's failure is printed and the others still run."""
    try:
        yield
    except TaskError as error:
        print(f"{what}: {error}", flush=True)


def card_name(device: str) -> str:
    import torch

    return torch.cuda.get_device_name(0) if device.startswith("cuda") else "cpu"


def n_cards(device: str) -> int:
    import torch

    return max(1, torch.cuda.device_count()) if device == "cuda" else 1


def save(figures: Mapping[str, Any], path: Path | None) -> None:
    if path is not None:
        path.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
