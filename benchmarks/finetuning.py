"""Fine-tuning speed and accuracy of the engine against transformers' Trainer on the same card.

    python -m benchmarks.finetuning --data DIR [--parts speed accuracy] [--out FILE]

DIR holds GLUE's folders (CoLA/, MRPC/, …). Parts:
    speed      a BERT-base-sized model with random weights, batch 32, on CoLA's and MRPC's lengths: training samples a
               second in steady state. Trainer with its defaults (float32, padded to 128) and well set (bf16, grouped by
               length and padded to multiples of 8, fused AdamW); its start-up, logging and saving are left out.
               Whole runs beside them: `trainer-as-it-comes` is a Trainer with nothing set but batch and epochs, padded
               to 128, and the train_samples_per_second that it reports itself, its logging and the checkpoint that it
               saves inside; `engine-whole` counts the engine's set-up, captures and evaluations.
    accuracy   minilm with adamw at the paper's budgets, engine and well-set Trainer: the same rows, rate, schedule,
               clipping and evaluation, the development set's metric by seed.
Each measurement is a child process of its own; `--gpus` spreads those of the accuracy part over the host's cards.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.children import Places, run_children
from benchmarks.finetuning_trainer import clock, make_trainer, rows

SYSTEMS = (
    "engine",
    "engine-compile",
    "trainer-defaults",
    "trainer-well-set",
    "engine-whole",
    "trainer-as-it-comes",
)
METRIC = {"cola": "mcc", "mrpc": "f1", "rte": "accuracy", "stsb": "spearman", "sst2": "accuracy"}
SMALL = ("cola", "mrpc", "rte", "stsb")
BASE = "bert-base-random"
BARS = {("cola", "trainer-defaults"): 12.0, ("mrpc", "trainer-defaults"): 5.0, "trainer-well-set": 3.0}
RATE = 1e-4  # of the accuracy part, where none is given
LONGEST_FIRST = ("sst2", "cola", "stsb", "mrpc", "rte")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the folder that holds GLUE's")
    parser.add_argument("--parts", nargs="+", default=["speed", "accuracy"], choices=["speed", "accuracy"])
    parser.add_argument("--speed-tasks", nargs="+", default=["cola", "mrpc"])
    parser.add_argument("--systems", nargs="+", default=list(SYSTEMS), choices=SYSTEMS)
    parser.add_argument("--base", default=BASE, help="model of the speed part; another than the default is for trying")
    parser.add_argument("--tasks", nargs="+", default=list(METRIC), choices=list(METRIC), help="of the accuracy part")
    parser.add_argument("--model", default="minilm", help="of the accuracy part")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument(
        "--more-seeds", type=int, nargs="*", default=[], help="for the small tasks, whose noise is large"
    )
    parser.add_argument(
        "--sampling",
        default="group_by_length",
        choices=["group_by_length", "random"],
        help="the Trainer's order in the accuracy part: its groups are sorted, so batches near in time are alike",
    )
    parser.add_argument("--whole-epochs", type=int, default=1, help="of the whole runs of the speed part")
    parser.add_argument("--lr", nargs="+", default=[], help=f"3e-5, or by task: rte=2e-4; {RATE:g} where none is given")
    parser.add_argument("--epochs", nargs="+", default=[], help="1, or by task: rte=10; else the paper's")
    parser.add_argument("--gpus", type=int, default=1, help="cards of the host for the accuracy part")
    parser.add_argument("--at-once", type=int, default=12, help="children of the accuracy part side by side on a card")
    parser.add_argument("--within", type=float, help="seconds after which the accuracy part's children are ended")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path, help="write all figures there as JSON")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(_child(json.loads(options.child))), flush=True)
        return
    results: dict[str, Any] = {"device": _device_name(options.device)}
    if "speed" in options.parts:
        results["speed"] = _speed(options)
        print(speed_table(results["speed"], device=results["device"]), flush=True)
        _write(options.out, results)
    if "accuracy" in options.parts:
        results["accuracy"] = _accuracy(options)
        print(accuracy_table(results["accuracy"], device=results["device"]), flush=True)
        _write(options.out, results)


def speed_table(figures: Sequence[Mapping[str, Any]], *, device: str) -> str:
    """Samples a second and ratios to both Trainers, as Markdown."""
    rate = {(f["task"], f["system"]): f["samples_per_s"] for f in figures if "samples_per_s" in f}
    lines = [f"Fine-tuning a BERT-base-sized model, batch 32, on {device}: training samples/s", ""]
    lines += [
        "| task | system | samples/s | × defaults (bar) | × well set (bar) | whole run × as it comes | set-up s |",
        "|---|---|---|---|---|---|---|",
    ]
    for f in figures:
        if "samples_per_s" not in f:
            request = f["request"]
            lines.append(f"| {request['task']} | {request['system']} | failed: {f['error'][-200:]} | | | | |")
            continue
        task, system = f["task"], f["system"]
        ratios = []
        for other in ("trainer-defaults", "trainer-well-set", "trainer-as-it-comes"):
            bar = BARS.get((task, other), BARS.get(other))
            is_whole = other == "trainer-as-it-comes"
            known = (task, other) in rate and system.startswith("engine") and (system == "engine-whole") == is_whole
            said = f"{rate[task, system] / rate[task, other]:.2f}" if known else ""
            ratios.append(f"{said} (≥ {bar:g})" if known and bar else said)
        lines.append(f"| {task} | {system} | {f['samples_per_s']:,.0f} | {' | '.join(ratios)} | {f['setup_s']:.1f} |")
    return "\n".join(lines)


def accuracy_table(figures: Sequence[Mapping[str, Any]], *, device: str) -> str:
    """Development metric, mean ± std over seeds in points, engine and Trainer and their difference, as Markdown."""
    lines = [f"Adamw, on {device}: development set, points", ""]
    lines += [
        "| task | metric | lr | epochs | engine | Trainer | difference | seeds |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for task, metric in METRIC.items():
        of_task = [f for f in figures if f.get("task") == task]
        for seeds in sorted({tuple(sorted({f["seed"] for f in of_task})[:n]) for n in (3, 99)}):
            scores = {
                system: [100 * f[metric] for f in of_task if f["system"] == system and f["seed"] in seeds]
                for system in ("engine", "trainer-well-set")
            }
            if not all(scores.values()):
                continue
            means = [statistics.fmean(found) for found in scores.values()]
            spread = [statistics.stdev(found) if len(found) > 1 else 0.0 for found in scores.values()]
            texts = [f"{mean:.2f} ± {std:.2f}" for mean, std in zip(means, spread, strict=True)]
            n_seeds = " and ".join(sorted({str(len(found)) for found in scores.values()}))
            budget = f"{of_task[0]['lr']:g} | {of_task[0]['epochs']}"
            lines.append(
                f"| {task} | {metric} | {budget} | {' | '.join(texts)} | {means[0] - means[1]:+.2f} | {n_seeds} |"
            )
    unfinished = [f["request"] for f in figures if "error" in f]
    lines += [f"\nwithout an end: {r['task']}, {r['system']}, seed {r['seed']}" for r in unfinished]
    return "\n".join(lines)


def _speed(options: argparse.Namespace) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as scratch:
        data = _data_with_base(options.data, Path(scratch)) if options.base == BASE else options.data.resolve()
        common = {"part": "speed", "model": options.base, "data": str(data), "device": options.device}
        requests = [
            {**common, "task": task, "system": system, "epochs": options.whole_epochs}
            for task in options.speed_tasks
            for system in options.systems
        ]
        return run_children("benchmarks.finetuning", requests, Places())


def _accuracy(options: argparse.Namespace) -> list[dict[str, Any]]:
    rates, epochs = by_task(options.lr, float), by_task(options.epochs, int)
    common = {"part": "accuracy", "model": options.model, "sampling": options.sampling, "device": options.device}
    common["data"] = str(options.data.resolve())
    requests = [
        {**common, "task": task, "system": system, "seed": seed, "lr": rates(task) or RATE, "epochs": epochs(task)}
        for task in LONGEST_FIRST
        if task in options.tasks
        for seed in [*options.seeds, *(options.more_seeds if task in SMALL else [])]
        for system in ("trainer-well-set", "engine")
    ]
    places = Places(n_cards=options.gpus, at_once=options.at_once, within_s=options.within)
    return run_children("benchmarks.finetuning", requests, places)


def by_task(words: Sequence[str], kind: Callable[[str], Any]) -> Callable[[str], Any]:
    """What `--lr 3e-5 rte=2e-4` says of a task; None where it says nothing.

    Raises:
        SystemExit: a task that there is not, or no number.
    """
    said: dict[str, Any] = {}
    for word in words:
        task, _, value = word.rpartition("=")
        if task and task not in METRIC:
            raise SystemExit(f"{word!r}: the tasks are {', '.join(METRIC)}")
        try:
            said[task] = kind(value)
        except ValueError:
            raise SystemExit(f"{word!r} is neither a number nor TASK=NUMBER") from None
    return lambda task: said.get(task, said.get(""))


def _child(request: Mapping[str, Any]) -> dict[str, Any]:
    """The figures of one measurement."""
    who = {"task": request["task"], "system": request["system"]}
    if request["part"] == "speed":
        return {**who, **SPEED_OF.get(request["system"], _speed_of_trainer)(request)}
    train = _train_engine if request["system"] == "engine" else _train_trainer
    begin = time.perf_counter()
    scores = train(request)
    budget = {"seed": request["seed"], "lr": request["lr"], "epochs": _config(request, request["epochs"]).epochs}
    return {**who, **budget, "seconds": time.perf_counter() - begin, **scores}


def _config(request: Mapping[str, Any], epochs: int | None) -> Any:
    from tasks.registry import parse_config

    compiled = request["system"] == "engine-compile"
    raw = {"name": request["task"], "model": request["model"], "acceleration": "compile" if compiled else "graph"}
    return parse_config(raw if epochs is None else {**raw, "epochs": epochs})


def _engine_run(request: Mapping[str, Any], *, epochs: int | None, seed: int, lr: float) -> Any:
    from tasks.runs import open_run

    return open_run(
        _config(request, epochs),
        optimizer="adamw",
        params={"lr": lr, "weight_decay": 0.0},
        seed=seed,
        data_dir=Path(request["data"]),
        device=request["device"],
    )


def _task_of(request: Mapping[str, Any], *, epochs: int | None) -> Any:
    """The engine's task for the Trainer, without a run: while a run is open, torch is set as its precision needs."""
    import torch

    from tasks.engine.task import load_task

    return load_task(_config(request, epochs), data_dir=Path(request["data"]), device=torch.device(request["device"]))


def _speed_of_engine(request: Mapping[str, Any]) -> dict[str, Any]:
    n_epochs = {"cola": 5, "mrpc": 8}.get(request["task"], 4)
    run = _engine_run(request, epochs=n_epochs, seed=0, lr=2e-5)
    seen = [run.advance() for _ in range(n_epochs)]
    steady = [evaluation.samples_per_s for evaluation in seen[2:]] or [seen[-1].samples_per_s]
    return {
        "samples_per_s": statistics.median(steady),
        "by_epoch": [evaluation.samples_per_s for evaluation in seen],
        "setup_s": sum(evaluation.setup_s for evaluation in seen),
        "eval_s": seen[-1].cost.eval_s,
        "optimizer_s": seen[-1].cost.optimizer_s,
        "train_s": seen[-1].cost.train_s,
        "train_loss": seen[-1].metrics["train_loss"],
        "memory_gib": seen[-1].cost.peak_memory_bytes / 2**30,
        "step": run.step_status,
    }


def _speed_of_whole_engine(request: Mapping[str, Any]) -> dict[str, Any]:
    """From reading the data to the last evaluation; like a Trainer, it counts from when modules and CUDA are there."""
    import torch
    import transformers

    from tasks.registry import get, load_target

    for target in (get(request["task"]).target, get(request["task"]).run):
        load_target(str(target))
    transformers.AutoModelForSequenceClassification  # noqa: B018 - loads it
    torch.empty(0, device=request["device"])
    begin = time.perf_counter()
    run = _engine_run(request, epochs=request["epochs"], seed=0, lr=2e-5)
    opened_s = time.perf_counter() - begin
    seen = [run.advance() for _ in range(request["epochs"])]
    seconds = time.perf_counter() - begin
    steps = request["epochs"] * run.environment()["steps_per_epoch"]
    return {
        "samples_per_s": steps * run._config.batch_size / seconds,
        "setup_s": opened_s + sum(evaluation.setup_s for evaluation in seen),
        "seconds": seconds,
        "steps": steps,
    }


def _speed_of_trainer_as_it_comes(request: Mapping[str, Any]) -> dict[str, Any]:
    """What a Trainer says of itself where nothing is set but the batch and the epochs."""
    from transformers import Trainer, TrainingArguments

    from tasks.data.pretrained import load_tokenizer

    task = _task_of(request, epochs=request["epochs"])
    padded = rows(task, load_tokenizer(task.data.source), padded=task.config.max_length)
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=task.config.batch_size,
            num_train_epochs=request["epochs"],
            use_cpu=request["device"] == "cpu",
        )
        told = Trainer(model=task.build_model(), args=arguments, train_dataset=padded).train()
    return {
        "samples_per_s": told.metrics["train_samples_per_second"],
        "setup_s": 0.0,
        "seconds": told.metrics["train_runtime"],
        "steps": told.global_step,
        "float32_matmul": _float32_matmul(),
    }


def _speed_of_trainer(request: Mapping[str, Any]) -> dict[str, Any]:
    task = _task_of(request, epochs=1)
    steps = task.batches_per_epoch
    well_set = request["system"] == "trainer-well-set"
    # Grouped by length, an epoch has every length once: time whole ones. Padded to 128, steps are all alike.
    window = (steps, 2 * steps) if well_set else (20, 20 + min(100, steps))
    timer = clock(*window)
    trainer = make_trainer(task, request, lr=2e-5, seed=0, max_steps=window[1], callback=timer)
    trainer.train()
    seconds = timer.ended - timer.began
    n_steps = window[1] - window[0]
    rate = task.config.batch_size * n_steps / seconds
    return {"samples_per_s": rate, "setup_s": 0.0, "steps": n_steps, "float32_matmul": _float32_matmul()}


def _float32_matmul() -> str:
    import torch

    return torch.get_float32_matmul_precision()


SPEED_OF: Mapping[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    "engine": _speed_of_engine,
    "engine-compile": _speed_of_engine,
    "engine-whole": _speed_of_whole_engine,
    "trainer-as-it-comes": _speed_of_trainer_as_it_comes,
}


def _train_engine(request: Mapping[str, Any]) -> dict[str, float]:
    run = _engine_run(request, epochs=request["epochs"], seed=request["seed"], lr=request["lr"])
    while not run.done:
        run.advance()
    scores = {name.removeprefix("test_"): value for name, value in run.test().items()}
    run.close()
    return scores


def _train_trainer(request: Mapping[str, Any]) -> dict[str, float]:
    import torch

    task = _task_of(request, epochs=request["epochs"])
    trainer = make_trainer(task, request, lr=request["lr"], seed=request["seed"], max_steps=-1, callback=None)
    trainer.train()
    trainer.model.eval()
    with torch.no_grad():
        scores: dict[str, float] = task.evaluate(trainer.model, "test")
    return scores


def _data_with_base(glue: Path, folder: Path) -> Path:
    """A data folder with GLUE's files and the BERT-base-sized model under `BASE`: minilm's vocabulary is BERT's."""
    from transformers import BertConfig, BertForSequenceClassification

    from tasks.data.pretrained import find_model, load_tokenizer

    shutil.copytree(glue, folder / "glue")
    load_tokenizer(find_model("minilm", data_dir=None)).save_pretrained(folder / BASE)
    BertForSequenceClassification(BertConfig()).save_pretrained(folder / BASE)
    return folder


def _device_name(device: str) -> str:
    import torch

    return torch.cuda.get_device_name() if device == "cuda" else "a CPU"


def _write(out: Path | None, results: Mapping[str, Any]) -> None:
    if out is not None:
        out.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
