"""Fine-tuning speed and accuracy of the engine against transformers' Trainer on the same card.

    python -m benchmarks.finetuning --data DIR [--parts speed accuracy] [--out FILE]

DIR holds GLUE's folders (CoLA/, MRPC/, …). Parts:
    speed      a BERT-base-sized model with random weights, batch 32, on CoLA's and MRPC's lengths: training samples a
               second in steady state. Trainer with its defaults (float32, padded to 128) and well set (bf16, grouped by
               length and padded to multiples of 8, fused AdamW); its start-up, logging and saving are left out.
    accuracy   minilm with adamw at the paper's budgets, engine and well-set Trainer: the same rows, rate, schedule,
               clipping and evaluation, the development set's metric by seed.
Each measurement is a child process of its own.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

SYSTEMS = ("engine", "engine-compile", "trainer-defaults", "trainer-well-set")
METRIC = {"cola": "mcc", "mrpc": "f1", "rte": "accuracy", "stsb": "spearman", "sst2": "accuracy"}
SMALL = ("cola", "mrpc", "rte", "stsb")
BASE = "bert-base-random"
BARS = {("cola", "trainer-defaults"): 12.0, ("mrpc", "trainer-defaults"): 5.0, "trainer-well-set": 3.0}
RATE = 1e-4  # of the accuracy part


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
    parser.add_argument("--epochs", type=int, help="instead of the paper's, for trying")
    parser.add_argument("--at-once", type=int, default=12, help="children of the accuracy part side by side")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path, help="write all figures there as JSON")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        for figures in _child(json.loads(options.child)):
            print(json.dumps(figures), flush=True)
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
        "| task | system | samples/s | × defaults (bar) | × well set (bar) | set-up s |",
        "|---|---|---|---|---|---|",
    ]
    for f in figures:
        task, system = f["task"], f["system"]
        if "samples_per_s" not in f:
            lines.append(f"| {task} | {system} | failed: {f['error'][-200:]} | | | |")
            continue
        ratios = []
        for other in ("trainer-defaults", "trainer-well-set"):
            bar = BARS.get((task, other), BARS.get(other, 0.0))
            known = (task, other) in rate and system.startswith("engine")
            ratios.append(f"{rate[task, system] / rate[task, other]:.2f} (≥ {bar:g})" if known else "")
        lines.append(f"| {task} | {system} | {f['samples_per_s']:,.0f} | {' | '.join(ratios)} | {f['setup_s']:.1f} |")
    return "\n".join(lines)


def accuracy_table(figures: Sequence[Mapping[str, Any]], *, device: str) -> str:
    """Development metric, mean ± std over seeds in points, engine and Trainer and their difference, as Markdown."""
    lines = [f"minilm, adamw, lr {RATE:g}, the paper's budgets, on {device}: development set, points", ""]
    lines += ["| task | metric | engine | Trainer | difference | seeds |", "|---|---|---|---|---|---|"]
    for task, metric in METRIC.items():
        for seeds in sorted({tuple(sorted({f["seed"] for f in figures if f["task"] == task})[:n]) for n in (3, 99)}):
            scores = {
                system: [
                    100 * f[metric]
                    for f in figures
                    if (f["task"], f["system"]) == (task, system) and f["seed"] in seeds
                ]
                for system in ("engine", "trainer-well-set")
            }
            if not all(scores.values()):
                continue
            means = [statistics.fmean(found) for found in scores.values()]
            spread = [statistics.stdev(found) if len(found) > 1 else 0.0 for found in scores.values()]
            texts = [f"{mean:.2f} ± {std:.2f}" for mean, std in zip(means, spread, strict=True)]
            lines.append(f"| {task} | {metric} | {' | '.join(texts)} | {means[0] - means[1]:+.2f} | {len(seeds)} |")
    return "\n".join(lines)


def _speed(options: argparse.Namespace) -> list[dict[str, Any]]:
    figures: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as scratch:
        data = _data_with_base(options.data, Path(scratch)) if options.base == BASE else options.data.resolve()
        for task in options.speed_tasks:
            for system in options.systems:
                request = {"part": "speed", "task": task, "system": system, "model": options.base}
                request |= {"data": str(data), "device": options.device}
                figures += _run(request) or [{"task": task, "system": system, "error": "no answer"}]
    return figures


def _accuracy(options: argparse.Namespace) -> list[dict[str, Any]]:
    requests = []
    for seeds, tasks in (
        (options.seeds, options.tasks),
        (options.more_seeds, [t for t in options.tasks if t in SMALL]),
    ):
        for seed in seeds:
            for system in ("trainer-well-set", "engine"):
                requests.append(
                    {
                        "part": "accuracy",
                        "tasks": tasks,
                        "system": system,
                        "seed": seed,
                        "model": options.model,
                        "epochs": options.epochs,
                        "sampling": options.sampling,
                        "data": str(options.data.resolve()),
                        "device": options.device,
                    }
                )
    with ThreadPoolExecutor(options.at_once) as pool:
        return [figures for found in pool.map(_run, requests) for figures in found]


def _run(request: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A child's figures, one a line; of a child that failed, what it wrote last."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.finetuning", "--data", ".", "--child", json.dumps(request)],
        capture_output=True,
        text=True,
        check=False,
    )
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"task"')]
    for figures in found:
        print(json.dumps(figures), flush=True)
    if done.returncode:
        print(f"{request} failed:\n{done.stderr[-2000:]}", file=sys.stderr, flush=True)
        if request["part"] == "speed":
            found.append({"task": request["task"], "system": request["system"], "error": done.stderr[-300:]})
    return found


def _child(request: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    if request["part"] == "speed":
        measure = _speed_of_engine if request["system"].startswith("engine") else _speed_of_trainer
        yield {"task": request["task"], "system": request["system"], **measure(request)}
        return
    for task in request["tasks"]:
        train = _train_engine if request["system"] == "engine" else _train_trainer
        begin = time.perf_counter()
        scores = train(request, task)
        seconds = time.perf_counter() - begin
        yield {"task": task, "system": request["system"], "seed": request["seed"], "seconds": seconds, **scores}


def _engine_run(request: Mapping[str, Any], task: str, *, model: str, epochs: int | None, seed: int, lr: float) -> Any:
    from tasks.registry import parse_config
    from tasks.runs import open_run

    compiled = request["system"] == "engine-compile"
    raw = {"name": task, "model": model, "acceleration": "compile" if compiled else "graph"}
    config = parse_config(raw if epochs is None else {**raw, "epochs": epochs})
    return open_run(
        config,
        optimizer="adamw",
        params={"lr": lr, "weight_decay": 0.0},
        seed=seed,
        data_dir=Path(request["data"]),
        device=request["device"],
    )


def _speed_of_engine(request: Mapping[str, Any]) -> dict[str, Any]:
    n_epochs = {"cola": 5, "mrpc": 8}.get(request["task"], 4)
    run = _engine_run(request, request["task"], model=request["model"], epochs=n_epochs, seed=0, lr=2e-5)
    seen = [run.advance() for _ in range(n_epochs)]
    steady = [evaluation.samples_per_s for evaluation in seen[2:]] or [seen[-1].samples_per_s]
    return {
        "samples_per_s": statistics.median(steady),
        "by_epoch": [evaluation.samples_per_s for evaluation in seen],
        "setup_s": sum(evaluation.setup_s for evaluation in seen),
        "eval_s": seen[-1].eval_s,
        "optimizer_s": seen[-1].optimizer_s,
        "train_s": seen[-1].train_s,
        "train_loss": seen[-1].metrics["train_loss"],
        "memory_gib": seen[-1].peak_memory_bytes / 2**30,
        "step": run.environment()["step"],
    }


def _speed_of_trainer(request: Mapping[str, Any]) -> dict[str, Any]:
    run = _engine_run(request, request["task"], model=request["model"], epochs=1, seed=0, lr=2e-5)
    steps = run.environment()["steps_per_epoch"]
    well_set = request["system"] == "trainer-well-set"
    # Grouped by length, an epoch has every length once: time whole ones. Padded to 128, steps are all alike.
    window = (steps, 2 * steps) if well_set else (20, 20 + min(100, steps))
    clock = _clock(*window)
    trainer = _trainer(run, request, lr=2e-5, seed=0, max_steps=window[1], callback=clock)
    trainer.train()
    seconds = clock.ended - clock.began
    return {"samples_per_s": 32 * (window[1] - window[0]) / seconds, "setup_s": 0.0, "steps": window[1] - window[0]}


def _train_engine(request: Mapping[str, Any], task: str) -> dict[str, float]:
    run = _engine_run(request, task, model=request["model"], epochs=request["epochs"], seed=request["seed"], lr=RATE)
    while not run.done:
        run.advance()
    scores = {name.removeprefix("test_"): value for name, value in run.test().items()}
    run.close()
    return scores


def _train_trainer(request: Mapping[str, Any], task: str) -> dict[str, float]:
    run = _engine_run(request, task, model=request["model"], epochs=request["epochs"], seed=request["seed"], lr=RATE)
    trainer = _trainer(run, request, lr=RATE, seed=request["seed"], max_steps=-1, callback=None)
    trainer.train()
    trainer.model.eval()
    import torch

    with torch.no_grad():
        scores: dict[str, float] = run._task.evaluate(trainer.model, "test")
    run.close()
    return scores


def _trainer(run: Any, request: Mapping[str, Any], *, lr: float, seed: int, max_steps: int, callback: Any) -> Any:
    """transformers' Trainer over the engine's own training rows and a fresh model of the same task."""
    from transformers import DataCollatorWithPadding, Trainer, TrainingArguments, set_seed

    from tasks.text.models import load_tokenizer

    task, config = run._task, run._config
    well_set = request["system"] == "trainer-well-set"
    tokenizer = load_tokenizer(task.data.source)
    settings: dict[str, Any] = {}
    if well_set:
        on_gpu = request["device"] == "cuda"
        settings = {"bf16": on_gpu, "optim": "adamw_torch_fused"}
        settings["train_sampling_strategy"] = request.get("sampling", "group_by_length")
        settings |= {"logging_strategy": "no", "dataloader_num_workers": 2 if on_gpu else 0}
    arguments = TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=config.batch_size,
        num_train_epochs=config.epochs,
        max_steps=max_steps,
        learning_rate=lr,
        weight_decay=0.0,
        lr_scheduler_type="linear",
        max_grad_norm=1.0,
        seed=seed,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
        use_cpu=request["device"] == "cpu",
        **settings,
    )
    set_seed(seed)
    return Trainer(
        model=task.build_model(),
        args=arguments,
        train_dataset=_rows(task, tokenizer, padded=None if well_set else config.max_length),
        data_collator=DataCollatorWithPadding(tokenizer, pad_to_multiple_of=8) if well_set else None,
        callbacks=[callback] if callback is not None else None,
    )


def _rows(task: Any, tokenizer: Any, *, padded: int | None) -> Any:
    """The engine's training rows as a list that a collator takes; padded to a length, or as they are."""
    split = task.data.train
    rows = []
    for index in split.rows.tolist():
        length = int(split.table.lengths[index])
        batch = split.table.pad(split.table.column("labels").new_tensor([index]).long(), padded or length)
        rows.append({name: column[0].tolist() for name, column in batch.items()})
    return rows


def _clock(begin: int, end: int) -> Any:
    """A callback that notes when two steps had ended on the device."""
    import torch
    from transformers import TrainerCallback

    class Clock(TrainerCallback):
        began = ended = 0.0

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step in (begin, end):
                if torch.cuda.is_available():
                    torch.cuda.synchronize()
                name = "began" if state.global_step == begin else "ended"
                setattr(self, name, time.perf_counter())

    return Clock()


def _data_with_base(glue: Path, folder: Path) -> Path:
    """A data folder with GLUE's files and the BERT-base-sized model under `BASE`: minilm's vocabulary is BERT's."""
    from transformers import BertConfig, BertForSequenceClassification

    from tasks.text.models import find_model, load_tokenizer

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
