"""Runs side by side in one process are the runs they would be alone, to the bit, dropout included."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tasks.engine.side_by_side import AHEAD, SideBySide
from tasks.errors import Diverged, TaskError
from tasks.registry import parse_config, why_not_side_by_side
from tests.tasks.engine.slots import JOBS, alone, join, train, write_reviews

on_a_card = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA card")
DEVICES = [pytest.param("cpu"), pytest.param("cuda", marks=[pytest.mark.gpu, on_a_card])]


def config(**fields: Any) -> Any:
    return parse_config({"name": "digits", "model": "mlp", "epochs": 3, "precision": "fp32", **fields})


@pytest.fixture
def together() -> Iterator[Callable[..., SideBySide]]:
    opened: list[SideBySide] = []

    def make(cfg: Any, **where: Any) -> SideBySide:
        opened.append(SideBySide(cfg, **{"n_slots": 4, "device": "cpu", **where}))
        return opened[-1]

    yield make
    for one in opened:
        one.close()


def weights_of(run: Any) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in run.model.parameters()])


def has_dropout(run: Any) -> bool:
    return any(isinstance(module, nn.Dropout) and module.p > 0 for module in run.model.modules())


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("model", ["mlp", "convnet"])
def test_a_run_beside_others_is_the_run_that_it_would_be_alone(
    model: str, device: str, together: Callable[..., SideBySide]
) -> None:
    """Four optimizers; other batch sizes, a clipped one; one begins its epochs in the middle of the others'.

    The convnet has dropout. Deterministic kernels, so that a card's runs can be compared to the bit.
    """
    fixed = {"model": model, "deterministic": True}
    configs = [config(**fixed, **more) for more in ({}, {"batch_size": 32}, {"grad_clip": 0.5}, {"schedule": "cosine"})]
    place = together(configs[0], device=device)
    members = [join(place, cfg, job) for cfg, job in zip(configs, JOBS, strict=True)]
    for member in members[:3]:
        member.begin()
    for _ in range(5):
        place.step()
    members[3].begin()
    epochs: list[list[tuple[dict[str, float], torch.Tensor]]] = [[] for _ in members]
    while any(len(ended) < 2 for ended in epochs):
        place.step()
        for member, ended in zip(members, epochs, strict=True):
            if not member.is_training and len(ended) < 2:
                ended.append((member.finish().metrics, weights_of(member)))
                if len(ended) < 2:
                    member.begin()
    assert has_dropout(members[0]) == (model == "convnet")
    for cfg, job, ended in zip(configs, JOBS, epochs, strict=True):
        run = alone(cfg, job, device=device)
        for metrics, weights in ended:
            assert metrics == run.advance().metrics
            assert torch.equal(weights, weights_of(run))
        run.close()


@pytest.mark.parametrize("device", DEVICES)
def test_texts_of_many_widths_too(device: str, together: Callable[..., SideBySide], tmp_path: Path) -> None:
    """A graph for each width, and dropout in each; the runs' streams of noise must not meet."""
    write_reviews(tmp_path, n_train=160)
    raw = {"name": "text_classification", "model": "tiny", "batch_size": 8, "epochs": 2, "deterministic": True}
    cfg = parse_config({**raw, "precision": "fp32"})
    place = together(cfg, data_dir=tmp_path, device=device)
    members = [join(place, cfg, job) for job in JOBS[:3]]
    ours = [train(place, *members) for _ in range(2)][-1]
    assert has_dropout(members[0])
    for evaluation, member, job in zip(ours, members, JOBS, strict=False):
        run = alone(cfg, job, data_dir=tmp_path, device=device)
        run.advance()
        assert evaluation.metrics == run.advance().metrics
        assert torch.equal(weights_of(member), weights_of(run))


def test_a_run_is_resumed_exactly_beside_others(together: Callable[..., SideBySide]) -> None:
    cfg = config()
    place = together(cfg)
    members = [join(place, cfg, job) for job in JOBS[:2]]
    train(place, *members)
    state = copy.deepcopy(members[0].state_dict())
    expected = train(place, *members)[0]
    members[0].close()
    again = join(place, cfg, JOBS[0])
    again.load_state_dict(state)
    members[1].begin()
    place.step()
    assert again.advance().metrics == expected.metrics


class Refusing(torch.optim.SGD):
    """Raises in its third step."""

    n_steps = 0

    def step(self, closure: Any = None) -> Any:
        self.n_steps += 1
        if self.n_steps == 3:
            raise ValueError("no third step")
        return super().step(closure)


@pytest.mark.parametrize("device", DEVICES)
def test_a_run_that_fails_or_diverges_ends_alone(device: str, together: Callable[..., SideBySide]) -> None:
    cfg = config(model="convnet", deterministic=True)
    place = together(cfg, device=device)
    raising = (f"{__name__}:Refusing", {"lr": 0.1}, 0)
    members = [join(place, cfg, job) for job in (JOBS[0], ("sgdm", {"lr": 1e30}, 0), raising)]
    for member in members:
        member.begin()
    while any(member.is_training for member in members):
        place.step()
    with pytest.raises(Diverged):
        members[1].finish()
    with pytest.raises(ValueError, match="no third step"):
        members[2].finish()
    assert members[0].finish().metrics == alone(cfg, JOBS[0], device=device).advance().metrics


def test_a_place_is_given_back(together: Callable[..., SideBySide]) -> None:
    cfg = config()
    place = together(cfg, n_slots=2)
    members = [join(place, cfg, job) for job in JOBS[:2]]
    with pytest.raises(TaskError, match="all 2 places of the process are taken"):
        join(place, cfg, JOBS[2])
    members[0].close()
    members[0].close()
    assert place.n_free == 1
    third = join(place, cfg, JOBS[2])
    assert third.environment()["side_by_side"] == {"runs": 2}
    assert third.advance().epoch == 1


def test_torch_stays_as_it_is_set_until_the_last_run_is_closed(together: Callable[..., SideBySide]) -> None:
    def settings() -> tuple[bool, bool, str]:
        strict = torch.are_deterministic_algorithms_enabled()
        return strict, torch.backends.cudnn.deterministic, torch.get_float32_matmul_precision()

    before = settings()
    cfg = config(deterministic=True)
    place = together(cfg, n_slots=2)
    first, second = (join(place, cfg, job) for job in JOBS[:2])
    during = settings()
    assert during == (True, True, "highest") != before
    first.close()
    assert settings() == during
    second.advance()
    place.close()
    assert settings() == before


def test_the_rest_of_the_process_keeps_its_noise(together: Callable[..., SideBySide]) -> None:
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    cfg = config()
    member = join(together(cfg), cfg, JOBS[0])
    member.advance()
    member.close()
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.gpu
@on_a_card
def test_on_a_card_each_run_has_its_stream_and_is_few_steps_ahead(together: Callable[..., SideBySide]) -> None:
    """Kernels on one stream would follow one another; a run far ahead would let the card wait while it is evaluated."""
    cfg = config(model="convnet")
    place = together(cfg, device="cuda")
    members = [join(place, cfg, job) for job in JOBS[:3]]
    assert len({member._stream.cuda_stream for member in members if member._stream is not None}) == 3
    for member in members:
        member.begin()
    while any(member.is_training for member in members):
        place.step()
        assert all(len(member._launched) <= AHEAD for member in members)
    held = [member.finish().held_bytes for member in members]
    assert len(set(held)) == 1
    assert all(member.step_status == "graph: 1 shape(s)" for member in members)
    stream = members[0]._stream
    members[0].close()
    assert join(place, cfg, JOBS[3])._stream is stream


def test_an_epoch_ends_with_its_last_step_and_not_with_its_launch(together: Callable[..., SideBySide]) -> None:
    """An evaluation that waited for the run's own steps would launch nothing for the others meanwhile."""
    place = together(config())
    ending, other = (join(place, config(), job) for job in JOBS[:2])
    ending.begin()
    while ending.is_training:
        place.step()
    under_way = _UnderWay()
    ending._launched.append(under_way)  # type: ignore[arg-type]
    other.begin()
    left = other._steps_left
    place.step()
    assert (ending.is_training, other._steps_left, under_way.n_waits) == (True, left - 1, 0)
    other._steps_left = 0
    place.step()  # nothing is to be launched
    assert (ending.is_training, under_way.n_waits) == (False, 1)
    assert ending.finish().epoch == 1


class _UnderWay:
    """A step on a card that has not ended."""

    n_waits = 0

    def query(self) -> bool:
        return False

    def synchronize(self) -> None:
        self.n_waits += 1


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        ({"name": "digits"}, ""),
        ({"name": "synthetic"}, "task 'synthetic' is not trained by the engine"),
        ({"name": "digits", "acceleration": "eager"}, "acceleration is 'eager'"),
        ({"name": "digits", "acceleration": "compile"}, "acceleration is 'compile'"),
    ],
)
def test_what_has_a_process_of_its_own_says_why(raw: dict[str, Any], reason: str) -> None:
    assert why_not_side_by_side(parse_config(raw)).startswith(reason)
    assert bool(why_not_side_by_side(parse_config(raw))) == bool(reason)
