"""The classification models of torchvision by name, so that a definition can be checked without importing it.

The configurations of the image tasks, and the models they share.

The configuration of the digits task."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from tasks.config import BatchSize, Count, Epochs, NamedSchedule, Number, RelativePath, Schedule, TaskConfig

TORCHVISION_MODELS = (
    "torchvision/alexnet",
    "torchvision/convnext_base",
    "torchvision/convnext_large",
    "torchvision/convnext_small",
    "torchvision/convnext_tiny",
    "torchvision/densenet121",
    "torchvision/densenet161",
    "torchvision/densenet169",
    "torchvision/densenet201",
    "torchvision/efficientnet_b0",
    "torchvision/efficientnet_b1",
    "torchvision/efficientnet_b2",
    "torchvision/efficientnet_b3",
    "torchvision/efficientnet_b4",
    "torchvision/efficientnet_b5",
    "torchvision/efficientnet_b6",
    "torchvision/efficientnet_b7",
    "torchvision/efficientnet_v2_l",
    "torchvision/efficientnet_v2_m",
    "torchvision/efficientnet_v2_s",
    "torchvision/googlenet",
    "torchvision/inception_v3",
    "torchvision/maxvit_t",
    "torchvision/mnasnet0_5",
    "torchvision/mnasnet0_75",
    "torchvision/mnasnet1_0",
    "torchvision/mnasnet1_3",
    "torchvision/mobilenet_v2",
    "torchvision/mobilenet_v3_large",
    "torchvision/mobilenet_v3_small",
    "torchvision/regnet_x_16gf",
    "torchvision/regnet_x_1_6gf",
    "torchvision/regnet_x_32gf",
    "torchvision/regnet_x_3_2gf",
    "torchvision/regnet_x_400mf",
    "torchvision/regnet_x_800mf",
    "torchvision/regnet_x_8gf",
    "torchvision/regnet_y_128gf",
    "torchvision/regnet_y_16gf",
    "torchvision/regnet_y_1_6gf",
    "torchvision/regnet_y_32gf",
    "torchvision/regnet_y_3_2gf",
    "torchvision/regnet_y_400mf",
    "torchvision/regnet_y_800mf",
    "torchvision/regnet_y_8gf",
    "torchvision/resnet101",
    "torchvision/resnet152",
    "torchvision/resnet18",
    "torchvision/resnet34",
    "torchvision/resnet50",
    "torchvision/resnext101_32x8d",
    "torchvision/resnext101_64x4d",
    "torchvision/resnext50_32x4d",
    "torchvision/shufflenet_v2_x0_5",
    "torchvision/shufflenet_v2_x1_0",
    "torchvision/shufflenet_v2_x1_5",
    "torchvision/shufflenet_v2_x2_0",
    "torchvision/squeezenet1_0",
    "torchvision/squeezenet1_1",
    "torchvision/swin_b",
    "torchvision/swin_s",
    "torchvision/swin_t",
    "torchvision/swin_v2_b",
    "torchvision/swin_v2_s",
    "torchvision/swin_v2_t",
    "torchvision/vgg11",
    "torchvision/vgg11_bn",
    "torchvision/vgg13",
    "torchvision/vgg13_bn",
    "torchvision/vgg16",
    "torchvision/vgg16_bn",
    "torchvision/vgg19",
    "torchvision/vgg19_bn",
    "torchvision/vit_b_16",
    "torchvision/vit_b_32",
    "torchvision/vit_h_14",
    "torchvision/vit_l_16",
    "torchvision/vit_l_32",
    "torchvision/wide_resnet101_2",
    "torchvision/wide_resnet50_2",
)

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
