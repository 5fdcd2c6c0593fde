"""One run over two cards: the loss curve of one card, captured and eager, and a rank's death told at once."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from tasks.errors import RankLost
from tasks.registry import parse_config
from tasks.runs import open_run
from tests.tasks.engine.test_distributed import children, curve
from tests.tasks.noise import write_noise

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA cards"),
]


def start(*, n_devices: int, optimizer: str = "sgdm", params: Any = None, **fields: Any) -> Any:
    config = parse_config({"name": "digits", "model": "mlp", "epochs": 5, "grad_clip": 1.0, **fields})
    return open_run(config, optimizer=optimizer, params=params or {"lr": 0.05}, seed=0, n_devices=n_devices)


@pytest.mark.parametrize(
    ("optimizer", "params", "acceleration"),
    [
        ("sgdm", {"lr": 0.05}, "eager"),
        ("sgdm", {"lr": 0.05}, "graph"),
        ("admetar", {"lr": 0.01}, "graph"),
        ("admetar", {"lr": 0.01}, "eager"),
        ("sgdm", {"lr": 0.05}, "compile"),
    ],
)
def test_two_cards_train_as_one_does(acceleration: str, optimizer: str, params: Any) -> None:
    curves = []
    for n_devices in (1, 2):
        run = start(
            n_devices=n_devices, optimizer=optimizer, params=params, acceleration=acceleration, precision="fp32"
        )
        curves.append(curve(run))
        assert run.environment()["step"].startswith("graph" if acceleration != "eager" else "eager")
        run.close()
    # The same sums in another order: float32 rounding, grown over 90 steps.
    assert curves[1] == pytest.approx(curves[0], rel=1e-3)
    print(acceleration, optimizer, max(abs(a - b) / a for a, b in zip(*curves, strict=True)))  # noqa: T201 - a figure


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """A data folder with two classes of noise."""
    write_noise(tmp_path / "noise", {"dark": (0, 0, 0), "light": (20, 20, 20)}, n_train=320, n_test=32)
    return tmp_path


@pytest.mark.parametrize(
    ("acceleration", "deterministic"), [("eager", False), ("graph", False), ("graph", True), ("compile", False)]
)
def test_batch_norm_is_over_both_cards(pictures: Path, acceleration: str, deterministic: bool) -> None:
    fields = {"acceleration": acceleration, "deterministic": deterministic, "precision": "fp32"}
    cfg = parse_config(
        {"name": "image_folder", "data_dir": "noise", "model": "resnet20", "epochs": 1, "batch_size": 64, **fields}
    )
    curves, statistics = [], []
    for n_devices in (1, 2):
        run = open_run(cfg, optimizer="sgdm", params={"lr": 0.005}, seed=0, data_dir=pictures, n_devices=n_devices)
        curves.append(curve(run))
        assert run.environment()["step"].startswith("graph" if acceleration != "eager" else "eager")
        weights = run.state_dict()["model"]
        statistics.append(torch.cat([weights[name].cpu() for name in sorted(weights) if "running" in name]))
        again = open_run(cfg, optimizer="sgdm", params={"lr": 0.005}, seed=0, data_dir=pictures)
        again.load_state_dict(run.state_dict())  # of any number of cards
        assert again.test() == pytest.approx(run.test(), abs=1e-3)
        again.close()
        run.close()
    # Ten steps: seen are 1e-5 and 5e-5; with norms over each rank's half 5e-4 and 4e-2 (two processes on a CPU).
    assert curves[1] == pytest.approx(curves[0], rel=1e-4)
    torch.testing.assert_close(statistics[1], statistics[0], rtol=0, atol=1e-3)


def test_accumulation_on_two_cards() -> None:
    curves = []
    for n_devices in (1, 2):
        run = start(n_devices=n_devices, accumulation=2, batch_size=32, precision="fp32")
        curves.append(curve(run))
        run.close()
    assert curves[1] == pytest.approx(curves[0], rel=1e-3)


@pytest.mark.parametrize("acceleration", ["eager", "graph"])
def test_a_rank_that_dies_is_told_though_rank_0_waits_on_its_card(acceleration: str) -> None:
    run = start(n_devices=2, epochs=100_000, acceleration=acceleration)
    try:
        run.advance()
        begin = time.monotonic()
        os.kill(int(children()[-1]), signal.SIGKILL)
        with pytest.raises(RankLost, match="ended with exit code -9"):
            curve(run)
        assert time.monotonic() - begin < 60
    finally:
        run.close()
    assert children() == []
    after = start(n_devices=2)  # the process can go on with the next run
    assert len(curve(after)) == 10
    after.close()
