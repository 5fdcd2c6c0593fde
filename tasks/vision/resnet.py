"""Residual networks for 32×32 images.

`resnet20` … `resnet110`: He et al., "Deep Residual Learning for Image Recognition", CVPR 2016, section 4.2: three
stages of n basic blocks, 16-32-64 channels, 6n + 2 layers, shortcuts without parameters (option A: every second
pixel, new channels zero). `resnet110_preact`: the network that the Admeta authors' configurations fall back to,
pre-activation basic blocks (He et al., ECCV 2016) with 1×1 convolutions where the shape changes, Kaiming fan-out.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

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
