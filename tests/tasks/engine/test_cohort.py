"""Runs in a cohort are the runs they would be alone, whatever the other slots do."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tasks.engine.cohort import Cohort
from tasks.engine.protocol import Evaluation
from tasks.engine.task import release_data
from tasks.errors import Diverged, TaskError
from tasks.registry import parse_config
from tests.tasks.engine.slots import JOBS, alone, assert_equal, config, join, train, write_reviews


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
def test_a_slot_that_diverges_changes_no_other(model: str, no_noise: None, cohort_of: Callable[..., Cohort]) -> None:
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
def test_on_a_card_texts_are_stacked(no_noise: None, cohort_of: Callable[..., Cohort], tmp_path: Path) -> None:
    """Their masks keep torch from its flash attention, and its memory-efficient one has no backward pass in a stack."""
    write_reviews(tmp_path, n_train=160)
    cfg = parse_config({"name": "text_classification", "model": "tiny", "batch_size": 8, "epochs": 1})
    jobs = (JOBS[1], JOBS[3])
    cohort = cohort_of(cfg, n_slots=2, data_dir=tmp_path, device="cuda")
    members = [join(cohort, cfg, job) for job in jobs]
    for ours, job in zip(train(cohort, *members), jobs, strict=True):
        assert_equal(ours, alone(cfg, job, data_dir=tmp_path, device="cuda").advance(), rel=5e-2)
