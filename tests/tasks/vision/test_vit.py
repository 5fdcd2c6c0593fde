"""Small vision transformers from scratch: sizes, recipe, learning, resume, captured steps."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import admeta
from tasks.engine.run import TrainingRun
from tasks.errors import ConfigError
from tasks.registry import parse_config
from tasks.runs import check, open_run
from tasks.vision.models import VIT_SIZES, build_image_model
from tests.tasks.noise import write_noise

TINTS = {"grey": (0, 0, 0), "green": (0, 55, 0), "red": (55, 0, 0)}


def config(**fields: Any) -> Any:
    base = {"name": "image_folder", "data_dir": "noise", "image_size": 8, "model": "vit_tiny", "batch_size": 16}
    return parse_config({**base, "epochs": 4, "augment": "none", **fields})


@pytest.fixture
def few_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """vit_tiny with 2 layers of 48, which train in a second."""
    monkeypatch.setitem(VIT_SIZES, "vit_tiny", (2, 3, 48))


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("data")
    write_noise(root / "noise", TINTS, n_train=50, n_test=10)
    return root


def start(
    data_dir: Path, *, optimizer: str = "adamw", device: str = "cpu", params: Any = None, **fields: Any
) -> TrainingRun:
    settings = params or {"lr": 2e-3}
    run = open_run(config(**fields), optimizer=optimizer, params=settings, seed=0, data_dir=data_dir, device=device)
    assert isinstance(run, TrainingRun)
    return run


@pytest.mark.parametrize(("name", "millions"), [("vit_tiny", 5.7), ("vit_small", 22.0)])
def test_on_imagenet_they_have_deits_parameters(name: str, millions: float) -> None:
    """Touvron et al., ICML 2021, table 1: 5 and 22 million; patches of 16, 1,000 classes."""
    with torch.device("meta"):
        model = build_image_model(name, n_classes=1000, image_size=224)
        small = build_image_model(name, n_classes=10, image_size=32)
    assert sum(p.numel() for p in model.parameters()) / 1e6 == pytest.approx(millions, abs=0.1)
    assert model.get_parameter("encoder.pos_embedding").shape[1] == 1 + 14 * 14
    assert small.get_parameter("encoder.pos_embedding").shape[1] == 1 + 8 * 8


def test_they_have_their_own_recipe_and_what_is_set_stays() -> None:
    own = parse_config({"name": "cifar10", "model": "vit_small"})
    assert (own.epochs, own.batch_size, own.schedule.name, own.schedule.warmup) == (100, 128, "cosine", 0.1)
    assert (own.label_smoothing, own.weight_decay_on) == (0.1, "all")
    said = {"epochs": 160, "schedule": "constant", "label_smoothing": 0.0}
    other = parse_config({"name": "cifar10", "model": "vit_small", **said})
    assert (other.epochs, other.schedule.name, other.label_smoothing) == (160, "constant", 0.0)
    assert type(other).model_validate_json(other.model_dump_json()) == other
    assert parse_config({"name": "cifar10"}).label_smoothing == 0.0


@pytest.mark.usefixtures("few_layers")
def test_it_learns_and_resumes_exactly(pictures: Path) -> None:
    check(config(), data_dir=pictures, optimizers={"muon": ("muon", [{"lr": 0.01, "others.lr": 1e-3}])})
    run = start(pictures)
    run.advance()
    kept = io.BytesIO()
    torch.save(run.state_dict(), kept)
    while not run.done:
        last = run.advance()
    assert last.metrics["val_accuracy"] > 0.8
    assert run.test()["test_accuracy"] > 0.8
    kept.seek(0)
    again = start(pictures)
    again.load_state_dict(torch.load(kept, weights_only=True))
    while not again.done:
        repeated = again.advance()
    assert repeated.metrics == last.metrics
    assert all(map(torch.equal, run.model.parameters(), again.model.parameters()))


@pytest.mark.usefixtures("few_layers")
@pytest.mark.parametrize("optimizer", ["admetas", "muon"])
def test_other_optimizers_train_it(pictures: Path, optimizer: str) -> None:
    params = {"lr": 0.01, "others.lr": 5e-4} if admeta.get(optimizer).others else {"lr": 0.01}
    run = start(pictures, optimizer=optimizer, params=params, epochs=1)
    assert run.advance().metrics["train_loss"] < 1.15  # nats; log 3 is 1.10


def test_blocks_are_compiled_one_by_one(pictures: Path) -> None:
    run = start(pictures)
    regions = run._task.compile_regions(run.model)
    assert len(regions) == VIT_SIZES["vit_tiny"][0]
    assert all(type(region) is type(regions[0]) and isinstance(region, nn.Module) for region in regions)


def test_images_that_patches_do_not_fill_are_refused(pictures: Path) -> None:
    with pytest.raises(ConfigError, match=r"model 'vit_tiny' does not take .* 10×10: .*a multiple of their patches"):
        check(config(image_size=10), data_dir=pictures)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA card")
@pytest.mark.parametrize("acceleration", ["graph", "compile"])
def test_captured_steps_learn_as_eager_ones(pictures: Path, acceleration: str) -> None:
    losses = {}
    for kind in ("eager", acceleration):
        run = start(pictures, device="cuda", acceleration=kind)
        losses[kind] = [run.advance().metrics["train_loss"] for _ in range(2)]
        if kind != "eager":
            assert run.step_status.startswith("graph: 1 shape(s)")
        run.close()
    assert losses[acceleration] == pytest.approx(losses["eager"], rel=0.1)
