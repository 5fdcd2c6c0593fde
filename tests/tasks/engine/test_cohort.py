"""Runs in a cohort are the runs they would be alone, whatever the other slots do."""

from __future__ import annotations

import io
import json
import logging
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import nn

from tasks.engine.cohort import Cohort, CohortMember
from tasks.engine.protocol import Evaluation
from tasks.engine.slots import SlotRun, Slots
from tasks.engine.task import release_data
from tasks.errors import CannotStackError, Diverged, NanFromAnotherRun, NanInSeveralRuns, TaskError
from tasks.gpt import GptTask
from tasks.registry import parse_config
from tasks.runs import open_run
from tasks.text.task import TextTask, compiled_width
from tasks.text.tokens import BUCKET, bucket_widths
from tasks.vision.datasets import DigitsTask
from tests.tasks.text.conftest import reviews, write_csv

log = logging.getLogger(__name__)

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


def join(cohort: Slots[Any], cfg: Any, job: tuple[str, dict[str, Any], int]) -> Any:
    optimizer, params, seed = job
    return cohort.open(cfg, optimizer=optimizer, params=params, seed=seed)


def alone(cfg: Any, job: tuple[str, dict[str, Any], int], **where: Any) -> Any:
    optimizer, params, seed = job
    return open_run(cfg, optimizer=optimizer, params=params, seed=seed, **{"device": "cpu", **where})


def train(cohort: Slots[Any], *members: SlotRun) -> list[Evaluation]:
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


class Zeros(torch.autograd.Function):
    """Adds the other slots' values times zero, as some kernels of grouped convolutions do."""

    @staticmethod
    def forward(x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Nothing is needed."""

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int], x: torch.Tensor) -> tuple[torch.Tensor, int]:
        x = x.movedim(in_dims[0], 0)
        return x + 0 * x.sum(0, keepdim=True), 0


class ZerosInBackward(Zeros):
    """As `Zeros`, of the gradients alone: they are NaN after one step, and the losses in the next."""

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int], x: torch.Tensor) -> tuple[torch.Tensor, int]:
        x = x.movedim(in_dims[0], 0).clone()
        if x.requires_grad:
            x.register_hook(lambda gradient: gradient + 0 * gradient.sum(0, keepdim=True))
        return x, 0


class Leaking(nn.Module):
    """A model of which what is infinite in one slot makes all others NaN in the same step."""

    def __init__(self, n_classes: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(64, 32), nn.Linear(32, n_classes)
        self.root = nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = Zeros.apply(self.score(x) + self.root.sqrt())  # type: ignore[no-untyped-call]
        return out

    def score(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.last(torch.relu(self.first(x.flatten(1))))
        return out


class LeakingLater(Leaking):
    """As `Leaking`, but in the next step. Where `root` is 0, its gradient is infinite though the loss is not."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mixed: torch.Tensor = ZerosInBackward.apply(self.root)  # type: ignore[no-untyped-call]
        return self.score(x) + mixed.sqrt()


BAD: tuple[str, dict[str, Any], int] = ("sgdm", {"lr": 1e30}, 0)


def outcomes(cohort: Cohort, *members: CohortMember) -> list[Any]:
    """Of an epoch of each, trained together: the evaluation or the error."""
    for member in members:
        member.begin()
    while any(member.is_training for member in members):
        cohort.step()
    return [outcome(member) for member in members]


def outcome(member: CohortMember) -> Evaluation | TaskError:
    try:
        return member.finish()
    except TaskError as error:
        return error


def test_of_slots_that_are_nan_at_once_none_has_diverged(cohort_of: Callable[..., Cohort]) -> None:
    """And the one that joins after them is what it would be alone."""
    cfg = config(model=f"{__name__}:Leaking")
    cohort = cohort_of(cfg, n_slots=3)
    members = [join(cohort, cfg, job) for job in (JOBS[0], BAD, JOBS[2])]
    assert [type(one) for one in outcomes(cohort, *members)] == [NanInSeveralRuns] * 3
    members[0].close()
    comes = join(cohort, cfg, JOBS[1])  # beside the others, whose workers have not closed them yet
    assert_equal(outcomes(cohort, comes)[0], alone(cfg, JOBS[1]).advance())
    with pytest.raises(Diverged, match="diverged at step 2"):
        alone(cfg, BAD).advance()


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0)])
def test_of_slots_that_are_nan_in_turn_the_first_has_diverged(
    order: tuple[int, ...], cohort_of: Callable[..., Cohort]
) -> None:
    """In whatever order they end their epochs; and a slot that begins one meanwhile goes on from its checkpoint too."""
    cfg = config(model=f"{__name__}:LeakingLater")
    cohort = cohort_of(cfg, n_slots=4)
    members = [join(cohort, cfg, job) for job in (JOBS[0], BAD, JOBS[2], JOBS[1])]
    late = members.pop()
    for member in members:
        member.begin()
    for _ in range(3):
        cohort.step()
    late.begin()
    while any(member.is_training for member in members):
        cohort.step()
    found = {slot: outcome(members[slot]) for slot in order}
    assert [type(found[slot]) for slot in range(3)] == [NanFromAnotherRun, Diverged, NanFromAnotherRun]
    assert str(found[1]) == "diverged at step 2: loss is nan"
    members[1].close()
    while late.is_training:
        cohort.step()
    assert type(outcome(late)) is NanFromAnotherRun


def test_nan_of_the_last_step_is_not_saved(cohort_of: Callable[..., Cohort]) -> None:
    """Its losses are finite and its weights are not; the run that diverged has no bad loss yet either."""
    cfg = config(model=f"{__name__}:LeakingLater")
    cohort = cohort_of(cfg, n_slots=2)
    good, bad = join(cohort, cfg, JOBS[0]), join(cohort, cfg, ("sgdm", {"lr": 0.05}, 1))
    good.begin()
    for _ in range(good._steps_per_epoch - 1):
        cohort.step()
    bad.begin()
    with torch.no_grad():
        bad._model.root.zero_()  # type: ignore[union-attr, operator]
    cohort.step()
    assert not good.is_training
    assert type(outcome(good)) is NanInSeveralRuns
    while bad.is_training:
        cohort.step()
    assert isinstance(outcome(bad), NanInSeveralRuns)


def test_a_slot_between_epochs_may_be_what_made_others_nan(cohort_of: Callable[..., Cohort]) -> None:
    """Its loss on another's batch is infinite, which is forgotten as it begins an epoch; so is one that was closed."""
    cfg = config(model=f"{__name__}:Leaking")
    for ends in ("begins", "closed"):
        cohort = cohort_of(cfg, n_slots=2)
        good, idle = join(cohort, cfg, JOBS[0]), join(cohort, cfg, JOBS[2])
        good.begin()
        cohort.step()
        with torch.no_grad():
            idle._model.first.weight.fill_(1e38)  # type: ignore[union-attr, operator]
        cohort.step()
        if ends == "closed":
            idle.close()
        else:
            with torch.no_grad():
                idle._model.first.weight.fill_(0.01)  # type: ignore[union-attr, operator]
            idle.begin()
        while good.is_training:
            cohort.step()
        assert type(outcome(good)) is NanInSeveralRuns


def test_an_optimizer_that_raises_on_nan_may_have_it_from_another_run(cohort_of: Callable[..., Cohort]) -> None:
    cfg = config(model=f"{__name__}:Leaking")
    cohort = cohort_of(cfg, n_slots=2)
    careful = (f"{__name__}:Careful", {"lr": 0.1}, 0)
    members = [join(cohort, cfg, job) for job in (careful, BAD)]
    assert [type(one) for one in outcomes(cohort, *members)] == [NanInSeveralRuns] * 2


class Careful(torch.optim.SGD):
    """Raises where a gradient is NaN."""

    def step(self, closure: Any = None) -> Any:
        if any(p.grad.isnan().any() for group in self.param_groups for p in group["params"]):
            raise torch.linalg.LinAlgError("the gradient is NaN")  # type: ignore[attr-defined]
        return super().step(closure)


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


class Noting(nn.Module):
    """A model that notes which attention kernels its stacked passes may take."""

    may_take: ClassVar[set[tuple[bool, bool]]] = set()

    def __init__(self, n_classes: int) -> None:
        super().__init__()
        self.linear = nn.Linear(64, n_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if torch._C._functorch.is_batchedtensor(x):
            memory_efficient, cudnn = (
                torch.backends.cuda.mem_efficient_sdp_enabled(),  # type: ignore[no-untyped-call]
                torch.backends.cuda.cudnn_sdp_enabled(),  # type: ignore[no-untyped-call]
            )
            self.may_take.add((memory_efficient, cudnn))
        out: torch.Tensor = self.linear(x.flatten(1))
        return out


def test_a_stack_takes_no_attention_kernel_that_vmap_breaks(cohort_of: Callable[..., Cohort]) -> None:
    """On a card the memory-efficient kernel has no backward pass under vmap, and cuDNN's asks for another layout."""
    cfg = config(model=f"{__name__}:Noting")
    join(cohort_of(cfg, n_slots=2), cfg, JOBS[0]).advance()
    assert Noting.may_take == {(False, False)}
    assert torch.backends.cuda.mem_efficient_sdp_enabled()  # type: ignore[no-untyped-call]


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


def write_reviews(folder: Path, *, n_train: int) -> None:
    """Texts of a classification task in its data folder."""
    write_csv(folder / "train.csv", reviews(n_train, seed=0))
    write_csv(folder / "test.csv", reviews(60, seed=1))


def test_texts_of_different_widths_are_padded_to_one(
    no_noise: None, cohort_of: Callable[..., Cohort], tmp_path: Path
) -> None:
    write_reviews(tmp_path, n_train=160)
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


@pytest.mark.parametrize(("most", "expected"), [(128, 16), (64, 8), (100, 16), (384, 48), (512, 64), (8, 8)])
def test_texts_that_are_compiled_have_eight_widths_at_most(most: int, expected: int) -> None:
    """dynamo compiles no more shapes; and no width is more than the one that the longest row is padded to anyway."""
    longest = int(bucket_widths(np.asarray([most]))[0])
    found = {width: compiled_width(width, most=most) for width in range(BUCKET, longest + 1, BUCKET)}
    assert len(set(found.values())) <= torch._dynamo.config.recompile_limit
    assert max(found.values()) == longest
    assert all(0 <= wide - width < expected for width, wide in found.items())
    assert all(wide % expected == 0 for wide in found.values() if wide < longest)


def test_the_texts_of_a_compiled_cohort_are_padded_further(
    no_noise: None, cohort_of: Callable[..., Cohort], tmp_path: Path
) -> None:
    """To multiples of 16 of 128 tokens, which changes no result."""
    write_reviews(tmp_path, n_train=80)
    fields = {"name": "text_classification", "model": "tiny", "batch_size": 8, "epochs": 1}
    cfg = parse_config({**fields, "acceleration": "compile"})
    cohort = cohort_of(cfg, n_slots=2, data_dir=tmp_path)
    members = [join(cohort, cfg, job) for job in (JOBS[1], JOBS[3])]
    task = members[0]._task
    batches = [next(iter(task.train_batches(seed=seed, epoch=0))) for seed in range(6)]
    assert {task.align([batch])[0]["attention_mask"].shape[-1] % 16 for batch in batches} == {0}
    assert {batch["attention_mask"].shape[-1] % 16 for batch in batches} == {0, 8}
    for ours, job in zip(train(cohort, *members), (JOBS[1], JOBS[3]), strict=True):
        assert_equal(ours, alone(cfg, job, data_dir=tmp_path).advance(), rel=1e-3)


COMPILES = """
import json, sys, torch
from tasks.engine.cohort import Cohort
from tasks.engine.stacked_model import StackedTask
from tasks.registry import parse_config
from torch._dynamo.utils import counters  # it sets a folder for compiled code itself

device = sys.argv[1]
config = parse_config({"name": "digits", "model": "mlp", "epochs": 1, "acceleration": "compile"})
member = Cohort(config, n_slots=2, device=device).open(config, optimizer="sgdm", params={"lr": 0.1}, seed=0)
if device == "cuda":
    member.advance()
else:  # where a cohort does not compile
    [batch, *_] = member._task.train_batches(seed=0, epoch=0)
    model = member._stack._model
    rows = {name: torch.stack([tensor, tensor]) for name, tensor in batch.items()}
    StackedTask(member._task, model, compiled=True).loss(model, rows).sum().backward()
print(json.dumps(counters["inductor"]))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "device",
    [
        pytest.param("cpu", marks=pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")),
        pytest.param(
            "cuda",
            marks=[
                pytest.mark.gpu,
                pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA card"),
            ],
        ),
    ],
)
def test_the_next_process_does_not_compile_again(device: str, tmp_path: Path) -> None:
    """A cohort of the same shapes finds on its node what the first one compiled."""
    environment = {name: value for name, value in os.environ.items() if name != "TORCHINDUCTOR_CACHE_DIR"}
    environment["XDG_CACHE_HOME"] = str(tmp_path)
    counts, took_s = [], []
    for _ in range(2):
        begin = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-c", COMPILES, device], env=environment, capture_output=True, text=True, check=True
        )
        took_s.append(time.perf_counter() - begin)
        counts.append(json.loads(done.stdout.splitlines()[-1]))
    first, second = counts
    assert first["fxgraph_cache_miss"] > 0
    assert second["fxgraph_cache_hit"] == first["fxgraph_cache_miss"]
    assert "fxgraph_cache_miss" not in second
    assert any((tmp_path / "admeta-search" / "inductor").iterdir())
    log.warning("%s: the first process took %.1f s, the second %.1f s", device, *took_s)


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


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA card")
@pytest.mark.parametrize("acceleration", ["graph", "compile"])
def test_on_a_card_a_slot_that_diverges_fails_no_other(
    acceleration: str, no_noise: None, cohort_of: Callable[..., Cohort]
) -> None:
    """Whether a kernel makes other slots NaN depends on cuDNN: those are then neither failed nor fine."""
    cfg = config(model="convnet", acceleration=acceleration)
    cohort = cohort_of(cfg, n_slots=4, device="cuda")
    members = [join(cohort, cfg, job) for job in (JOBS[0], ("sgdm", {"lr": 1e30}, 0), JOBS[1], JOBS[2])]
    for member in members:
        member.begin()
    while members[0].is_training:
        cohort.step()
    bad, *others = [outcome(members[slot]) for slot in (1, 0, 2, 3)]
    log.warning("%s: %s; %s", acceleration, bad, [type(one).__name__ for one in others])
    if any(isinstance(one, NanInSeveralRuns) for one in others):
        assert isinstance(bad, NanInSeveralRuns)
    else:
        assert isinstance(bad, Diverged)
    for found, job in zip(others, JOBS, strict=False):
        if not isinstance(found, NanFromAnotherRun):
            assert isinstance(found, Evaluation)
            assert_equal(found, alone(cfg, job, device="cuda").advance(), rel=5e-2)
