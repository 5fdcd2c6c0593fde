"""Image models by name: residual networks, PyramidNets and vision transformers for small images, torchvision's models.

`resnet20` … `resnet110`: He et al., "Deep Residual Learning for Image Recognition", CVPR 2016, section 4.2: three
stages of n basic blocks, 16-32-64 channels, 6n + 2 layers, shortcuts without parameters (option A: every second
pixel, new channels zero). `resnet110_preact`: the network that the Admeta authors' configurations fall back to,
pre-activation basic blocks (He et al., ECCV 2016) with 1×1 convolutions where the shape changes, Kaiming fan-out.

`pyramidnet…`: Han, Kim & Kim, "Deep Pyramidal Residual Networks", CVPR 2017, additive form (equation 2), bottleneck
blocks. Shortcuts have no parameters: 2×2 average pooling where the stride is 2, zero channels appended (section 3.3).

`vit_tiny`, `vit_small`: torchvision's vision transformer in the sizes of Touvron et al., "Training data-efficient image
transformers", ICML 2021, table 1, on patches of 4×4 pixels, or of 16×16 as theirs for images of more than 96.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_buffer_registration_hook,
    register_module_parameter_registration_hook,
)

from tasks.config import Shape
from tasks.errors import ConfigError
from tasks.own.task import build_own
from tasks.vision.config import VIT_SIZES

STAGES = (16, 32, 64)
Block = Callable[[int, int, int], nn.Module]


def conv3x3(n_in: int, n_out: int, *, stride: int = 1) -> nn.Conv2d:
    """A 3×3 convolution that keeps height and width at stride 1; no bias, a norm follows."""
    return nn.Conv2d(n_in, n_out, 3, stride=stride, padding=1, bias=False)


class ZeroPadShortcut(nn.Module):
    """Option A: subsample by the stride, append zero channels; no parameters."""

    def __init__(self, n_new: int, *, stride: int) -> None:
        super().__init__()
        self.n_new = n_new
        self.stride = stride

    def forward(self, x: Tensor) -> Tensor:
        """(n, c, h, w) to (n, c + n_new, ceil(h / stride), ceil(w / stride))."""
        return nn.functional.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.n_new))


class BasicBlock(nn.Module):
    """conv-bn-relu-conv-bn, plus the shortcut, relu."""

    def __init__(self, n_in: int, n_out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = conv3x3(n_in, n_out, stride=stride)
        self.bn1 = nn.BatchNorm2d(n_out)
        self.conv2 = conv3x3(n_out, n_out)
        self.bn2 = nn.BatchNorm2d(n_out)
        changes = stride != 1 or n_in != n_out
        self.shortcut = ZeroPadShortcut(n_out - n_in, stride=stride) if changes else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        out = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(self.bn2(self.conv2(out)) + self.shortcut(x))


class PreactBlock(nn.Module):
    """bn-relu-conv-bn-relu-conv, plus the input, or a 1×1 convolution of the activated input where shapes change."""

    def __init__(self, n_in: int, n_out: int, stride: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(n_in)
        self.conv1 = conv3x3(n_in, n_out, stride=stride)
        self.bn2 = nn.BatchNorm2d(n_out)
        self.conv2 = conv3x3(n_out, n_out)
        changes = stride != 1 or n_in != n_out
        self.shortcut = nn.Conv2d(n_in, n_out, 1, stride=stride, bias=False) if changes else None

    def forward(self, x: Tensor) -> Tensor:
        active = torch.relu(self.bn1(x))
        out: Tensor = self.conv2(torch.relu(self.bn2(self.conv1(active))))
        return out + (x if self.shortcut is None else self.shortcut(active))


class CifarResNet(nn.Module):
    """A first convolution, three stages, global average pooling, one linear layer."""

    def __init__(self, *, depth: int, block: Block, n_classes: int, final_norm: nn.Module | None = None) -> None:
        super().__init__()
        n_blocks, rest = divmod(depth - 2, 6)
        assert rest == 0, depth
        stem = [conv3x3(3, STAGES[0])]
        # Pre-activation blocks begin with their own norm; the stem's comes at the very end instead.
        self.stem = nn.Sequential(*stem, *([] if final_norm else [nn.BatchNorm2d(STAGES[0]), nn.ReLU()]))
        blocks: list[nn.Module] = []
        n_in = STAGES[0]
        for stage, n_out in enumerate(STAGES):
            for index in range(n_blocks):
                blocks.append(block(n_in, n_out, 2 if stage > 0 and index == 0 else 1))
                n_in = n_out
        self.blocks = nn.Sequential(*blocks)
        self.final_norm = final_norm
        self.head = nn.Linear(n_in, n_classes)
        initialise(self)

    def forward(self, x: Tensor) -> Tensor:
        """(n, 3, h, w) to logits (n, n_classes)."""
        x = self.blocks(self.stem(x))
        if self.final_norm is not None:
            x = torch.relu(self.final_norm(x))
        return self.head(x.mean(dim=(2, 3)))  # type: ignore[no-any-return]


def initialise(model: nn.Module) -> None:
    """Kaiming normal over the fan-out for convolutions (He et al., ICCV 2015); norms start as the identity."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")


def cifar_resnet(depth: int, n_classes: int) -> nn.Module:
    """He et al.'s network of 20, 32, 44, 56 or 110 layers."""
    return CifarResNet(depth=depth, block=BasicBlock, n_classes=n_classes)


def preact_resnet110(n_classes: int) -> nn.Module:
    """The authors' pre-activation network of 110 layers."""
    final_norm = nn.BatchNorm2d(STAGES[-1])
    return CifarResNet(depth=110, block=PreactBlock, n_classes=n_classes, final_norm=final_norm)


EXPANSION = 4
N_STEM = 16


class PyramidBottleneck(nn.Module):
    """bn-1×1-bn-relu-3×3-bn-relu-1×1-bn; the first relu is left out (their figure 6d)."""

    def __init__(self, n_in: int, width: int, stride: int) -> None:
        super().__init__()
        n_out = width * EXPANSION
        self.bn1 = nn.BatchNorm2d(n_in)
        self.conv1 = nn.Conv2d(n_in, width, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv2 = conv3x3(width, width, stride=stride)
        self.bn3 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, n_out, 1, bias=False)
        self.bn4 = nn.BatchNorm2d(n_out)
        self.pool = nn.AvgPool2d(2, ceil_mode=True) if stride == 2 else nn.Identity()
        self.n_new = n_out - n_in

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.conv1(self.bn1(x))
        out = self.conv2(torch.relu(self.bn2(out)))
        out = self.bn4(self.conv3(torch.relu(self.bn3(out))))
        return out + nn.functional.pad(self.pool(x), (0, 0, 0, 0, 0, self.n_new))


class PyramidNet(nn.Module):
    """Three stages of (depth − 2) / 9 bottlenecks; widths grow from 16 to 16 + α, outputs are four times as wide."""

    def __init__(self, *, depth: int, alpha: int, n_classes: int) -> None:
        super().__init__()
        n_blocks, rest = divmod(depth - 2, 9)
        assert rest == 0, depth
        self.stem = nn.Sequential(conv3x3(3, N_STEM), nn.BatchNorm2d(N_STEM))
        blocks: list[nn.Module] = []
        n_in = N_STEM
        for index in range(3 * n_blocks):
            width = round(N_STEM + alpha * (index + 1) / (3 * n_blocks))
            stride = 2 if index in (n_blocks, 2 * n_blocks) else 1
            blocks.append(PyramidBottleneck(n_in, width, stride))
            n_in = width * EXPANSION
        self.blocks = nn.Sequential(*blocks)
        self.final_norm = nn.BatchNorm2d(n_in)
        self.head = nn.Linear(n_in, n_classes)
        initialise(self)

    def forward(self, x: Tensor) -> Tensor:
        """(n, 3, h, w) to logits (n, n_classes)."""
        x = torch.relu(self.final_norm(self.blocks(self.stem(x))))
        return self.head(x.mean(dim=(2, 3)))  # type: ignore[no-any-return]


class _ScaledLinear(nn.Linear):
    """A linear layer on its input over `divisor`: the output of a network in µP."""

    def __init__(self, like: nn.Linear, *, divisor: float) -> None:
        super().__init__(like.in_features, like.out_features)
        self.divisor = divisor
        self.weight, self.bias = like.weight, like.bias

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x / self.divisor)


def small_vit(name: str, *, n_classes: int, image_size: int, shape: Shape | None = None) -> nn.Module:
    """A vision transformer of `VIT_SIZES`; the side of the images must be a multiple of its patches' side.

    With a shape over µP's base, its output is divided by `width_over_base`; torchvision draws hidden weights with a
    variance over the width already, and its head begins at 0 (table 8 of Tensor Programs V).
    """
    from torchvision.models import VisionTransformer

    n_layers, n_heads, width = VIT_SIZES[name]
    if shape is not None:
        n_heads, width = shape.n_heads, shape.width
    model: nn.Module = VisionTransformer(
        image_size=image_size,
        patch_size=4 if image_size <= 96 else 16,
        num_layers=n_layers,
        num_heads=n_heads,
        hidden_dim=width,
        mlp_dim=4 * width,
        num_classes=n_classes,
    )
    if shape is not None and shape.over_base != 1.0:
        model.width_over_base = shape.over_base  # type: ignore[assignment]
        model.heads.head = _ScaledLinear(model.heads.head, divisor=shape.over_base)  # type: ignore[union-attr,arg-type]
    return model


_CIFAR: dict[str, Callable[[int], nn.Module]] = {
    "resnet20": partial(cifar_resnet, 20),
    "resnet32": partial(cifar_resnet, 32),
    "resnet44": partial(cifar_resnet, 44),
    "resnet56": partial(cifar_resnet, 56),
    "resnet110": partial(cifar_resnet, 110),
    "resnet110_preact": preact_resnet110,
    "pyramidnet110_a48": lambda n_classes: PyramidNet(depth=110, alpha=48, n_classes=n_classes),
    "pyramidnet110_a84": lambda n_classes: PyramidNet(depth=110, alpha=84, n_classes=n_classes),
}


def build_image_model(name: str, *, n_classes: int, image_size: int, shape: Shape | None = None) -> nn.Module:
    """A model of `tasks.vision.config` by name, freshly initialised, for RGB images.

    Args:
        name: a CIFAR model, one of `VIT_SIZES`, `torchvision/<name>` for torchvision's classification models (no
            pretrained weights), or an import path of a class or function of `n_classes`.
        image_size: side of the square images, pixels; vision transformers are built for it.
        shape: of one of `VIT_SIZES`, in place of its own.
    """
    if name in _CIFAR:
        return _CIFAR[name](n_classes)
    if name in VIT_SIZES:
        return small_vit(name, n_classes=n_classes, image_size=image_size, shape=shape)
    if ":" in name:
        return build_own(name, n_classes)
    from torchvision import models

    options: dict[str, object] = {"num_classes": n_classes, "weights": None}
    name = name.removeprefix("torchvision/")
    if name.startswith("vit_"):
        options["image_size"] = image_size
    if name in ("googlenet", "inception_v3"):
        options |= {"aux_logits": False, "init_weights": True}
    model: nn.Module = models.get_model(name, **options)
    return model


@contextlib.contextmanager
def _weights_without_memory() -> Iterator[None]:
    """Put parameters and buffers on the meta device as modules take them, in this thread.

    Under `torch.device("meta")` a constructor could not compute with tensors, as torchvision's RegNets do.
    """
    thread = threading.get_ident()  # torch's hooks are the process's, and others may build models too

    def parameter_of(_module: nn.Module, _name: str, parameter: nn.Parameter) -> nn.Parameter | None:
        if threading.get_ident() != thread:
            return None
        return nn.Parameter(parameter.to("meta"), requires_grad=parameter.requires_grad)

    def buffer_of(_module: nn.Module, _name: str, buffer: Tensor | None) -> Tensor | None:
        return None if buffer is None or threading.get_ident() != thread else buffer.to("meta")

    on_parameters = register_module_parameter_registration_hook(parameter_of)  # type: ignore[arg-type]
    on_buffers = register_module_buffer_registration_hook(buffer_of)  # type: ignore[arg-type]
    try:
        yield
    finally:
        on_parameters.remove()
        on_buffers.remove()


def check_model(name: str, *, n_classes: int, image_size: int, batch_size: int, shape: Shape | None = None) -> None:
    """Pass a batch of two images, or of one, through the model in training mode.

    torchvision's models, which may be large, take shapes (no memory, no arithmetic) instead. For that torch imports its
    compiler's symbols, two seconds of processor, which torchvision has imported anyway.

    Raises:
        ConfigError: the images are too small or of the wrong size for this model.
    """
    try:
        by_shapes = name.startswith("torchvision/")
        with _weights_without_memory() if by_shapes else contextlib.nullcontext():
            model = build_image_model(name, n_classes=n_classes, image_size=image_size, shape=shape).train()
        with torch.device("meta" if by_shapes else "cpu"), torch.no_grad():
            logits = model(torch.zeros(min(batch_size, 2), 3, image_size, image_size))
    except ConfigError:
        raise
    except Exception as error:  # of torchvision's or the user's code
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ConfigError(
            f"model {name!r} does not take batches of {batch_size} images of {image_size}×{image_size}: {reason}. "
            "Choose another model, another image_size where the task has it (most models want a larger one, "
            "transformers a multiple of their patches), or a larger batch_size"
        ) from error
    if tuple(logits.shape[1:]) != (n_classes,):
        raise ConfigError(
            f"model {name!r} returned {tuple(logits.shape)} for {min(batch_size, 2)} images; it must return "
            f"(images, {n_classes}), a logit for each class"
        )
