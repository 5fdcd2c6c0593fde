"""Of the runs of a cohort that become NaN or infinite, those fail that diverged by themselves."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tasks.engine.cohort import Cohort, CohortMember
from tasks.engine.protocol import Evaluation
from tasks.errors import Diverged, NanFromAnotherRun, NanInSeveralRuns, TaskError
from tests.tasks.engine.models import Leaking, LeakingLater, import_path
from tests.tasks.engine.slots import JOBS, alone, assert_equal, config, join

log = logging.getLogger(__name__)


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
    cfg = config(model=import_path(Leaking))
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
    cfg = config(model=import_path(LeakingLater))
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
    cfg = config(model=import_path(LeakingLater))
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
    cfg = config(model=import_path(Leaking))
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
    cfg = config(model=import_path(Leaking))
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
