"""The configurations of the image tasks, and the names of their models. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from admeta.imports import IMPORT_PATH
from tasks.config import (
    BaseWidth,
    BatchSize,
    Count,
    Epochs,
    NamedSchedule,
    Parametrization,
    RelativePath,
    Schedule,
    Shape,
    TaskConfig,
    ValFraction,
    Width,
    shape_of,
)

_TORCHVISION = """
alexnet convnext_base convnext_large convnext_small convnext_tiny densenet121 densenet161 densenet169 densenet201
efficientnet_b0 efficientnet_b1 efficientnet_b2 efficientnet_b3 efficientnet_b4 efficientnet_b5 efficientnet_b6
efficientnet_b7 efficientnet_v2_l efficientnet_v2_m efficientnet_v2_s googlenet inception_v3 maxvit_t mnasnet0_5
mnasnet0_75 mnasnet1_0 mnasnet1_3 mobilenet_v2 mobilenet_v3_large mobilenet_v3_small regnet_x_16gf regnet_x_1_6gf
regnet_x_32gf regnet_x_3_2gf regnet_x_400mf regnet_x_800mf regnet_x_8gf regnet_y_128gf regnet_y_16gf regnet_y_1_6gf
regnet_y_32gf regnet_y_3_2gf regnet_y_400mf regnet_y_800mf regnet_y_8gf resnet101 resnet152 resnet18 resnet34
resnet50 resnext101_32x8d resnext101_64x4d resnext50_32x4d shufflenet_v2_x0_5 shufflenet_v2_x1_0 shufflenet_v2_x1_5
shufflenet_v2_x2_0 squeezenet1_0 squeezenet1_1 swin_b swin_s swin_t swin_v2_b swin_v2_s swin_v2_t vgg11 vgg11_bn
vgg13 vgg13_bn vgg16 vgg16_bn vgg19 vgg19_bn vit_b_16 vit_b_32 vit_h_14 vit_l_16 vit_l_32 wide_resnet101_2
wide_resnet50_2
"""  # written down, so that a definition can be checked without importing torchvision
TORCHVISION_MODELS = tuple(f"torchvision/{name}" for name in _TORCHVISION.split())

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

VIT_SIZES = {"vit_tiny": (12, 3, 192), "vit_small": (12, 6, 384)}
"""Layers, heads and width by name."""

VIT_MODELS = tuple(VIT_SIZES)
VIT_RECIPE: Mapping[str, Any] = {
    "epochs": 100,
    "schedule": {"name": "cosine", "warmup": 0.1},
    "label_smoothing": 0.1,
}
"""What a vision transformer has by default where it differs from the task's own.

Source: Lee, Lee & Song, "Vision Transformer for Small-Size Datasets" (2021), and its code: AdamW with weight decay
0.05, batch 128, 10 of 100 epochs of warm-up. Their mixed images, AutoAugment and random erasing are not here.
"""

Augmentation = Literal["none", "flip", "crop_flip"]


class ImageConfig(TaskConfig):
    """What every image classification task has besides the common fields."""

    open_models: ClassVar[str | None] = IMPORT_PATH  # a class or function of n_classes

    augment: Augmentation = Field("crop_flip", description="crop_flip: zero padding by `pad`, random crop, random flip")
    pad: Count = Field(4, ge=0, le=64, description="pixels on each side before the random crop")

    def imports(self) -> dict[str, str]:
        return {"model": self.model} if ":" in self.model else {}

    def libraries(self) -> tuple[str, ...]:
        from_torchvision = self.model.startswith("torchvision/") or self.model in VIT_SIZES
        return (*super().libraries(), *(("torchvision.models",) if from_torchvision else ()))


class SplitImageConfig(ImageConfig):
    """Tasks whose validation set is split off the training set; the defaults are the paper's for CIFAR.

    Source: Chen et al., ICML 2023, appendix, and the authors' configurations: batch 128, 160 epochs, lr × 0.1 after
    half and three quarters of them, pad 4 + random crop + horizontal flip, incomplete batches dropped.
    """

    models: ClassVar[tuple[str, ...]] = CIFAR_MODELS + VIT_MODELS + TORCHVISION_MODELS

    model: str = "resnet20"
    epochs: Epochs = Field(
        160,
        description="vit_tiny and vit_small: 100, with a cosine after a warm-up of 10 % and label_smoothing 0.1",
    )
    batch_size: BatchSize = 128
    schedule: NamedSchedule = Schedule(name="multistep", milestones=(0.5, 0.75), gamma=0.1)
    val_fraction: ValFraction = 0.1
    width: Width = None
    parametrization: Parametrization = "standard"
    base_width: BaseWidth = None

    @property
    def shape(self) -> Shape | None:
        """Width, heads and parametrisation of a vision transformer; None for other models, whose width is fixed."""
        if self.model not in VIT_SIZES:
            return None
        _, *own = VIT_SIZES[self.model]
        return shape_of(
            (own[0], own[1]), width=self.width, parametrization=self.parametrization, base_width=self.base_width
        )

    @model_validator(mode="after")
    def _widths_fit(self) -> SplitImageConfig:
        if self.shape is None and (self.width, self.parametrization, self.base_width) != (None, "standard", None):
            raise ValueError(
                f"width, base_width and mup are for {' and '.join(VIT_SIZES)}; model {self.model!r} has its own width. "
                "Leave them out, or choose one of those models"
            )
        return self

    @classmethod
    def defaults_of(cls, model: str | None) -> Mapping[str, Any]:
        return VIT_RECIPE if model in VIT_MODELS else {}

    @model_validator(mode="before")
    @classmethod
    def _transformers_have_their_own_recipe(cls, raw: Any) -> Any:
        return {**cls.defaults_of(raw.get("model")), **raw} if isinstance(raw, dict) else raw


class Cifar10Config(SplitImageConfig):
    """CIFAR-10: 60,000 photographs of 32×32 in ten classes; 45,000 / 5,000 / 10,000, augmented as the paper does."""

    name: Literal["cifar10"] = "cifar10"


class Cifar100Config(SplitImageConfig):
    """CIFAR-100: 60,000 photographs of 32×32 in a hundred classes; 45,000 / 5,000 / 10,000."""

    name: Literal["cifar100"] = "cifar100"


class ImageFolderConfig(SplitImageConfig):
    """Own images: your images in class folders train/<class>/ and test/<class>/, a folder or a tar archive."""

    name: Literal["image_folder"] = "image_folder"
    data_dir: RelativePath = Field(description="inside the data folder: a folder, or a .tar, .tar.gz or .tar.xz file")
    image_size: Count = Field(32, ge=4, le=1024, description="pixels: shorter side resized to it, then centre crop")
    on_bad_image: Literal["refuse", "skip"] = Field("refuse", description="an image that cannot be decoded")


class DigitsConfig(ImageConfig):
    """Handwritten digits 8×8: 1,797 images of scikit-learn, 1,197 / 300 / 300, stratified; seconds on one core."""

    models: ClassVar[tuple[str, ...]] = ("convnet", "mlp", "linear")

    name: Literal["digits"] = "digits"
    model: str = "convnet"
    epochs: Epochs = 20
    batch_size: BatchSize = 64
    schedule: NamedSchedule = Schedule(name="cosine")
    augment: Augmentation = "none"
