"""CoNLL-2003 with minilm: the engine's entity F1 beside that of transformers' Trainer at the same settings, by seed.

    python -m benchmarks.finetuning_ner --data DIR [--seeds 0 1 2] [--gpus N] [--sentences N] [--out FILE]

DIR holds eng.train, eng.testa and eng.testb, or a folder conll2003 with them. The Trainer is well set (grouped by
length, padded to multiples of 8, fused AdamW, bf16 on a GPU); both have adamw, the paper's budget, linear decay and
clipping at 1, the same rows and the same evaluation. `--sentences` takes the first N of each file alone, for machines
without a card. Each run is a process of its own, `--at-once` side by side on each of the `--gpus` cards. The Trainer
needs the package accelerate.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.children import Places, run_children
from benchmarks.finetuning import _device_name

RATE = 1e-4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--sentences", type=int, help="the first N of each file alone")
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--lr", type=float, default=RATE)
    parser.add_argument("--gpus", type=int, default=1, help="cards of the host")
    parser.add_argument("--at-once", type=int, default=6, help="runs side by side on a card")
    parser.add_argument("--within", type=float, help="seconds after which runs still at work are ended")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help="write all figures there as JSON")
    options = parser.parse_args()
    if options.child:
        print(json.dumps(_child(argparse.Namespace(**json.loads(options.child)))), flush=True)
        return
    common = {"model": options.model, "epochs": options.epochs, "lr": options.lr, "device": options.device}
    with tempfile.TemporaryDirectory() as folder:
        data = options.data.resolve() if options.sentences is None else _shortened(options, Path(folder))
        requests = [
            {**common, "data": str(data), "system": system, "seed": seed}
            for seed in options.seeds
            for system in ("trainer", "engine")
        ]
        places = Places(n_cards=options.gpus, at_once=options.at_once, within_s=options.within)
        figures = run_children("benchmarks.finetuning_ner", requests, places)
    print(_table(figures, device=_device_name(options.device)))
    if options.out is not None:
        options.out.write_text(json.dumps(figures, indent=1))


def _child(request: argparse.Namespace) -> dict[str, Any]:
    """The figures of one run."""
    begin = time.perf_counter()
    scores = (_engine if request.system == "engine" else _trainer)(request)
    return {"system": request.system, "seed": request.seed, "seconds": time.perf_counter() - begin, **scores}


def _table(figures: Sequence[Mapping[str, Any]], *, device: str) -> str:
    by_system = {s: [100 * f["f1"] for f in figures if f.get("system") == s] for s in ("engine", "trainer")}
    lines = [f"CoNLL-2003, eng.testb, F1 in points, on {device}", ""]
    for system, values in by_system.items():
        if not values:
            return "\n".join([*lines, f"no run of {system} came to its end"])
        spread = statistics.stdev(values) if len(values) > 1 else 0.0
        lines.append(
            f"{system:8} {statistics.mean(values):6.2f} ± {spread:.2f}   {' '.join(f'{v:.2f}' for v in values)}"
        )
    difference = statistics.mean(by_system["engine"]) - statistics.mean(by_system["trainer"])
    return "\n".join([*lines, f"engine − trainer {difference:+.2f}"])


def _config(request: argparse.Namespace) -> Any:
    from tasks.registry import parse_config

    return parse_config({"name": "conll2003", "model": request.model, "epochs": request.epochs})


def _engine(request: argparse.Namespace) -> dict[str, float]:
    from tasks.runs import open_run

    run = open_run(
        _config(request),
        optimizer="adamw",
        params={"lr": request.lr, "weight_decay": 0.0},
        seed=request.seed,
        data_dir=Path(request.data),
        device=request.device,
    )
    while not run.done:
        run.advance()
    scores = {name.removeprefix("test_"): value for name, value in run.test().items()}
    run.close()
    return scores


def _trainer(request: argparse.Namespace) -> dict[str, float]:
    import torch
    from transformers import DataCollatorForTokenClassification, Trainer, TrainingArguments, set_seed

    from tasks.data.pretrained import load_tokenizer
    from tasks.engine.task import load_task

    task: Any = load_task(_config(request), data_dir=Path(request.data), device=torch.device(request.device))
    on_gpu = request.device == "cuda"
    arguments = TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=task.config.batch_size,
        num_train_epochs=request.epochs,
        learning_rate=request.lr,
        weight_decay=0.0,
        lr_scheduler_type="linear",
        max_grad_norm=1.0,
        optim="adamw_torch_fused",
        train_sampling_strategy="group_by_length",
        bf16=on_gpu,
        dataloader_num_workers=2 if on_gpu else 0,
        use_cpu=not on_gpu,
        seed=request.seed,
        report_to="none",
        logging_strategy="no",
        save_strategy="no",
        disable_tqdm=True,
    )
    set_seed(request.seed)
    collator = DataCollatorForTokenClassification(load_tokenizer(task.data.source), pad_to_multiple_of=8)
    trainer = Trainer(model=task.build_model(), args=arguments, train_dataset=_rows(task), data_collator=collator)
    trainer.train()
    with torch.no_grad():
        scores: dict[str, float] = task.evaluate(trainer.model.eval(), "test")
    return scores


def _rows(task: Any) -> list[Mapping[str, list[int]]]:
    """The engine's training sentences as the collator takes them."""
    split = task.data.train
    rows = []
    for index in split.rows.tolist():
        row = split.table.pad(split.table._starts.new_tensor([index]), int(split.table.lengths[index]))
        columns = {name: row[name][0].tolist() for name in (*task.data.inputs, "attention_mask")}
        rows.append({**columns, "labels": row["tags"][0].tolist()})
    return rows


def _shortened(options: argparse.Namespace, folder: Path) -> Path:
    """A data folder with the first sentences of each file."""
    source = options.data if (options.data / "eng.train").is_file() else options.data / "conll2003"
    for name in ("eng.train", "eng.testa", "eng.testb"):
        sentences = (source / name).read_text(encoding="utf-8").split("\n\n")
        (folder / name).write_text("\n\n".join(sentences[: options.sentences]) + "\n", encoding="utf-8")
    return folder


if __name__ == "__main__":
    main()
