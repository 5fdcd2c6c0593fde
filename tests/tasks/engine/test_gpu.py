"""The engine on a CUDA card: captured steps equal eager ones, exact resume, memory, divergence."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest
import torch

import admeta
from admeta.baselines import BASELINES
from tasks.engine import checkpoint
from tasks.engine.run import TrainingRun
from tasks.engine.task import release_data
from tasks.errors import Diverged, OutOfMemory
from tasks.registry import parse_config
from tasks.runs import open_run
from tests.tasks.noise import write_noise

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA card"),
]

OPTIMIZERS: dict[str, dict[str, Any]] = {
    "sgdm": {"lr": 0.05, "weight_decay": 1e-4},
    "adam": {"lr": 3e-3},
    "adamw": {"lr": 3e-3},
    "radam": {"lr": 3e-3},
    "adabelief": {"lr": 3e-3},
    "ranger": {"lr": 1e-2},
    "admetar": {"lr": 1e-2, "lambd": 0.1},
    "admetas": {"lr": 0.02, "lambd": 0.9, "weight_decay": 1e-4},
}


def digits(**fields: Any) -> Any:
    return parse_config({"name": "digits", "epochs": 3, **fields})


def start(
    config: Any, optimizer: str = "sgdm", *, data_dir: Path | None = None, params: dict[str, Any] | None = None
) -> TrainingRun:
    params = OPTIMIZERS[optimizer] if params is None else params
    run = open_run(config, optimizer=optimizer, params=params, seed=0, device="cuda", data_dir=data_dir)
    assert isinstance(run, TrainingRun)
    return run


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with four classes of noise."""
    root = tmp_path_factory.mktemp("data")
    tints = {"0": (0, 0, 0), "1": (0, 40, 0), "2": (0, 0, 40), "3": (40, 0, 0)}
    write_noise(root / "noise", tints, n_train=300, n_test=50)
    return root


def noise(**fields: Any) -> Any:
    return parse_config({"name": "image_folder", "data_dir": "noise", "model": "resnet20", "epochs": 3, **fields})


@pytest.mark.parametrize("optimizer", sorted(OPTIMIZERS))
def test_captured_steps_are_the_eager_steps(optimizer: str) -> None:
    losses = {}
    for acceleration in ("eager", "graph"):
        run = start(digits(acceleration=acceleration, deterministic=True, precision="fp32"), optimizer)
        losses[acceleration] = run.advance().metrics["train_loss"]
        status = run.environment()["step"]
        assert status == ("graph: 1 shape(s)" if acceleration == "graph" else "eager: acceleration is 'eager'")
        run.close()
    # The update's implementations round differently, and 18 steps carry that on; other dropout masks would make 5 %.
    assert losses["graph"] == pytest.approx(losses["eager"], rel=5e-3)


def test_captured_runs_of_other_batch_sizes_do_not_mix() -> None:
    """As a worker trains the trials of a searched recipe, one after another."""
    losses = []
    for size in (32, 128, 32):
        run = start(digits(acceleration="graph", deterministic=True, precision="fp32", batch_size=size))
        losses.append([run.advance().metrics["train_loss"] for _ in range(2)])
        assert run.environment()["step"] == "graph: 1 shape(s)"
        run.close()
    assert losses[0] == losses[2] != losses[1]


CAPTURED = ("nadamw", "nadamw+sgdm", "torch.optim:Adamax")


@pytest.mark.parametrize("optimizer", [*BASELINES, *CAPTURED[1:], "torch.optim:Muon+adamw"])
def test_a_baseline_is_captured_or_says_why_not(optimizer: str) -> None:
    losses = {}
    for acceleration in ("eager", "graph"):
        config = digits(acceleration=acceleration, deterministic=True, precision="fp32", model="mlp")
        settings = {"lr": 1e-3, **({"others.lr": 1e-3} if admeta.get(optimizer).others else {})}
        run = start(config, optimizer, params=settings)
        losses[acceleration] = run.advance().metrics["train_loss"]
        if acceleration == "graph":
            refused = "" if optimizer in CAPTURED else f", eager update: {optimizer} cannot be captured"
            assert run.environment()["step"] == f"graph: 1 shape(s){refused}"
        run.close()
    assert losses["graph"] == pytest.approx(losses["eager"], rel=5e-3)


@pytest.mark.parametrize("optimizer", sorted(OPTIMIZERS))
@pytest.mark.parametrize("acceleration", ["eager", "graph"])
def test_resume_is_bit_for_bit_in_deterministic_mode(
    optimizer: str, acceleration: str, pictures: Path, tmp_path: Path
) -> None:
    config = noise(acceleration=acceleration, deterministic=True)
    whole = start(config, optimizer, data_dir=pictures)
    evaluations = [whole.advance() for _ in range(3)]
    first = start(config, optimizer, data_dir=pictures)
    first.advance()
    checkpoint.save(tmp_path, {"run": first.state_dict()}, epoch=1)
    first.close()
    torch.cuda.manual_seed(999)
    state = checkpoint.load_latest(tmp_path)
    assert state is not None
    second = start(config, optimizer, data_dir=pictures)
    second.load_state_dict(state["run"])
    for epoch in (1, 2):
        assert second.advance().metrics == evaluations[epoch].metrics
    for name, value in whole.model.state_dict().items():
        assert torch.equal(value, second.model.state_dict()[name]), name
    whole.close()
    second.close()


def test_dropout_resumes_too(tmp_path: Path) -> None:
    whole, first = (start(digits(deterministic=True)) for _ in range(2))
    evaluations = [whole.advance() for _ in range(3)]
    first.advance()
    second = start(digits(deterministic=True))
    second.load_state_dict(first.state_dict())
    assert [second.advance().metrics for _ in range(2)] == [one.metrics for one in evaluations[1:]]


@pytest.mark.parametrize("clip", [None, 0.1], ids=["free", "clipped"])
@pytest.mark.parametrize("optimizer", ["adamw", "admetar", "ranger"])
def test_bf16_gradients_move_parameters_as_widened_ones(
    optimizer: str, clip: float | None, pictures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit for bit, but for the order in which the norms that clip are summed."""
    finals = []
    for narrow in (True, False):
        monkeypatch.setattr("tasks.engine.step.GRADIENTS_MAY_BE_NARROW", narrow)
        run = start(noise(precision="bf16", deterministic=True, grad_clip=clip), optimizer, data_dir=pictures)
        seen: set[torch.dtype] = set()

        def look(*_: Any, run: TrainingRun = run, seen: set[torch.dtype] = seen) -> None:
            seen.update(p.grad.dtype for p in run.model.parameters() if p.grad is not None)

        run._optimizer.register_step_pre_hook(look)
        run.advance()
        assert run.environment()["step"] == "graph: 1 shape(s)"
        assert (torch.bfloat16 in seen) is narrow
        finals.append(torch.cat([p.detach().flatten() for p in run.model.parameters()]))
        run.close()
    if clip is None:
        assert torch.equal(*finals)
    else:
        assert float((finals[0] - finals[1]).norm() / finals[1].norm()) < 1e-2


@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
def test_captured_adam_is_our_kernels_and_goes_on_anywhere(optimizer: str, tmp_path: Path) -> None:
    """Two epochs in a graph, the third in a graph, eagerly on the card, or on the CPU: torch's own classes there."""
    cls = {"adam": "Adam", "adamw": "AdamW"}[optimizer]
    own, torchs = f"admeta.adam:Kernel{cls}", f"torch.optim.{optimizer}:{cls}"
    params = {"lr": 3e-3, "weight_decay": 0.01}
    first = start(digits(precision="fp32"), optimizer, params=params)
    assert first.environment()["optimizer_class"] == own
    for _ in range(2):
        first.advance()
    checkpoint.save(tmp_path, {"run": first.state_dict()}, epoch=2)
    losses = {}
    for where, acceleration, device in (
        ("graph", "graph", "cuda"),
        ("eager", "eager", "cuda"),
        ("cpu", "eager", "cpu"),
    ):
        state = checkpoint.load_latest(tmp_path)
        assert state is not None
        config = digits(precision="fp32", acceleration=acceleration)
        run = open_run(config, optimizer=optimizer, params=params, seed=0, device=device)
        assert isinstance(run, TrainingRun)
        run.load_state_dict(state["run"])
        losses[where] = run.advance().metrics["train_loss"]
        assert run.environment()["optimizer_class"] == (own if where == "graph" else torchs)
        run.close()
    first.close()
    assert losses["eager"] == pytest.approx(losses["graph"], rel=5e-3)
    assert losses["cpu"] == pytest.approx(losses["graph"], rel=0.2)  # other dropout masks


@pytest.mark.parametrize("optimizer", sorted(OPTIMIZERS))
def test_two_shapes_take_turns(optimizer: str) -> None:
    """Graphs of several shapes share one optimizer: each replay must use its own gradients."""
    finals = {}
    for acceleration in ("eager", "graph"):
        run = start(digits(acceleration=acceleration, deterministic=True, precision="fp32", model="mlp"), optimizer)
        with run._guard("training"):
            run._model.train()
            batches = list(run._task.train_batches(seed=0, epoch=0))
            for index in range(24):
                batch = batches[index % len(batches)]
                rows = (64, 64, 40, 24)[index % 4]
                run._stepper.run([{name: tensor[:rows] for name, tensor in batch.items()}])
        torch.cuda.synchronize()
        if acceleration == "graph":
            assert run.environment()["step"] == "graph: 3 shape(s)"
        finals[acceleration] = torch.cat([p.detach().flatten() for p in run.model.parameters()])
        run.close()
    assert float((finals["graph"] - finals["eager"]).norm() / finals["eager"].norm()) < 1e-3


@pytest.mark.parametrize("optimizer", sorted(OPTIMIZERS))
def test_the_rate_is_read_at_every_replay(optimizer: str) -> None:
    schedule = {"name": "multistep", "milestones": [0.4], "gamma": 0.01}
    finals = {}
    for name, fields in {
        "eager": {"acceleration": "eager", "schedule": schedule},
        "graph": {"acceleration": "graph", "schedule": schedule},
        "constant": {"acceleration": "graph", "schedule": "constant"},
    }.items():
        run = start(digits(model="mlp", deterministic=True, precision="fp32", **fields), optimizer)
        while not run.done:
            run.advance()
        finals[name] = torch.cat([p.detach().flatten() for p in run.model.parameters()])
        run.close()
    error, effect = (float((finals[name] - finals["eager"]).norm()) for name in ("graph", "constant"))
    assert error < 0.1 * effect


def test_divergence_names_the_same_step_as_eager() -> None:
    steps = []
    for acceleration in ("eager", "graph"):
        run = start(digits(model="mlp", acceleration=acceleration, precision="fp32"), params={"lr": 1e9})
        with pytest.raises(Diverged) as caught:
            run.advance()
        steps.append(caught.value.step)
        run.close()
    assert steps[0] == steps[1] > 1


def test_close_gives_memory_back(pictures: Path) -> None:
    start(noise(), data_dir=pictures).close()  # data set, contexts, workspaces
    gc.collect()
    before = torch.cuda.memory_allocated()
    for _ in range(2):
        run = start(noise(), "adamw", data_dir=pictures)
        run.advance()
        assert torch.cuda.memory_allocated() > before
        run.close()
        del run
        gc.collect()
        torch.cuda.empty_cache()
    assert torch.cuda.memory_allocated() <= before + 2**20
    release_data()
    gc.collect()
    assert torch.cuda.memory_allocated() < before


def test_out_of_memory_is_told_and_the_next_run_works(pictures: Path) -> None:
    total = torch.cuda.get_device_properties(0).total_memory
    release_data()
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + 2**30) / total)
    try:
        run = start(noise(batch_size=1000, model="pyramidnet110_a84"), data_dir=pictures)
        with pytest.raises(OutOfMemory, match=r"out of memory on cuda:0 during training: .*resources\.gpus"):
            run.advance()
        run.close()
        del run
        gc.collect()
        start(digits()).advance()
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


def test_record_on_a_card(pictures: Path) -> None:
    run = start(noise(), data_dir=pictures)
    first, second = run.advance(), run.advance()
    assert first.setup_s > 0 == second.setup_s
    assert 0 < second.cost.optimizer_s < second.cost.train_s
    assert second.cost.gpu_s == second.cost.train_s + second.cost.eval_s
    assert second.cost.peak_memory_bytes > 2**20
    environment = run.environment()
    assert environment["device_name"] == torch.cuda.get_device_name(0)
    assert environment["precision"] == "bf16"


@pytest.mark.slow
def test_compiled_steps_train(pictures: Path) -> None:
    run = start(noise(acceleration="compile"), data_dir=pictures)
    first, second = run.advance(), run.advance()
    assert second.metrics["train_loss"] < first.metrics["train_loss"]
    assert run.environment()["step"] == "graph: 1 shape(s), compiled"
