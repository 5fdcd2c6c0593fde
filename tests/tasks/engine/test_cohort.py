"""Runs in a cohort are the runs they would be alone, whatever the other slots do."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tasks.engine.cohort import Cohort, CohortMember
from tasks.engine.protocol import Evaluation
from tasks.engine.task import release_data
from tasks.errors import CannotStackError, Diverged, TaskError
from tasks.gpt import GptTask
from tasks.registry import parse_config
from tasks.runs import open_run
from tasks.text.task import TextTask
from tasks.vision.datasets import DigitsTask
from tests.tasks.text.conftest import reviews, write_csv

JOBS: list[tuple[str, dict[str, Any], int]] = [
    ("sgdm", {"lr": 0.05, "weight_decay": 1e-4}, 0),
    ("adamw", {"lr": 3e-3}, 0),
    ("admetar", {"lr": 0.01, "lambd": 0.1}, 1),
    ("admetas", {"lr": 0.02}, 2),
]


def config(**fields: Any) -> Any:
    return parse_config({"name": "digits", "model": "mlp", "epochs": 3, **fields})


@pytest.fixture
def no_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without dropout, whose noise is the cohort's."""

    def quiet(build: Callable[[Any], nn.Module]) -> Callable[[Any], nn.Module]:
        def built(task: Any) -> nn.Module:
            model = build(task)
            for module in model.modules():
                if isinstance(module, nn.Dropout):
                    module.p = 0.0
            return model

        return built

    for task in (DigitsTask, GptTask, TextTask):
        monkeypatch.setattr(task, "build_model", quiet(task.build_model))


@pytest.fixture
def cohort_of() -> Iterator[Callable[..., Cohort]]:
    opened: list[Cohort] = []

    def make(cfg: Any, *, n_slots: int, **where: Any) -> Cohort:
        opened.append(Cohort(cfg, n_slots=n_slots, **{"device": "cpu", **where}))
        return opened[-1]

    yield make
    for cohort in opened:
        cohort.close()


def join(cohort: Cohort, cfg: Any, job: tuple[str, dict[str, Any], int]) -> CohortMember:
    optimizer, params, seed = job
    return cohort.open(cfg, optimizer=optimizer, params=params, seed=seed)


def alone(cfg: Any, job: tuple[str, dict[str, Any], int], **where: Any) -> Any:
    optimizer, params, seed = job
    return open_run(cfg, optimizer=optimizer, params=params, seed=seed, **{"device": "cpu", **where})


def train(cohort: Cohort, *members: CohortMember) -> list[Evaluation]:
    """An epoch of each, together."""
    for member in members:
        member.begin()
    while any(member.is_training for member in members):
        cohort.step()
    return [member.finish() for member in members]


def assert_equal(ours: Evaluation, theirs: Evaluation, *, rel: float = 1e-4) -> None:
    assert (ours.epoch, ours.step, ours.lr) == (theirs.epoch, theirs.step, theirs.lr)
    assert ours.metrics.keys() == theirs.metrics.keys()
    for name in ("train_loss", "val_loss"):
        assert ours.metrics[name] == pytest.approx(theirs.metrics[name], rel=rel), name


@pytest.mark.parametrize("model", ["mlp", "convnet"])
def test_a_slot_is_the_run_that_it_would_be_alone(model: str, no_noise: None, cohort_of: Callable[..., Cohort]) -> None:
    """Four optimizers; one slot clips, one has another schedule, and one begins its epochs in the middle of others'."""
    configs = [
        config(model=model),
        config(model=model, grad_clip=0.5),
        config(model=model, schedule="cosine"),
        config(model=model),
    ]
    cohort = cohort_of(configs[0], n_slots=4)
    *first, late = members = [join(cohort, cfg, job) for cfg, job in zip(configs, JOBS, strict=True)]
    evaluations: list[list[Evaluation]] = [[] for _ in members]
    for member in first:
        member.begin()
    cohort.step()
    for cfg, job, member in zip(configs, JOBS, first, strict=False):
        run = alone(cfg, job)
        run.train_steps(1)
        for ours, theirs in zip(member.model.parameters(), run.model.parameters(), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)
    for _ in range(6):
        cohort.step()
    late.begin()
    while any(len(seen) < 2 for seen in evaluations):
        cohort.step()
        for member, seen in zip(members, evaluations, strict=True):
            if not member.is_training and len(seen) < 2:
                seen.append(member.finish())
                if len(seen) < 2:
                    member.begin()
    for cfg, job, member, seen in zip(configs, JOBS, members, evaluations, strict=True):
        run = alone(cfg, job)
        for ours in seen:
            # Where rounding moves one value across a ReLU's or a pooling's edge, the gradient jumps.
            assert_equal(ours, run.advance(), rel=5e-2 if model == "convnet" else 1e-4)
        assert member.model.state_dict().keys() == run.model.state_dict().keys()
        assert member.test().keys() == run.test().keys()


def test_a_decoders_slots_are_its_runs(no_noise: None, cohort_of: Callable[..., Cohort], tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("the quick brown fox jumps over a lazy dog\n" * 120)
    fields = {"name": "gpt", "model": "nano", "train_file": "train.txt", "context": 16, "batch_size": 16, "epochs": 1}
    cfg = parse_config({**fields, "tokenizer": "bytes", "tokens_per_epoch": 3_000})
    cohort = cohort_of(cfg, n_slots=2, data_dir=tmp_path)
    for job, ours in zip(JOBS, train(cohort, *(join(cohort, cfg, job) for job in JOBS[:2])), strict=False):
        assert_equal(ours, alone(cfg, job, data_dir=tmp_path).advance(), rel=1e-3)


def test_an_epoch_is_resumed_exactly(cohort_of: Callable[..., Cohort]) -> None:
    cfg = config()
    whole = cohort_of(cfg, n_slots=3)
    members = [join(whole, cfg, job) for job in JOBS[:3]]
    evaluations = [train(whole, *members) for _ in range(3)]
    first = cohort_of(cfg, n_slots=3)
    members = [join(first, cfg, job) for job in JOBS[:3]]
    train(first, *members)
    states = []
    for member in members:
        stored = io.BytesIO()
        torch.save(member.state_dict(), stored)
        stored.seek(0)
        states.append(torch.load(stored, weights_only=True))
    second = cohort_of(cfg, n_slots=3)
    members = [join(second, cfg, job) for job in JOBS[:3]]
    for member, state in zip(members, states, strict=True):
        member.load_state_dict(state)
    for expected in evaluations[1:]:
        for ours, theirs in zip(train(second, *members), expected, strict=True):
            assert ours.metrics == theirs.metrics


def test_a_checkpoint_holds_one_slot_alone(cohort_of: Callable[..., Cohort]) -> None:
    def size(run: Any) -> int:
        stored = io.BytesIO()
        torch.save(run.state_dict(), stored)
        return len(stored.getvalue())

    cfg = config()
    cohort = cohort_of(cfg, n_slots=8)
    member, run = join(cohort, cfg, JOBS[1]), alone(cfg, JOBS[1])
    member.advance()
    run.advance()
    assert size(member) < 1.1 * size(run)


@pytest.mark.parametrize("model", ["mlp", "convnet"])
def test_a_slot_that_diverges_touches_no_other(model: str, no_noise: None, cohort_of: Callable[..., Cohort]) -> None:
    cfg = config(model=model)
    bad = ("sgdm", {"lr": 1e12}, 1)
    seen: list[list[Evaluation]] = []
    for jobs in (JOBS[:3], [JOBS[0], bad, JOBS[2]]):
        cohort = cohort_of(cfg, n_slots=3)
        good, other, third = (join(cohort, cfg, job) for job in jobs)
        seen.append([])
        for member in (good, other, third):
            member.begin()
        for _ in range(2):
            while good.is_training:
                cohort.step()
            if jobs[1] is bad and other._training is not None:
                with pytest.raises(Diverged, match="diverged at step"):
                    other.finish()
            for member in (good, third):
                seen[-1].append(member.finish())
                member.begin()
    assert [one.metrics for one in seen[0]] == [one.metrics for one in seen[1]]


def test_a_slot_is_freed_and_taken_by_the_next_run(cohort_of: Callable[..., Cohort]) -> None:
    cfg = config()
    cohort = cohort_of(cfg, n_slots=2)
    stays, goes = join(cohort, cfg, JOBS[0]), join(cohort, cfg, JOBS[1])
    with pytest.raises(TaskError, match="all 2 slots of the cohort are taken"):
        join(cohort, cfg, JOBS[2])
    seen = [train(cohort, stays, goes)[0]]
    goes.close()
    goes.close()
    assert cohort.n_free == 1
    comes = join(cohort, cfg, JOBS[2])
    assert (comes.slot, cohort.n_free) == (1, 0)
    one, other = train(cohort, stays, comes)
    seen.append(one)
    run = alone(cfg, JOBS[0])
    for ours in seen:
        assert_equal(ours, run.advance())
    assert_equal(other, alone(cfg, JOBS[2]).advance())
    assert comes.step_status == "slot 2 of 2 of a cohort, eager: no GPU"
    assert comes.environment()["cohort"] == {"slot": 1, "slots": 2}


def test_a_slot_between_epochs_stays_as_it_is(cohort_of: Callable[..., Cohort]) -> None:
    """Its norms' statistics too, though the stacked pass computes them for every slot."""
    cfg = config(model="convnet")
    cohort = cohort_of(cfg, n_slots=2)
    waits, works = join(cohort, cfg, JOBS[0]), join(cohort, cfg, JOBS[1])
    train(cohort, waits, works)
    before, scores = waits.state_dict(), waits.test()
    works.advance()
    after = waits.state_dict()
    assert all(torch.equal(after["model"][name], value) for name, value in before["model"].items())
    assert waits.test() == scores
    assert "noise" in waits.environment()["cohort"]


class Replacing(torch.optim.Optimizer):
    """SGD that gives the weights new memory."""

    def __init__(self, params: Any, lr: float = 0.1) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                p.data = p.data - float(group["lr"]) * p.grad


class Failing(torch.optim.SGD):
    """Raises in its third step."""

    n_steps = 0

    def step(self, closure: Any = None) -> Any:
        self.n_steps += 1
        if self.n_steps == 3:
            raise ArithmeticError("no third step")
        return super().step(closure)


def test_an_optimizer_may_replace_the_weights_or_fail(cohort_of: Callable[..., Cohort]) -> None:
    cfg = config()
    cohort = cohort_of(cfg, n_slots=3)
    jobs: list[tuple[str, dict[str, Any], int]] = [
        (f"{__name__}:Replacing", {"lr": 0.1}, 0),
        (f"{__name__}:Failing", {"lr": 0.1}, 0),
        JOBS[0],
    ]
    replacing, failing, other = (join(cohort, cfg, job) for job in jobs)
    for member in (replacing, failing, other):
        member.begin()
    while replacing.is_training:
        cohort.step()
    assert_equal(replacing.finish(), alone(cfg, ("torch.optim:SGD", {"lr": 0.1}, 0)).advance())
    with pytest.raises(ArithmeticError, match="no third step"):
        failing.finish()
    assert_equal(other.finish(), alone(cfg, JOBS[0]).advance())


class Reading(nn.Module):
    """A model that branches on a value."""

    def __init__(self, n_classes: int) -> None:
        super().__init__()
        self.linear = nn.Linear(64, n_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.linear(x.flatten(1))
        return out if out.sum() > 0 else -out


def test_what_cannot_be_stacked_says_why(cohort_of: Callable[..., Cohort]) -> None:
    cfg = config(model=f"{__name__}:Reading")
    with pytest.raises(CannotStackError, match=r"the model cannot be stacked .*data-dependent control flow"):
        join(cohort_of(cfg, n_slots=2), cfg, JOBS[0])
    with pytest.raises(CannotStackError, match="accumulation is 2"):
        cohort_of(config(accumulation=2), n_slots=2)
    with pytest.raises(CannotStackError, match="deterministic"):
        cohort_of(config(deterministic=True), n_slots=2)
    with pytest.raises(CannotStackError, match="not trained by the engine"):
        cohort_of(parse_config({"name": "synthetic"}), n_slots=2)
    cohort = cohort_of(config(), n_slots=2)
    with pytest.raises(CannotStackError, match="differs from the cohort's in batch_size"):
        join(cohort, config(batch_size=32), JOBS[0])
    join(cohort, config(), JOBS[0]).advance()  # a refusal leaves the slot free


def test_texts_of_different_widths_are_padded_to_one(
    no_noise: None, cohort_of: Callable[..., Cohort], tmp_path: Path
) -> None:
    write_csv(tmp_path / "train.csv", reviews(160, seed=0))
    write_csv(tmp_path / "test.csv", reviews(60, seed=1))
    cfg = parse_config({"name": "text_classification", "model": "tiny", "batch_size": 8, "epochs": 1})
    cohort = cohort_of(cfg, n_slots=2, data_dir=tmp_path)
    jobs = (JOBS[1], JOBS[3])
    members = [join(cohort, cfg, job) for job in jobs]
    widths = [
        [batch["input_ids"].shape[-1] for batch in member._task.train_batches(seed=seed, epoch=0)]
        for member, (_, _, seed) in zip(members, jobs, strict=True)
    ]
    assert widths[0] != widths[1]
    for ours, job in zip(train(cohort, *members), jobs, strict=True):
        assert_equal(ours, alone(cfg, job, data_dir=tmp_path).advance(), rel=1e-3)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA card")
@pytest.mark.parametrize("acceleration", ["eager", "graph"])
def test_on_a_card_a_cohort_is_captured_once(
    acceleration: str, no_noise: None, cohort_of: Callable[..., Cohort]
) -> None:
    release_data()
    cfg = config(model="convnet", precision="fp32", acceleration=acceleration)
    cohort = cohort_of(cfg, n_slots=3, device="cuda")
    members = [join(cohort, cfg, job) for job in JOBS[:3]]
    first = train(cohort, *members)
    members[1].close()
    members[1] = join(cohort, cfg, JOBS[3])
    before = members[0]._stack.stepper.setup_steps
    second = train(cohort, *members)
    assert members[0]._stack.stepper.setup_steps == before
    how = "graph: 1 shape(s)" if acceleration == "graph" else "eager: acceleration is 'eager'"
    assert members[1].step_status == f"slot 2 of 3 of a cohort, {how}"
    runs = [alone(cfg, job, device="cuda") for job in JOBS]
    for job, ours in zip(runs[:3], first, strict=True):
        assert_equal(ours, job.advance(), rel=2e-2)
    for job, ours in zip((runs[0], runs[3], runs[2]), second, strict=True):
        assert_equal(ours, job.advance(), rel=3e-2)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA card")
@pytest.mark.parametrize("acceleration", ["graph", "compile"])
def test_on_a_card_a_slot_that_diverges_touches_no_other(
    acceleration: str, no_noise: None, cohort_of: Callable[..., Cohort]
) -> None:
    cfg = config(model="convnet", acceleration=acceleration)
    cohort = cohort_of(cfg, n_slots=4, device="cuda")
    members = [join(cohort, cfg, job) for job in (JOBS[0], ("sgdm", {"lr": 1e30}, 0), JOBS[1], JOBS[2])]
    for member in members:
        member.begin()
    while members[0].is_training:
        cohort.step()
    with pytest.raises(Diverged):
        members[1].finish()
    for member, job in zip((members[0], *members[2:]), JOBS, strict=False):
        assert_equal(member.finish(), alone(cfg, job, device="cuda").advance(), rel=5e-2)
