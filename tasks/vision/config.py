"""The configurations of the image tasks, and the models they share."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from tasks.config import BatchSize, Count, Epochs, NamedSchedule, Number, RelativePath, Schedule, TaskConfig
from tasks.vision.torchvision_names import TORCHVISION_MODELS

CIFAR_MODELS = (
    "resnet20",
    "resnet32",
    "resnet44",
    "resnet56",
    "resnet110",
    "resnet110_preact",
    "pyramidnet110_a48",
    "pyramidnet110_a84",
)

Augmentation = Literal["none", "flip", "crop_flip"]


class ImageConfig(TaskConfig):
    """What every image classification task has besides the common fields."""

    augment: Augmentation = Field("crop_flip", description="crop_flip: zero padding by `pad`, random crop, random flip")
    pad: Count = Field(4, ge=0, le=64, description="pixels on each side before the random crop")


class SplitImageConfig(ImageConfig):
    """Tasks whose validation set is split off the training set; the defaults are the paper's for CIFAR.

    Source: Chen et al., ICML 2023, appendix, and the authors' configurations: batch 128, 160 epochs, lr × 0.1 after
    half and three quarters of them, pad 4 + random crop + horizontal flip, incomplete batches dropped.
    """

    models: ClassVar[tuple[str, ...]] = CIFAR_MODELS + TORCHVISION_MODELS

    model: str = "resnet20"
    epochs: Epochs = 160
    batch_size: BatchSize = 128
    schedule: NamedSchedule = Schedule(name="multistep", milestones=(0.5, 0.75), gamma=0.1)
    val_fraction: Number = Field(0.1, gt=0.0, lt=1.0, description="of the training set, held out for validation")


class Cifar10Config(SplitImageConfig):
    """CIFAR-10: 45,000 / 5,000 / 10,000 images of 32×32."""

    name: Literal["cifar10"] = "cifar10"


class Cifar100Config(SplitImageConfig):
    """CIFAR-100: 45,000 / 5,000 / 10,000 images of 32×32, 100 fine classes."""

    name: Literal["cifar100"] = "cifar100"


class ImageFolderConfig(SplitImageConfig):
    """Anyone's images: `data_dir` holds train/<class>/… and test/<class>/…, or is a tar archive of such a tree."""

    name: Literal["image_folder"] = "image_folder"
    data_dir: RelativePath = Field(description="inside the data folder: a folder, or a .tar, .tar.gz or .tar.xz file")
    image_size: Count = Field(32, ge=4, le=1024, description="pixels: shorter side resized to it, then centre crop")
    on_bad_image: Literal["refuse", "skip"] = Field("refuse", description="an image that cannot be decoded")
