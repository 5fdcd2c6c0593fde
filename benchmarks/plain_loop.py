"""The loop that a careful user would write without us: what `benchmarks.throughput` compares with.

torchvision transforms in a DataLoader with 8 workers, float32, eager, the optimizer as its package gives it. The model
and the training rows are the engine's own, so that nothing but the loop differs.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from admeta.roles import create_for_model
from tasks.engine.task import load_task
from tasks.vision.config import Cifar10Config
from tasks.vision.models import build_image_model
from tasks.vision.task import ImageData, ImageSplit


class PilImages(Dataset[tuple[torch.Tensor, int]]):
    """As torchvision's CIFAR10: arrays in memory, a PIL image an item, then the transforms."""

    def __init__(self, split: ImageSplit, transform: Any) -> None:
        self._images = split.images[split.rows].cpu().numpy()
        self._labels = split.labels.cpu().tolist()
        self._transform = transform

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        from PIL import Image

        return self._transform(Image.fromarray(self._images[index])), self._labels[index]


class PlainLoop:
    """One training run of a CIFAR-10 model, written plainly."""

    def __init__(
        self,
        config: Cifar10Config,
        *,
        optimizer: str,
        params: Mapping[str, Any],
        seed: int,
        data_dir: Path,
        device: str = "cuda",
        workers: int = 8,
    ) -> None:
        from torchvision import transforms

        torch.manual_seed(seed)
        self.config = config
        self.device = torch.device(device)
        data: ImageData = load_task(config, data_dir=data_dir, device=torch.device("cpu")).data
        mean, std = ([value / 255 for value in values] for values in (data.mean, data.std))
        plain = [transforms.ToTensor(), transforms.Normalize(mean, std)]
        crop = [transforms.RandomCrop(32, padding=config.pad)] if config.augment == "crop_flip" else []
        flip = [transforms.RandomHorizontalFlip()] if config.augment != "none" else []
        augmented = [*crop, *flip, *plain]
        common: dict[str, Any] = {
            "batch_size": config.batch_size,
            "num_workers": workers,
            "pin_memory": self.device.type == "cuda",
            "persistent_workers": workers > 0,
        }
        self.train_loader = DataLoader(
            PilImages(data.train, transforms.Compose(augmented)), shuffle=True, drop_last=True, **common
        )
        self.test_loader = DataLoader(PilImages(data.test, transforms.Compose(plain)), **common)
        self.model = build_image_model(config.model, n_classes=10, image_size=32).to(self.device)
        self.optimizer = create_for_model(optimizer, self.model, params, weight_decay_on=config.weight_decay_on)
        self.loss = nn.CrossEntropyLoss(label_smoothing=config.label_smoothing)
        self.lr = float(params["lr"])
        self.step = 0
        self.n_steps = config.epochs * len(self.train_loader)

    def train(self, *, max_seconds: float = float("inf"), max_steps: int | None = None) -> tuple[int, float]:
        """Train an epoch, or as much of one as the limits allow: (images, seconds), the device awaited at both ends."""
        self.model.train()
        self._wait()
        begin, images = time.perf_counter(), 0
        for batch_images, batch_labels in self.train_loader:
            inputs = batch_images.to(self.device, non_blocking=True)
            labels = batch_labels.to(self.device, non_blocking=True)
            for group in self.optimizer.param_groups:
                group["lr"] = self.lr * self.config.schedule.lr_factor(self.step, n_steps=self.n_steps)
            self.optimizer.zero_grad()
            loss = self.loss(self.model(inputs), labels)
            loss.backward()  # type: ignore[no-untyped-call]
            self.optimizer.step()
            self.step += 1
            images += len(labels)
            if time.perf_counter() - begin > max_seconds or (max_steps and images >= max_steps * len(labels)):
                break
        self._wait()
        return images, time.perf_counter() - begin

    @torch.no_grad()
    def test_accuracy(self) -> float:
        """In [0, 1]."""
        self.model.eval()
        correct = total = 0
        for images, labels in self.test_loader:
            predicted = self.model(images.to(self.device)).argmax(dim=1).cpu()
            correct += int((predicted == labels).sum())
            total += len(labels)
        return correct / total

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()
