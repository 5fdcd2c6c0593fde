"""Where a fine-tuning step of benchmarks.finetuning's speed part goes on a card.

    python -m benchmarks.finetuning_step --data DIR [--task cola] [--parts kernels model]

Parts:
    kernels    the engine's steady step, captured and compiled: each kernel's time and number a step, longest first.
    model      forward and backward pass alone, 32 rows of each width in a graph: with and without cuDNN's attention,
               compiled with and without joined linear layers (tasks.engine.transforms). The compiler's cache is off.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("TORCHINDUCTOR_FORCE_DISABLE_CACHES", "1")  # a cached graph keeps the attention it was made with

import torch

from benchmarks.finetuning import BASE, _data_with_base, _engine_run
from tasks.engine.transforms import joined_inductor

ROWS = 32


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the folder that holds GLUE's")
    parser.add_argument("--task", default="cola")
    parser.add_argument("--parts", nargs="+", default=["kernels", "model"], choices=["kernels", "model"])
    parser.add_argument("--systems", nargs="+", default=["engine", "engine-compile"], help="of `kernels`")
    parser.add_argument("--widths", nargs="+", type=int, default=[8, 16, 24, 64, 128], help="of `model`")
    parser.add_argument("--longest", type=int, default=40, help="kernels to list")
    options = parser.parse_args()
    print(f"BERT-base's size, batch {ROWS}, on {torch.cuda.get_device_name()}", flush=True)
    if "kernels" in options.parts:
        with tempfile.TemporaryDirectory() as scratch:
            data = _data_with_base(options.data, Path(scratch))
            for system in options.systems:
                print(kernels_of(system, task=options.task, data=data, longest=options.longest), flush=True)
    if "model" in options.parts:
        print("\n| ms | " + " | ".join(f"{width} tokens" for width in options.widths) + " |")
        print("|---|" + "---:|" * len(options.widths))
        for compiled, cudnn in itertools.product(("no", "plain", "joined"), (True, False)):
            times = model_ms(compiled, cudnn=cudnn, widths=options.widths)
            name = f"compiled: {compiled}, {'with' if cudnn else 'without'} cuDNN's attention"
            print(f"| {name} | " + " | ".join(f"{time:.3f}" for time in times) + " |", flush=True)


def kernels_of(system: str, *, task: str, data: Path, longest: int) -> str:
    """A steady epoch's kernels as Markdown: µs and launches a step."""
    from torch.profiler import ProfilerActivity, profile

    request = {"task": task, "system": system, "model": BASE, "data": str(data), "device": "cuda"}
    run = _engine_run(request, epochs=4, seed=0, lr=2e-5)
    steady = [run.advance() for _ in range(3)][-1]
    steps = run.environment()["steps_per_epoch"]
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        run.advance()
    found = sorted(profiler.key_averages(), key=lambda event: -event.self_device_time_total)
    total_ms = sum(event.self_device_time_total for event in found) / steps / 1000
    launches = sum(event.count for event in found) / steps
    lines = [
        f"\n{task}, {system}: {steady.samples_per_s:,.0f} samples/s unprofiled; kernels {total_ms:.2f} ms and "
        f"{launches:.0f} launches a step; {run.step_status}; {run.environment()['optimizer_class']}\n",
        "| kernel | µs a step | launches a step | µs each |",
        "|---|---:|---:|---:|",
    ]
    for event in found[:longest]:
        time = event.self_device_time_total
        lines.append(
            f"| {event.key[:90]} | {time / steps:.1f} | {event.count / steps:.1f} | {time / event.count:.1f} |"
        )
    run.close()
    return "\n".join(lines)


def model_ms(compiled: str, *, cudnn: bool, widths: Sequence[int]) -> list[float]:
    """Milliseconds of a forward and backward pass in a graph, by width.

    Args:
        compiled: "no", "plain" (inductor) or "joined" (with its linear layers of one input joined before).
        cudnn: whether attention may use cuDNN's kernels.
    """
    from transformers import BertConfig, BertForSequenceClassification

    torch._dynamo.reset()
    torch.manual_seed(0)
    before = torch.backends.cuda.cudnn_sdp_enabled()  # type: ignore[no-untyped-call]
    torch.backends.cuda.enable_cudnn_sdp(cudnn)
    try:
        model: Any = BertForSequenceClassification(BertConfig()).cuda().bfloat16().train()
        if compiled != "no":
            for layer in model.bert.encoder.layer:
                layer.compile(dynamic=True, backend=joined_inductor if compiled == "joined" else "inductor")
        return [_replay_ms(model, width) for width in widths]
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)


def _replay_ms(model: Any, width: int) -> float:
    size = (ROWS, width)
    batch = {
        "input_ids": torch.randint(1, model.config.vocab_size, size, device="cuda"),
        "attention_mask": torch.ones(size, dtype=torch.long, device="cuda"),
        "labels": torch.randint(2, (ROWS,), device="cuda"),
    }
    batch["attention_mask"][:, -2:] = 0  # every batch has some padding
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def step() -> None:
        model.zero_grad()
        model(**batch).loss.backward()

    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
        model.zero_grad()
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            step()
        times = []
        for _ in range(7):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            begin.record()
            for _ in range(40):
                graph.replay()
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end) / 40)
    return float(statistics.median(times))


if __name__ == "__main__":
    main()
