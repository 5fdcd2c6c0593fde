"""The engine's loop on digits: seeds, resume, divergence, accumulation, records."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch

from tasks.engine import checkpoint
from tasks.engine.run import TrainingRun
from tasks.engine.seeds import derive_seed
from tasks.errors import CheckpointError, ConfigError, DataError, Diverged, OutOfMemory, TaskError
from tasks.registry import parse_config
from tasks.runs import check, open_run

SGDM = {"lr": 0.05}
SIZES = ((32, "constant"), (128, "cosine"))


def config(**fields: Any) -> Any:
    return parse_config({"name": "digits", "epochs": 3, **fields})


def start(cfg: Any = None, *, optimizer: str = "sgdm", params: Any = None, seed: int = 0) -> TrainingRun:
    run = open_run(cfg or config(), optimizer=optimizer, params=params or SGDM, seed=seed, device="cpu")
    assert isinstance(run, TrainingRun)
    return run


def weights(run: TrainingRun) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in run.model.state_dict().items()}


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_digits_are_learnt_in_one_demo_trial() -> None:
    run = start(config(epochs=15))
    while not run.done:
        evaluation = run.advance()
    assert evaluation.epoch == 15 == run.epoch
    assert evaluation.step == 15 * 18 == run.step
    assert evaluation.metrics["val_accuracy"] >= 0.97
    assert run.test()["test_accuracy"] >= 0.97
    with pytest.raises(TaskError, match="spent its 15 epochs"):
        run.advance()


def test_same_seed_same_run_whatever_the_optimizer() -> None:
    first, again, other = start(), start(), start(seed=1)
    adam = start(optimizer="adamw", params={"lr": 1e-3})
    assert same(weights(first), weights(again))
    assert same(weights(first), weights(adam))
    assert not same(weights(first), weights(other))
    batches = [list(run._task.train_batches(seed=run._seed, epoch=2)) for run in (first, adam, other)]
    for ours, theirs in zip(batches[0], batches[1], strict=True):
        assert torch.equal(ours["images"], theirs["images"])
    assert not torch.equal(batches[0][0]["labels"], batches[2][0]["labels"])
    assert first.advance().metrics == again.advance().metrics
    assert same(weights(first), weights(again))


def test_the_loop_is_the_textbooks() -> None:
    """Two epochs equal a loop written by hand over the same batches, to the last bit: rate, update, evaluation."""
    run = start(config(epochs=2, schedule={"name": "cosine", "warmup": 0.1}, model="convnet"))
    torch.manual_seed(derive_seed(0, "weights"))
    model = run._task.build_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    warmup = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=1 / 4, end_factor=1.0, total_iters=3)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=32)
    schedule = torch.optim.lr_scheduler.SequentialLR(optimizer, [warmup, cosine], milestones=[4])
    for epoch in range(2):
        model.train()
        torch.manual_seed(derive_seed(0, "noise", epoch))
        losses = []
        for batch in run._task.train_batches(seed=0, epoch=epoch):
            loss = torch.nn.functional.cross_entropy(model(run._task.normalize(batch["images"])), batch["labels"])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
            losses.append(float(loss.detach()))
        evaluation = run.advance()
        assert evaluation.metrics["train_loss"] == pytest.approx(sum(losses) / len(losses), rel=1e-5)
    for ours, theirs in zip(run.model.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)
    data = run._task.data.val
    model.eval()
    predicted = model(run._task.normalize(data.images[data.rows])).argmax(dim=1)
    assert evaluation.metrics["val_accuracy"] == float((predicted == data.labels).double().mean())


@pytest.mark.parametrize(
    ("optimizer", "params"),
    [
        ("sgdm", {"lr": 0.05}),
        ("adamw", {"lr": 3e-3}),
        ("admetar", {"lr": 0.01, "lambd": 0.1}),
        ("admetas", {"lr": 0.02}),
    ],
)
@pytest.mark.parametrize("stop_after", [1, 2])
def test_resume_is_bit_for_bit(optimizer: str, params: dict[str, Any], stop_after: int, tmp_path: Any) -> None:
    whole = start(optimizer=optimizer, params=params)
    evaluations = [whole.advance() for _ in range(3)]
    first = start(optimizer=optimizer, params=params)
    for _ in range(stop_after):
        first.advance()
    checkpoint.save(tmp_path, {"run": first.state_dict(), "history": [1.0]}, epoch=first.epoch)
    first.close()
    torch.manual_seed(999)  # whatever the process did in between
    torch.rand(17)
    state = checkpoint.load_latest(tmp_path)
    assert state is not None
    second = start(optimizer=optimizer, params=params)
    second.load_state_dict(state["run"])
    assert second.epoch == stop_after
    while not second.done:
        evaluation = second.advance()
        assert evaluation.metrics == evaluations[second.epoch - 1].metrics
        assert evaluation.lr == evaluations[second.epoch - 1].lr
    assert same(weights(whole), weights(second))
    assert second.test() == whole.test()


@pytest.mark.parametrize(
    ("other", "field"),
    [
        ({"optimizer": "adamw", "params": {"lr": 1e-3}}, "optimizer"),
        ({"params": {"lr": 0.06}}, "params"),
        ({"seed": 5}, "seed"),
        ({"cfg": config(model="mlp")}, "model"),
        ({"cfg": config(epochs=4)}, "config"),
    ],
)
def test_a_checkpoint_of_another_run_is_refused(other: dict[str, Any], field: str) -> None:
    state = start().state_dict()
    with pytest.raises(CheckpointError, match=f"its {field} is"):
        start(**other).load_state_dict(state)
    with pytest.raises(CheckpointError, match="holds no run"):
        start().load_state_dict({})
    del state["optimizer"]
    with pytest.raises(CheckpointError, match="has no 'optimizer'"):
        start().load_state_dict(state)


def test_runs_of_other_recipes_in_one_process_do_not_mix() -> None:
    """As a worker trains the trials of a searched recipe, one after another."""
    small, large = (config(model="linear", batch_size=size, schedule={"name": name}) for size, name in SIZES)
    first, second, third = (start(cfg) for cfg in (small, large, small))
    found = [run.advance() for run in (first, second, third)]
    assert [one.step for one in found] == [37, 9, 37]
    assert found[0].metrics == found[2].metrics != found[1].metrics
    with pytest.raises(CheckpointError, match="its config is"):
        second.load_state_dict(first.state_dict())


def test_a_checkpoint_of_an_earlier_release_is_this_runs() -> None:
    """Whose configuration lacked a field: it had what is today's default. One that knows more is of a later release."""
    state = start().state_dict()
    written = json.loads(state["identity"]["config"])
    del written["grad_clip"], written["schedule"]["warmup"]
    state["identity"]["config"] = json.dumps(written)
    resumed = start()
    resumed.load_state_dict(state)
    written["mixup"] = 0.2
    state["identity"]["config"] = json.dumps(written)
    with pytest.raises(CheckpointError, match="its config is"):
        start().load_state_dict(state)
    state["identity"]["config"] = "torn"
    with pytest.raises(CheckpointError, match="its config is"):
        start().load_state_dict(state)


def test_divergence_names_the_step() -> None:
    run = start(config(model="mlp"), params={"lr": 1e30})
    with pytest.raises(Diverged, match=r"^diverged at step \d+: loss is (nan|inf)$") as caught:
        run.advance()
    assert 1 < caught.value.step <= 18
    assert not math.isfinite(caught.value.loss)


def test_accumulation_equals_the_larger_batch() -> None:
    # Without batch norm and dropout, two halves make the same gradient as the whole, up to rounding.
    whole = start(config(model="mlp", batch_size=64, epochs=1))
    halves = start(config(model="mlp", batch_size=32, accumulation=2, epochs=1))
    a, b = whole.advance(), halves.advance()
    assert a.step == b.step == 18
    assert a.metrics["train_loss"] == pytest.approx(b.metrics["train_loss"], rel=1e-4)
    assert a.samples_per_s > 0


def test_clipping_bounds_the_gradient() -> None:
    run = start(config(model="mlp", grad_clip=1e-3), params={"lr": 1.0, "momentum": 0.0, "nesterov": False})
    before = weights(run)
    run.advance()
    moved = math.sqrt(sum(float((weights(run)[name] - before[name]).square().sum()) for name in before))
    assert moved <= 18 * 1e-3 * 1.001


def test_weight_decay_on_matrices_leaves_biases_alone() -> None:
    run = start(config(weight_decay_on="matrices"), params={"lr": 0.1, "weight_decay": 0.5})
    groups = run._optimizer.param_groups
    assert [group["weight_decay"] for group in groups] == [0.5, 0.0]
    assert all(parameter.ndim >= 2 for parameter in groups[0]["params"])


def test_batch_larger_than_the_training_set_is_refused() -> None:
    with pytest.raises(ConfigError, match="is 2000, more than the 1197 training samples"):
        check(config(batch_size=1000, accumulation=2))
    with pytest.raises(ConfigError):
        start(config(batch_size=1198))


def test_unknown_device_is_refused() -> None:
    with pytest.raises(ConfigError, match="not a torch device"):
        open_run(config(), optimizer="sgdm", params=SGDM, seed=0, device="abacus")


def test_record_of_a_run() -> None:
    run = start()
    evaluation = run.advance().as_dict()
    assert evaluation["metrics"].keys() == {"val_accuracy", "val_loss", "train_loss"}
    assert 0 < evaluation["cost"]["optimizer_s"] < evaluation["cost"]["train_s"]
    assert evaluation["cost"]["peak_memory_bytes"] > 10_000_000
    assert evaluation["cost"]["gpu_s"] == 0
    environment = run.environment()
    assert environment["step"] == run.step_status == "eager: no GPU"
    assert environment["versions"]["torch"] == torch.__version__.split("+")[0]
    assert environment["parameters"] == 9978
    run.close()
    run.close()


def test_init_from_starts_with_those_weights(tmp_path: Any) -> None:
    trained = start()
    trained.advance()
    state = trained.state_dict()
    path = tmp_path / checkpoint.save(tmp_path, {"run": state}, epoch=1, best={"model": state["model"]})
    plain = tmp_path / "plain.pt"
    torch.save(trained.model.state_dict(), plain)
    for file in (path, tmp_path / "best.pt", plain):
        tuned = open_run(config(), optimizer="adamw", params={"lr": 1e-4}, seed=3, device="cpu", init_from=file)
        assert isinstance(tuned, TrainingRun)
        assert same(weights(tuned), weights(trained))
        assert tuned.epoch == 0
    (tmp_path / "link.pt").symlink_to("/etc/hostname")
    by_config = config(init_from="best.pt")
    check(by_config, data_dir=tmp_path)
    tuned = open_run(by_config, optimizer="adamw", params={"lr": 1e-4}, seed=3, device="cpu", data_dir=tmp_path)
    assert isinstance(tuned, TrainingRun)
    assert same(weights(tuned), weights(trained))
    with pytest.raises(CheckpointError, match="of another model"):
        check(config(init_from="best.pt", model="mlp"), data_dir=tmp_path)
    with pytest.raises(DataError, match="is not in the data folder"):
        check(config(init_from="gone.pt"), data_dir=tmp_path)
    with pytest.raises(DataError, match="leads out of the data folder"):
        check(config(init_from="link.pt"), data_dir=tmp_path)
    by_trial = config(init_from={"study": "s", "optimizer": "o", "trial": 1})
    check(by_trial, data_dir=tmp_path)
    with pytest.raises(ConfigError, match="trial 1 of s/o was not resolved to a file"):
        open_run(by_trial, optimizer="adamw", params={"lr": 1e-4}, seed=3, device="cpu", data_dir=tmp_path)
    with pytest.raises(CheckpointError, match="of another model"):
        open_run(config(model="mlp"), optimizer="sgdm", params=SGDM, seed=0, device="cpu", init_from=path)


def test_out_of_memory_is_ours_with_the_phase(monkeypatch: pytest.MonkeyPatch) -> None:
    run = start()

    def no_room(*args: Any) -> None:
        raise torch.OutOfMemoryError("Tried to allocate 2.00 GiB. GPU 0 has no room. And so on.")

    monkeypatch.setattr(run._task, "loss", no_room)
    with pytest.raises(
        OutOfMemory, match=r"out of memory on cpu during training: Tried to allocate 2\.00 GiB\. Run"
    ) as e:
        run.advance()
    assert e.value.phase == "training"
    run.close()
