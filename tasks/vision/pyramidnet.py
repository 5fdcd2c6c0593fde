"""PyramidNet with bottleneck blocks for 32×32 images: channels grow by a constant at every block.

Source: Han, Kim & Kim, "Deep Pyramidal Residual Networks", CVPR 2017, additive form (equation 2). Shortcuts have no
parameters: 2×2 average pooling where the stride is 2, zero channels appended (their section 3.3).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tasks.vision.resnet import conv3x3, initialise

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
