"""Runs trained by one process, as one stacked model (a cohort) or side by side, against a process for each of them.

    python -m benchmarks.cohorts [--models resnet20 resnet110 minilm] [--slots 16] [--modes graph compile] [--out FILE]
    python -m benchmarks.cohorts --parts side-by-side --slots 4 8 16 --modes graph
    python -m benchmarks.cohorts --device cpu --models mlp convnet --slots 1 2 4 8 --modes eager

Each figure comes from fresh processes: two epochs of warm-up, in which everything is captured and compiled, then whole
epochs with their evaluations for some seconds; a run's evaluation counts as time and not as samples. Processes share
the card by NVIDIA's multi-process service where it can be started (`--ways mps sliced`), and each takes one CPU thread.
Side by side is what a study does where that service does not start: a network for each run, on streams of one process.
On a CPU as many processes as there are cores train at once, as a study's do.

The data are made up, in the sizes of CIFAR-10's images and CoLA's sentences; a step's time does not depend on what they
show. `--trial-epochs` of CIFAR-10, CoLA or digits make a trial, for trials an hour.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.children import Places, run_children
from tasks.registry import COHORT, SIDE_BY_SIDE, load_target, parse_config

PARTS = ("processes", "cohort", "side-by-side")
WARM_UP_EPOCHS = 2
STAGGER = 37  # steps by which neighbours' epochs are apart, with --staggered
SETTINGS = {"lr": 0.05, "weight_decay": 5e-4}
IMAGES = {"name": "image_folder", "data_dir": "images", "image_size": 32}
TASKS: Mapping[str, Mapping[str, Any]] = {
    "resnet20": {**IMAGES, "model": "resnet20"},
    "resnet110": {**IMAGES, "model": "resnet110"},
    "minilm": {"name": "text_classification", "data_dir": "texts", "model": "minilm-size", "batch_size": 32},
    "mlp": {"name": "digits", "model": "mlp"},
    "convnet": {"name": "digits", "model": "convnet"},
}
TRIAL_SAMPLES = {"resnet20": 45_000, "resnet110": 45_000, "minilm": 7_695, "mlp": 1_152, "convnet": 1_152}
"""Training samples of an epoch of CIFAR-10, CoLA and digits."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["resnet20", "resnet110", "minilm"], choices=list(TASKS))
    parser.add_argument("--slots", type=int, nargs="+", default=[16], help="of a cohort")
    parser.add_argument("--processes", type=int, nargs="+", help="at once; by default as many as slots (CPU: as cores)")
    parser.add_argument("--modes", nargs="+", default=["graph", "compile"], choices=["eager", "graph", "compile"])
    parser.add_argument("--parts", nargs="+", default=list(PARTS[:2]), choices=PARTS)
    parser.add_argument("--ways", nargs="+", default=["mps"], choices=["mps", "sliced"])
    parser.add_argument("--optimizer", default="sgdm")
    parser.add_argument("--seconds", type=float, default=8.0, help="of each window")
    parser.add_argument("--within", type=float, help="seconds for all figures; the rest are left out")
    parser.add_argument("--trial-epochs", type=int, default=8)
    parser.add_argument("--staggered", action="store_true", help="slots begin their epochs at different steps")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--data", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--child", type=json.loads, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help="write all figures there as JSON")
    options = parser.parse_args()
    if options.child:
        kinds: Mapping[str, Callable[..., dict[str, Any]]] = {"run": run, "processes": processes}
        kinds = {**kinds, "cohort": together, "side-by-side": together}
        print(json.dumps(kinds[options.child["kind"]](options.child)), flush=True)
        return
    with tempfile.TemporaryDirectory() as folder:
        write_data(Path(folder), options.models)
        requests = list(plan(options, Path(folder)))
        figures = run_children("benchmarks.cohorts", requests, Places(within_s=options.within))
    print(as_table([one for one in figures if "rate" in one], epochs=options.trial_epochs), flush=True)
    if options.out is not None:
        options.out.write_text(json.dumps(figures, indent=1))


def plan(options: argparse.Namespace, folder: Path) -> Iterator[dict[str, Any]]:
    """The measurements in order: all of a model's one after another."""
    fields = {"data": str(folder), **{key: getattr(options, key) for key in ("device", "seconds", "optimizer")}}
    cores = len(os.sched_getaffinity(0))
    for model, mode in itertools.product(options.models, options.modes):
        if "processes" in options.parts:
            counts = options.processes or (options.slots if options.device != "cpu" else [cores])
            for n, way in itertools.product(counts, options.ways if options.device != "cpu" else ["cores"]):
                yield {**fields, "kind": "processes", "model": model, "mode": mode, "n": n, "way": way}
        for kind, n in itertools.product([part for part in PARTS[1:] if part in options.parts], options.slots):
            stagger = STAGGER if options.staggered else 0
            yield {**fields, "kind": kind, "model": model, "mode": mode, "n": n, "stagger": stagger}


def config_of(request: Mapping[str, Any]) -> Any:
    return parse_config({**TASKS[request["model"]], "epochs": 100_000, "acceleration": request["mode"]})


def settings_of(request: Mapping[str, Any], k: int = 0) -> dict[str, Any]:
    """Different learning rates, as trials have."""
    settings = SETTINGS if request["optimizer"] == "sgdm" else {"lr": 1e-3}
    return {**settings, "lr": settings["lr"] * 0.8**k * (0.01 if request["model"] == "minilm" else 1.0)}


def processes(request: Mapping[str, Any]) -> dict[str, Any]:
    """The figures of so many processes at once, each with one run."""
    from tasks.engine import sharing

    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    remark = ""
    with tempfile.TemporaryDirectory() as meeting:
        if request["way"] == "mps" and request["n"] > 1:
            remark = sharing.join(environment, share=1 / request["n"])
        try:
            children = [
                subprocess.Popen(
                    [sys.executable, "-m", "benchmarks.cohorts", "--child", json.dumps(one)],
                    env=environment,
                    stdout=subprocess.PIPE,
                    text=True,
                )
                for one in ({**request, "kind": "run", "index": k, "meeting": meeting} for k in range(request["n"]))
            ]
            answers = [json.loads(child.communicate()[0].splitlines()[-1]) for child in children]
        finally:
            if request["way"] == "mps":
                sharing.leave()
    sums = {key: sum(answer[key] for answer in answers) for key in ("rate", "cores", "memory")}
    largest = {key: max(answer[key] for answer in answers) for key in ("setup_s", "eval_s")}
    shown = {key: request[key] for key in ("kind", "model", "mode", "n", "way")}
    return {**shown, **sums, **largest, "status": answers[0]["status"], "remark": remark}


def run(request: Mapping[str, Any]) -> dict[str, Any]:
    """One of those processes. It works on until the others have ended their windows too."""
    from tasks.runs import open_run

    begin = time.perf_counter()
    config = config_of(request)
    one: Any = open_run(
        config,
        optimizer=request["optimizer"],
        params=settings_of(request, request["index"]),
        seed=request["index"],
        data_dir=Path(request["data"]),
        device=request["device"],
    )
    for _ in range(WARM_UP_EPOCHS):
        one.advance()
    setup_s = time.perf_counter() - begin
    _meet(request, "ready")
    window = _Window(request["seconds"])
    while window.is_open:
        evaluation = one.advance()
        window.add(one.environment()["steps_per_epoch"] * config.batch_size, evaluation.cost.eval_s)
    figures = window.figures()
    _leave_mark(request, "done")
    while not _all_marked(request, "done"):
        one.advance()
    return {**figures, "memory": _memory(), "setup_s": setup_s, "status": one.step_status}


def together(request: Mapping[str, Any]) -> dict[str, Any]:
    """The figures of one process with a cohort, or with runs side by side."""
    begin = time.perf_counter()
    config = config_of(request)
    whole = load_target(COHORT if request["kind"] == "cohort" else SIDE_BY_SIDE)(
        config, n_slots=request["n"], data_dir=Path(request["data"]), device=request["device"]
    )
    members = [
        whole.open(config, optimizer=request["optimizer"], params=settings_of(request, k), seed=k)
        for k in range(request["n"])
    ]
    samples = members[0].environment()["steps_per_epoch"] * config.batch_size
    for k, member in enumerate(members):
        if k:  # where they are staggered, those that have begun work on meanwhile
            for _ in range(request["stagger"]):
                whole.step()
        member.begin()

    def epochs(window: _Window | None, n: int) -> None:
        left = n
        while left > 0 if window is None else window.is_open:
            whole.step()
            for member in members:
                if not member.is_training:
                    evaluation = member.finish()
                    member.begin()
                    left -= 1
                    if window is not None:
                        window.add(samples, evaluation.cost.eval_s)

    epochs(None, WARM_UP_EPOCHS * len(members))
    setup_s = time.perf_counter() - begin
    window = _Window(request["seconds"])
    epochs(window, 0)
    shown = {key: request[key] for key in ("kind", "model", "mode", "n")} | {"way": "one process"}
    status = members[0].step_status
    remark = f"epochs {request['stagger']} steps apart" if request["stagger"] else ""
    return {**shown, **window.figures(), "memory": _memory(), "setup_s": setup_s, "status": status, "remark": remark}


class _Window:
    """Counts samples, and the CPU time of this process, from now on."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._began = time.perf_counter()
        self._ended = self._began
        self._cpu_s = _cpu_s()
        self._samples = 0
        self._evals: list[float] = []

    @property
    def is_open(self) -> bool:
        return self._ended - self._began < self._seconds

    def add(self, samples: int, eval_s: float) -> None:
        """An epoch that has ended now."""
        self._samples += samples
        self._evals.append(eval_s)
        self._ended = time.perf_counter()

    def figures(self) -> dict[str, float]:
        spent = self._ended - self._began
        cores = (_cpu_s() - self._cpu_s) / spent
        return {"rate": self._samples / spent, "cores": cores, "eval_s": float(np.mean(self._evals))}


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _memory() -> int:
    import torch

    from tasks.engine.device import CONTEXT_BYTES

    if torch.cuda.is_available() and torch.cuda.is_initialized():
        return torch.cuda.max_memory_reserved() + CONTEXT_BYTES
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _leave_mark(request: Mapping[str, Any], what: str) -> None:
    (Path(request["meeting"]) / f"{what}-{request['index']}").touch()


def _all_marked(request: Mapping[str, Any], what: str) -> bool:
    return len(list(Path(request["meeting"]).glob(f"{what}-*"))) >= request["n"]


def _meet(request: Mapping[str, Any], what: str) -> None:
    _leave_mark(request, what)
    while not _all_marked(request, what):
        time.sleep(0.01)


def write_data(folder: Path, models: Sequence[str]) -> None:
    """Images of noise, 14,400 of 32×32 pixels in four classes; sentences of CoLA's number and lengths, and a model."""
    if {"resnet20", "resnet110"} & set(models):
        from PIL import Image

        rng = np.random.default_rng(0)
        for split, klass, n in (("train", k, 3_600) for k in range(4)):
            _write_images(Image, rng, folder / "images" / split / str(klass), n)
        for klass in range(4):
            _write_images(Image, rng, folder / "images" / "test" / str(klass), 100)
    if "minilm" in models:
        _write_texts(folder)


def _write_images(image: Any, rng: np.random.Generator, place: Path, n: int) -> None:
    place.mkdir(parents=True)
    for index in range(n):
        image.fromarray(rng.integers(0, 255, size=(32, 32, 3), dtype=np.uint8)).save(place / f"{index:05d}.bmp")


def _write_texts(folder: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

    rng = np.random.default_rng(0)
    words = [f"w{index}" for index in range(5_000)]
    (folder / "texts").mkdir()
    for split, n in (("train", 8_551), ("test", 1_000)):
        lengths = np.clip(np.round(rng.lognormal(2.1, 0.48, size=n)), 3, 45).astype(int)  # words; CoLA's mean is 9
        rows = [f"{' '.join(rng.choice(words, size=length))},{rng.integers(2)}" for length in lengths]
        (folder / "texts" / f"{split}.csv").write_text("\n".join(["text,label", *rows]) + "\n")
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer = Tokenizer(models.WordLevel({word: k for k, word in enumerate(special + words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    ends = [("[CLS]", 2), ("[SEP]", 3)]
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    names = {f"{token[1:-1].lower()}_token": token for token in special}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names).save_pretrained(folder / "minilm-size")
    size = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}
    BertForSequenceClassification(BertConfig(**size)).save_pretrained(folder / "minilm-size")


def as_table(figures: Sequence[Mapping[str, Any]], *, epochs: int) -> str:
    """As Markdown, with the ratio to the fastest processes of the same model."""
    best: dict[str, float] = {}
    for one in figures:
        if one["kind"] == "processes":
            best[one["model"]] = max(best.get(one["model"], 0.0), one["rate"])
    lines = [
        "",
        "| model | runs at once | mode | samples/s | trials/h | × processes | cores | GiB | set-up s | evaluation s |",
        "|---|---|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for one in figures:
        many = {"cohort": "slots", "side-by-side": "side by side"}.get(one["kind"], f"processes, {one['way']}")
        what = f"{one['n']} {many}"
        trials = one["rate"] * 3600 / (TRIAL_SAMPLES[one["model"]] * epochs)
        ratio = f"{one['rate'] / best[one['model']]:.2f}" if one["model"] in best else ""
        lines.append(
            f"| {one['model']} | {what} | {one['mode']} | {one['rate']:,.0f} | {trials:,.0f} | {ratio} | "
            f"{one['cores']:.1f} | {one['memory'] / 2**30:.1f} | {one['setup_s']:.0f} | {one['eval_s']:.3f} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
