"""The registered optimizers on digits and a small GPT: time a step, state, and the loss after equal budgets.

    python -m benchmarks.baselines                       both tasks, on a card where there is one
    python -m benchmarks.baselines --points 8 --only muon soap adamw

Every optimizer trains with the same number of settings: points of one Halton sequence over its own default space, the
same for all. Its loss is the best of these on validation, with one seed, so small differences mean nothing. The text is
this project's documentation, as bytes. "update" is the optimizer's step alone, eager on random gradients, "step"
the whole training step as the engine makes it. Both are the least of some repeats: of processor time without a card,
which other work on the machine disturbs little, of wall time around synchronised work on one. State is what the
optimizer's state dict holds, in bytes a parameter of the last task's model. Ratios are to AdamW's.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from scipy.stats import qmc
from torch import nn

import admeta
from admeta.baselines import BASELINES
from admeta.roles import create_for_model
from admeta.spaces import Categorical, Float, Int, ParamSpace
from tasks.engine.optimizers import state_tensors
from tasks.engine.run import TrainingRun
from tasks.registry import parse_config
from tasks.runs import open_run

N_STEPS = 20  # a multiple of 10, so that every mean holds the same share of the preconditioners' rare work
N_REPEATS = 4
NAMES = ("adamw", "admetar", "admetas", *BASELINES)
TASKS: Mapping[str, dict[str, Any]] = {
    "digits": {"name": "digits", "epochs": 6},
    "gpt": {
        "name": "gpt", "data_dir": "docs", "context": 64, "batch_size": 8, "epochs": 4, "tokens_per_epoch": 64 * 8 * 50,
    },
}  # fmt: skip


@dataclass(frozen=True)
class Row:
    """One optimizer on one task: the best validation loss of its settings, seconds of a step, and how it runs."""

    task: str
    optimizer: str
    loss: float
    settings: dict[str, Any]
    n_failed: int
    step_s: float
    update_s: float
    state_bytes: float
    status: str


def draw(space: Mapping[str, ParamSpace], *, n_points: int) -> list[dict[str, Any]]:
    """Points of a Halton sequence over a space."""
    points = qmc.Halton(len(space), scramble=False).random(n_points + 1)[1:]  # the first is the corner
    return [{name: _at(one, float(u)) for (name, one), u in zip(space.items(), point, strict=True)} for point in points]


def _at(one: ParamSpace, u: float) -> Any:
    match one:
        case Categorical():
            return one.choices[int(u * len(one.choices))]
        case Float() if one.log:
            return one.low * (one.high / one.low) ** u
        case Float():
            return one.low + u * (one.high - one.low)
        case Int():
            return min(one.high, one.low + int(u * (one.high - one.low + 1)))


def measure(task: str, optimizer: str, *, n_points: int, data_dir: Path, device: str) -> Row:
    """Train with each setting."""
    info = admeta.get(optimizer)
    results: list[tuple[float, dict[str, Any]]] = []
    step_s = update_s = state = float("nan")
    status = ""
    for point in draw(info.default_space, n_points=n_points):
        settings = {**info.fixed, **point}
        run = open_run(
            parse_config(TASKS[task]), optimizer=optimizer, params=settings, seed=0, data_dir=data_dir, device=device
        )
        assert isinstance(run, TrainingRun)
        try:
            while not run.done:
                last = run.advance()
            results.append((last.metrics["val_loss"], point))
            parameters = sum(p.numel() for p in run.model.parameters())
            state = sum(t.numel() * t.element_size() for t in state_tensors(run.state_dict()["optimizer"])) / parameters
            status = run.step_status
            if len(results) == 1:
                run.train_steps(3)
                step_s = least(partial(run.train_steps, N_STEPS), device=device) / N_STEPS
                update_s = time_update(run.model, optimizer, settings, device=device)
        except admeta.AdmetaError:
            raise
        except Exception as error:  # noqa: BLE001 - a setting that diverges is a result
            print(f"{task} {optimizer} {point}: {error}")
        finally:
            run.close()
    loss, best = min(results, key=lambda one: one[0])
    failed = n_points - len(results)
    return Row(task, optimizer, loss, best, failed, step_s, update_s, state, status)


def time_update(model: nn.Module, optimizer: str, settings: Mapping[str, Any], *, device: str) -> float:
    """Seconds of an eager update of this model; its weights change."""
    made = create_for_model(optimizer, model, settings)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)

    def steps() -> None:
        for _ in range(N_STEPS):
            made.step()

    steps()
    return least(steps, device=device) / N_STEPS


def least(work: Callable[[], Any], *, device: str) -> float:
    """The least seconds of some repeats: of the processor, or of the wall clock with a card."""
    clock = time.process_time if device == "cpu" else time.perf_counter
    found = []
    for _ in range(N_REPEATS):
        begin = clock()
        work()
        if device != "cpu":
            torch.cuda.synchronize()
        found.append(clock() - begin)
    return min(found)


def table(rows: Sequence[Row]) -> str:
    """Markdown: a row an optimizer, ratios to AdamW's."""
    tasks = list(dict.fromkeys(row.task for row in rows))
    by = {(row.task, row.optimizer): row for row in rows}
    head = ["optimizer", *(f"{task}: loss" for task in tasks), *(f"{task}: step, update" for task in tasks)]
    lines = [[*head, "state, bytes a parameter", "on a card"]]
    lines.append(["---"] * len(lines[0]))
    for name in dict.fromkeys(row.optimizer for row in rows):
        found = [by[task, name] for task in tasks]
        references = [by[task, "adamw"] for task in tasks]
        losses = [f"{one.loss:.3g} ({one.loss / ref.loss:.2f})" for one, ref in zip(found, references, strict=True)]
        times = [
            f"{1e3 * one.step_s:.1f} ms ({one.step_s / ref.step_s:.2f}), {1e3 * one.update_s:.2f} "
            f"({one.update_s / ref.update_s:.1f})"
            for one, ref in zip(found, references, strict=True)
        ]
        captured = "captured" if admeta.registry.can_be_captured(name) else "eager update"
        lines.append([f"`{name}`", *losses, *times, f"{found[-1].state_bytes:.1f}", captured])
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--only", nargs="+", default=list(NAMES), help="names, import paths, or a+b; adamw is added")
    parser.add_argument("--points", type=int, default=4, help="settings of each optimizer")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    given = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        (Path(scratch) / "docs").mkdir()
        pages = sorted((Path(__file__).resolve().parents[1] / "docs").glob("*.md"))
        (Path(scratch) / "docs" / "train.txt").write_text("\n".join(page.read_text(encoding="utf-8") for page in pages))
        for task in given.tasks:
            for name in dict.fromkeys(["adamw", *given.only]):
                row = measure(task, name, n_points=given.points, data_dir=Path(scratch), device=given.device)
                print(json.dumps(asdict(row)), flush=True)
                rows.append(row)
    print(f"\n{given.device}, torch {torch.__version__}, {given.points} settings each\n\n{table(rows)}")


if __name__ == "__main__":
    main()
