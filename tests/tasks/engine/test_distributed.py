"""One run over several processes: the same training as in one, the same resume, and nobody left behind."""

from __future__ import annotations

import copy
import os
import signal
import subprocess
import sys
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tasks.engine.distributed import DistributedRun
from tasks.engine.run import TrainingRun
from tasks.errors import CheckpointError, ConfigError, Diverged, RankLost
from tasks.registry import parse_config
from tasks.runs import open_run
from tests.machine import wait_until

SGDM = {"lr": 0.05}


def config(**fields: Any) -> Any:
    return parse_config({"name": "digits", "model": "mlp", "epochs": 3, "grad_clip": 1.0, **fields})


def start(cfg: Any = None, *, n_devices: int, optimizer: str = "sgdm", params: Any = None) -> Any:
    return open_run(
        cfg or config(), optimizer=optimizer, params=params or SGDM, seed=0, device="cpu", n_devices=n_devices
    )


def curve(run: Any) -> list[float]:
    losses = []
    while not run.done:
        evaluation = run.advance()
        losses += [evaluation.metrics["train_loss"], evaluation.metrics["val_loss"]]
    return losses


def children() -> list[str]:
    found = subprocess.run(["pgrep", "-P", str(os.getpid()), "-f", "tasks.engine.distributed"], capture_output=True)
    return found.stdout.decode().split()


@pytest.mark.slow
@pytest.mark.parametrize(("optimizer", "params"), [("sgdm", SGDM), ("admetar", {"lr": 0.01})])
def test_two_ranks_train_as_one_process_does(optimizer: str, params: dict[str, float]) -> None:
    alone = start(n_devices=1, optimizer=optimizer, params=params)
    assert isinstance(alone, TrainingRun)
    pair = start(n_devices=2, optimizer=optimizer, params=params)
    assert isinstance(pair, DistributedRun)
    try:
        # The same sums in another order: float32 rounding, grown over 54 steps.
        assert curve(pair) == pytest.approx(curve(alone), rel=2e-4)
        assert pair.test() == pytest.approx(alone.test(), abs=0.01)
        assert pair.step == alone.step == 54
        assert pair.environment()["n_devices"] == 2
        assert pair.step_status == alone.step_status == "eager: no GPU"
    finally:
        pair.close()
        pair.close()
    assert children() == []
    assert not dist.is_initialized()


@pytest.mark.slow
def test_a_resume_equals_the_uninterrupted_run_and_may_change_the_number_of_cards() -> None:
    whole = start(n_devices=2)
    try:
        whole.advance()
        state = copy.deepcopy(whole.state_dict())
        rest = curve(whole)
    finally:
        whole.close()
    again = start(n_devices=2)
    try:
        again.load_state_dict(copy.deepcopy(state))
        assert again.epoch == 1
        assert curve(again) == rest
    finally:
        again.close()
    alone = start(n_devices=1)
    alone.load_state_dict(copy.deepcopy(state))
    assert curve(alone) == pytest.approx(rest, rel=2e-4)


@pytest.mark.slow
def test_another_runs_checkpoint_is_refused_as_by_one_process_and_the_run_can_begin_anew() -> None:
    state = start(n_devices=1, params={"lr": 0.01}).state_dict()
    run = start(n_devices=2)
    try:
        with pytest.raises(CheckpointError, match="its params is"):
            run.load_state_dict(state)
    finally:
        run.close()
    assert children() == []
    again = start(n_devices=2)
    try:
        again.advance()
    finally:
        again.close()


@pytest.mark.slow
def test_a_rank_that_dies_ends_the_run_with_its_name() -> None:
    run = start(config(epochs=2000, batch_size=60), n_devices=3)
    try:
        run.advance()
        os.kill(int(children()[-1]), signal.SIGKILL)
        with pytest.raises(RankLost, match=r"the process of rank \d ended with exit code -9"):
            curve(run)
    finally:
        run.close()
    assert children() == []


@pytest.mark.slow
def test_divergence_is_a_result_on_all_ranks() -> None:
    run = start(config(grad_clip=None), n_devices=2, params={"lr": 1e30})
    try:
        with pytest.raises(Diverged):
            curve(run)
    finally:
        run.close()
    assert children() == []


@pytest.mark.slow
def test_the_other_ranks_end_with_rank_0_however_it_dies() -> None:
    code = (
        "import sys; from tests.tasks.engine.test_distributed import config, start\n"
        "run = start(config(epochs=10000), n_devices=2); print('up', flush=True)\n"
        "while True: run.advance()"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        found = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True, check=True)
        pids = [int(pid) for pid in found.stdout.split()]
        assert len(pids) == 1
        process.kill()
    wait_until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pids), what="no rank outlives rank 0")


def test_what_cannot_be_shared_is_refused() -> None:
    with pytest.raises(ConfigError, match="batch_size 63 cannot be divided evenly among 2 cards"):
        start(config(batch_size=63), n_devices=2)
    if torch.cuda.device_count() < 2:
        with pytest.raises(ConfigError, match="needs 2 cards, but this process sees"):
            open_run(config(), optimizer="sgdm", params=SGDM, seed=0, n_devices=2)
