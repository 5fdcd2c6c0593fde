"""Own data sets and models as users write them, and as they go wrong."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset


def _blobs(n: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 3, (n,), generator=generator)
    return torch.randn(n, 4, generator=generator) + 3 * nn.functional.one_hot(labels, 4), labels


def blobs(folder: Path | None) -> dict[str, Any]:
    return {"train": _blobs(200, 0), "test": TensorDataset(*_blobs(50, 1))}


def with_val(folder: Path | None) -> dict[str, Any]:
    return {"train": _blobs(200, 0), "val": _blobs(40, 2), "test": _blobs(50, 1)}


def values(folder: Path | None) -> dict[str, Any]:
    x = torch.linspace(-1, 1, 100).unsqueeze(1)
    return {"train": (x, 3 * x + 1), "test": (x, 3 * x + 1)}


def from_folder(folder: Path) -> dict[str, Any]:
    saved = torch.load(folder / "blobs.pt", weights_only=True)
    return {"train": saved, "test": saved}


def raises(folder: Path | None) -> dict[str, Any]:
    raise FileNotFoundError("no blobs.csv")


def opens(folder: Path | None) -> dict[str, Any]:
    return {"train": Path("blobs.csv").read_text()}


def gaps(folder: Path | None) -> dict[str, Any]:
    inputs, labels = _blobs(200, 0)
    inputs[[3, 7], 1] = torch.tensor([math.nan, math.inf])
    return {"train": (inputs, labels), "test": _blobs(50, 1)}


def unknown_labels(folder: Path | None) -> dict[str, Any]:
    x = torch.linspace(-1, 1, 100).unsqueeze(1)
    return {"train": (x, 3 * x + 1), "test": (x, torch.where(x > 0, math.nan, x))}


def without_test(folder: Path | None) -> dict[str, Any]:
    return {"train": _blobs(200, 0)}


def of_lists(folder: Path | None) -> dict[str, Any]:
    return {"train": ([1.0], [0]), "test": ([1.0], [0])}


def uneven(folder: Path | None) -> dict[str, Any]:
    return {"train": (torch.ones(3, 4), torch.ones(2)), "test": _blobs(5, 0)}


def of_int32(folder: Path | None) -> dict[str, Any]:
    return {"train": (torch.ones(3, 4), torch.ones(3, dtype=torch.int32)), "test": _blobs(5, 0)}


def different(folder: Path | None) -> dict[str, Any]:
    return {"train": (torch.ones(3, 5), torch.ones(3, dtype=torch.int64)), "test": _blobs(5, 0)}


class Net(nn.Module):
    def __init__(self, width: int = 8, n_out: int = 3) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, n_out))

    def forward(self, inputs: Tensor) -> Tensor:
        found: Tensor = self.layers(inputs)
        return found


class Masked(Net):
    """Takes inputs with gaps."""

    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs.nan_to_num(0.0, 0.0, 0.0))


def line() -> nn.Module:
    return nn.Linear(1, 1)


def untrainable() -> nn.Module:
    return nn.Flatten()


def no_module(*_: Any) -> str:
    return "net"


class SmallImages(nn.Module):
    """Classifies images of one channel or three."""

    def __init__(self, n_classes: int) -> None:
        super().__init__()
        self.head = nn.LazyLinear(n_classes) if n_classes < 0 else nn.Linear(1, n_classes)

    def forward(self, images: Tensor) -> Tensor:
        found: Tensor = self.head(images.mean((1, 2, 3)).unsqueeze(1))
        return found


def asks_for_arguments(folder: object) -> None:
    raise SystemExit(2)


made = Net()
