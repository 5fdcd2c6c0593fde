"""Image models: parameter counts against the papers and an independent count, shapes, and what does not fit."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

from tasks.errors import ConfigError
from tasks.vision.config import CIFAR_MODELS, TORCHVISION_MODELS
from tasks.vision.models import _weights_without_memory, build_image_model, check_model

# He et al., CVPR 2016, table 6, in millions (they count to two digits).
HE = {"resnet20": 0.27, "resnet32": 0.46, "resnet44": 0.66, "resnet56": 0.85, "resnet110": 1.7}


def count(name: str, n_classes: int = 10) -> int:
    with torch.device("meta"):
        model = build_image_model(name, n_classes=n_classes, image_size=32)
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("name", sorted(HE))
def test_resnets_have_the_papers_parameters(name: str) -> None:
    assert count(name) / 1e6 == pytest.approx(HE[name], abs=0.05 if name == "resnet110" else 0.005)


def pyramid_parameters(alpha: int, n_blocks: int = 36, n_classes: int = 10) -> int:
    """Counted from Han et al.'s equation 2, block by block."""
    total, n_in = 3 * 9 * 16 + 2 * 16, 16
    for k in range(1, n_blocks + 1):
        width = round(16 + alpha * k / n_blocks)
        total += 2 * n_in + n_in * width + 2 * width + 9 * width * width + 2 * width + 4 * width * width + 8 * width
        n_in = 4 * width
    return total + 2 * n_in + n_in * n_classes + n_classes


@pytest.mark.parametrize("alpha", [48, 84])
def test_pyramidnets_grow_by_alpha(alpha: int) -> None:
    assert count(f"pyramidnet110_a{alpha}") == pyramid_parameters(alpha)


@pytest.mark.parametrize("name", CIFAR_MODELS)
def test_depth_is_as_named(name: str) -> None:
    with torch.device("meta"):
        model = build_image_model(name, n_classes=10, image_size=32)
    weighted = [module for module in model.modules() if isinstance(module, torch.nn.Conv2d | torch.nn.Linear)]
    shortcuts = [name for name, _ in model.named_modules() if name.endswith("shortcut")]
    n_projections = 2 if "preact" in name else 0
    depth = int(name.removeprefix("pyramidnet").removeprefix("resnet").split("_")[0])
    assert len(weighted) - n_projections == depth
    assert shortcuts or "pyramidnet" in name


@pytest.mark.parametrize("name", ["resnet20", "resnet110_preact", "pyramidnet110_a48"])
def test_forward_and_backward(name: str) -> None:
    torch.manual_seed(0)
    model = build_image_model(name, n_classes=7, image_size=32)
    loss = torch.nn.functional.cross_entropy(model(torch.randn(2, 3, 32, 32)), torch.tensor([1, 5]))
    loss.backward()  # type: ignore[no-untyped-call]
    assert torch.isfinite(loss)
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_torchvision_names_are_torchvisions() -> None:
    from torchvision import models

    assert [name.removeprefix("torchvision/") for name in TORCHVISION_MODELS] == models.list_models(module=models)


@pytest.mark.parametrize(
    "name",
    [
        "torchvision/resnet18",
        "torchvision/vit_b_16",
        "torchvision/mobilenet_v3_small",
        "torchvision/regnet_x_400mf",
        "torchvision/regnet_y_400mf",
        "torchvision/swin_v2_t",
        "torchvision/googlenet",
    ],
)
def test_torchvision_models_take_our_classes(name: str) -> None:
    check_model(name, n_classes=7, image_size=64, batch_size=8)


def test_a_checked_model_leaves_torch_as_it_was() -> None:
    check_model("torchvision/resnet18", n_classes=7, image_size=64, batch_size=8)
    assert torch.nn.BatchNorm1d(2).weight.device.type == "cpu"
    assert torch.nn.BatchNorm1d(2).running_mean.device.type == "cpu"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("name", "size"), [("torchvision/vgg11", 16), ("torchvision/inception_v3", 32), ("torchvision/vit_b_16", 40)]
)
def test_a_model_that_does_not_fit_is_refused(name: str, size: int) -> None:
    with pytest.raises(ConfigError, match=rf"model '{name}' does not take batches of 8 images of {size}×{size}"):
        check_model(name, n_classes=10, image_size=size, batch_size=8)


def test_models_that_other_threads_build_meanwhile_have_their_weights() -> None:
    with _weights_without_memory(), ThreadPoolExecutor(1) as pool:
        elsewhere = pool.submit(nn.BatchNorm2d, 3).result()
        here = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm2d(3, track_running_stats=False))
    assert not elsewhere.weight.is_meta
    assert elsewhere.running_mean is not None
    assert not elsewhere.running_mean.is_meta
    assert all(parameter.is_meta for parameter in here.parameters())
