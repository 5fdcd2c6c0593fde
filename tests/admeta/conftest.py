"""Lets ``fused=True`` run on CPU tensors where there is no GPU, through Triton's interpreter."""

from __future__ import annotations

import os
from importlib.util import find_spec

import torch

if find_spec("triton") is not None and not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read when admeta.kernels is imported
