"""Ladders of a model's width through a service: predicted learning rates against swept ones, standard and µP.

    python -m benchmarks.ladder small [--text FILE …] [--home DIR]  gpt, widths 32, 64, 128, predicts 256: for a CPU
    python -m benchmarks.ladder large [--text FILE …] [--home DIR]  gpt, widths 128, 256, 512, predicts 1,024: for a GPU
    python -m benchmarks.ladder vit --data DIR [--home DIR]         vit, widths 64, 128, 192, predicts 384: for a GPU

Each of the two parametrisations is a study with AdmetaR and AdamW. Without --text a gpt reads the sources of the
installed torch, as bytes; vit reads CIFAR-10 from --data. A run that was stopped goes on where it was when it is
started again with the same --home. `admeta scale` is printed of each study; --out writes its answers to a file as
JSON. The small one takes a quarter of an hour on two free cores: with a third of its 120 steps no width learns more
than how frequent each byte is, and losses have no minimum over the learning rate.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from admeta.cli.options import Output
from admeta.cli.output import emit
from admeta.client import Client
from admeta.client.states import StudyState
from admeta.client.terminal.tables import analyses
from benchmarks.time_to_answer import service

MAX_TEXT = 6 * 2**20
TEXT = {"name": "gpt", "data_dir": "text"}
SIZES: dict[str, dict[str, Any]] = {
    "small": {
        "task": {**TEXT, "model": "nano", "context": 32, "batch_size": 16, "tokens_per_epoch": 10_240, "epochs": 6},
        "scale": {"field": "width", "values": [32, 64, 128], "predict": 256, "verify": 5},
        "base_width": 64,
        "lr": {"adamw": (5e-4, 7), "admetar": (2e-3, 7)},
        "seeds": [],
        "resources": {"cpus": 1},
    },
    "large": {
        "task": {**TEXT, "model": "micro", "context": 256, "batch_size": 64, "tokens_per_epoch": 819_200, "epochs": 4},
        "scale": {"field": "width", "values": [128, 256, 512], "predict": 1024, "verify": 5},
        "base_width": 128,
        "lr": {"adamw": (2.5e-4, 7), "admetar": (1e-3, 7)},
        "seeds": [0],
        "resources": {"cpus": 2, "gpus": 0.125},
    },
    "vit": {
        "task": {"name": "cifar10", "model": "vit_tiny", "epochs": 3},
        "scale": {"field": "width", "values": [64, 128, 192], "predict": 384, "verify": 5},
        "base_width": 64,
        "lr": {"adamw": (2.5e-4, 7), "admetar": (1e-3, 7)},
        "seeds": [],
        "resources": {"cpus": 2, "gpus": 0.125},
    },
}


def definition(size: str, parametrization: str) -> dict[str, Any]:
    """The study of one parametrisation: a grid of learning rates in factors of two at each width."""
    chosen = SIZES[size]
    mup = {"parametrization": "mup", "base_width": chosen["base_width"]} if parametrization == "mup" else {}
    optimizers = [
        {"name": name, "space": {"lr": {"type": "categorical", "choices": [low * 2**i for i in range(n)]}}}
        for name, (low, n) in chosen["lr"].items()
    ]
    return {
        "name": f"ladder-{size}-{parametrization}",
        "task": {**chosen["task"], **mup},
        "optimizers": optimizers,
        "scale": chosen["scale"],
        "sampler": {"name": "grid"},
        "pruner": {"name": "none"},
        "confirm": {"top_k": 1, "seeds": chosen["seeds"]} if chosen["seeds"] else {"top_k": 0},
        "resources": chosen["resources"],
    }


def write_text(folder: Path, files: list[Path]) -> None:
    """The training text: the files given, or torch's sources, at most MAX_TEXT bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    if (folder / "train.txt").exists():
        return
    if not files:
        spec = find_spec("torch")
        assert spec is not None
        assert spec.origin is not None
        files = sorted(Path(spec.origin).parent.rglob("*.py"))
    content = b"\n".join(file.read_bytes() for file in files)
    (folder / "train.txt").write_bytes(content[:MAX_TEXT])


def follow(client: Client, studies: list[str], *, minutes: float) -> None:
    """Wait until all studies have ended, or for so many minutes."""
    deadline = time.monotonic() + 60 * minutes
    while time.monotonic() < deadline:
        views = [client.study(study) for study in studies]
        done = [sum(one.n_complete + one.n_failed for one in view.searches) for view in views]
        print(
            time.strftime("%H:%M:%S"),
            *(f"{v.name} {v.state} {n}" for v, n in zip(views, done, strict=True)),
            flush=True,
        )
        if all(StudyState(view.state).is_terminal for view in views):
            return
        time.sleep(10)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("size", choices=SIZES)
    parser.add_argument("--home", type=Path)
    parser.add_argument("--text", type=Path, nargs="*", default=[])
    parser.add_argument("--data", type=Path, help="the folder with CIFAR-10, for vit")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--minutes", type=float, default=600.0, help="then print what there is")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        home = asked.home or Path(scratch) / "home"
        if asked.data is None:
            write_text(home / "data" / "text", asked.text)
        with service(home, asked.data or home / "data") as client:
            names = [client.submit(definition(asked.size, one)).study.name for one in ("standard", "mup")]
            follow(client, names, minutes=asked.minutes)
            for name in names:
                view = client.scale(name)
                print(f"\n{name}")
                emit(view, Output.TABLE, table=analyses.scale)
                print(*analyses.scale_in_words(view), sep="\n")
                if asked.out is not None:
                    asked.out.mkdir(parents=True, exist_ok=True)
                    (asked.out / f"{name}.json").write_text(json.dumps(view.model_dump(mode="json"), indent=1))


if __name__ == "__main__":
    main()
