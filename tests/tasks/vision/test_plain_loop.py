"""The engine against the loop a user would write with torchvision and torch, given the same draws: the same weights.

So where the two differ in accuracy it is by chance (other draws) or by bf16, not by what either computes. Weights are
float64 here: a net with batch norm enlarges float32's rounding tenfold in a few steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from torchvision.transforms import functional

from admeta import registry
from tasks.engine.run import TrainingRun
from tasks.engine.seeds import derive_seed, epoch_order
from tasks.registry import parse_config
from tasks.runs import open_run
from tasks.vision.models import build_image_model
from tasks.vision.task import EpochDraws

EPOCHS, BATCH, SEED = 2, 16, 3
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "sgdm": {"lr": 0.01, "weight_decay": 1e-3},
    "admetas": {"lr": 0.002, "beta": 0.2, "lambd": 0.9, "weight_decay": 1e-3},
}


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(0)
    for split, n in (("train", 40), ("test", 10)):
        for klass in ("a", "b"):
            folder = root / "noise" / split / klass
            folder.mkdir(parents=True)
            for index in range(n):
                coarse = Image.fromarray(rng.integers(0, 256, (4, 4, 3), dtype=np.uint8))
                coarse.resize((32, 32), Image.Resampling.BILINEAR).save(folder / f"{index:02d}.png")
    return root


def torchvision_batches(run: TrainingRun, epoch: int, *, draws_seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """What torchvision's RandomCrop, flip, ToTensor and Normalize make of each image, float64, with given draws."""
    data = run._task.data
    mean, std = ([value / 255 for value in values] for values in (data.mean, data.std))
    order = torch.from_numpy(epoch_order(len(data.train), seed=SEED, epoch=epoch))
    n = len(order) // BATCH * BATCH
    draws = EpochDraws.draw(n, pad=4, seed=draws_seed, epoch=epoch, device=torch.device("cpu"))
    for begin in range(0, n, BATCH):
        batch = []
        for position in range(begin, begin + BATCH):
            pixels = data.train.images[data.train.rows[order[position]]].numpy()
            image = functional.pad(Image.fromarray(pixels), [4, 4, 4, 4])
            image = functional.crop(image, int(draws.top[position]), int(draws.left[position]), 32, 32)
            if draws.flip[position]:
                image = functional.hflip(image)
            batch.append(functional.normalize(functional.pil_to_tensor(image).double() / 255, mean, std))
        yield torch.stack(batch), data.train.labels[order[begin : begin + BATCH]]


def plain_loop(run: TrainingRun, optimizer: str, *, draws_seed: int) -> nn.Module:
    """A model trained as in torch's tutorials: its own schedulers, SGD from torch, AdmetaS one tensor at a time."""
    model = fresh_model()
    params = OPTIMIZERS[optimizer]
    if optimizer == "sgdm":
        plain: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), momentum=0.9, nesterov=True, **params)
    else:
        plain = registry.create(optimizer, model.parameters(), **params, foreach=False)
    warmup = torch.optim.lr_scheduler.LinearLR(plain, start_factor=1 / 2, end_factor=1.0, total_iters=1)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(plain, T_max=6)
    schedule = torch.optim.lr_scheduler.SequentialLR(plain, [warmup, cosine], milestones=[2])
    model.train()
    for epoch in range(EPOCHS):
        for inputs, labels in torchvision_batches(run, epoch, draws_seed=draws_seed):
            loss = nn.functional.cross_entropy(model(inputs).float(), labels)
            plain.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            plain.step()
            schedule.step()
    return model


def fresh_model() -> nn.Module:
    torch.manual_seed(derive_seed(SEED, "weights"))
    return build_image_model("resnet20", n_classes=2, image_size=32).double()


def weights(model: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def exactly_normalized(run: TrainingRun, images: Tensor) -> Tensor:
    """As `ImageTask.normalize`, in float64."""
    mean, std = (torch.tensor(values, dtype=torch.float64) for values in (run._task.data.mean, run._task.data.std))
    return ((images.double() - mean) / std).permute(0, 3, 1, 2)


@pytest.mark.parametrize("optimizer", sorted(OPTIMIZERS))
def test_the_engine_is_the_plain_loop(images: Path, optimizer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(images / "cache"))
    task = {"data_dir": "noise", "model": "resnet20", "epochs": EPOCHS, "batch_size": BATCH}
    config = parse_config({"name": "image_folder", **task, "schedule": {"name": "cosine", "warmup": 0.25}})
    run = open_run(config, optimizer=optimizer, params=OPTIMIZERS[optimizer], seed=SEED, data_dir=images, device="cpu")
    assert isinstance(run, TrainingRun)
    run._model.double()
    pixels = torch.arange(256, dtype=torch.uint8).repeat(12).view(1, 32, 32, 3)
    torch.testing.assert_close(run._task.normalize(pixels), exactly_normalized(run, pixels).float())
    monkeypatch.setattr(run._task, "normalize", partial(exactly_normalized, run))
    while not run.done:
        run.advance()
    assert run.step == 8
    begin, ours = weights(fresh_model()), weights(run.model)
    same = weights(plain_loop(run, optimizer, draws_seed=SEED))
    other = weights(plain_loop(run, optimizer, draws_seed=SEED + 1))  # other crops and flips of the same batches
    moved = (ours - begin).norm()
    assert (ours - same).norm() < 1e-10 * moved
    assert (ours - other).norm() > 0.5 * moved
