"""Devices, precisions and torch's settings."""

from __future__ import annotations

import pytest
import torch

from tasks.engine.device import configure_torch, first_words, is_out_of_memory, pick_device, pick_precision
from tasks.errors import ConfigError

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


@pytest.mark.parametrize(
    ("wanted", "device", "precision"),
    [
        ("auto", CPU, "fp32"),
        ("auto", GPU, "bf16"),
        ("tf32", CPU, "fp32"),
        ("tf32", GPU, "tf32"),
        ("fp32", GPU, "fp32"),
        ("bf16", CPU, "bf16"),
    ],
)
def test_precision(wanted: str, device: torch.device, precision: str) -> None:
    assert pick_precision(wanted, device=device) == precision


def test_devices() -> None:
    assert pick_device("cpu") == CPU
    assert pick_device(None).type in ("cpu", "cuda")
    for wanted in ("abacus", "meta"):
        with pytest.raises(ConfigError, match="use 'cpu'"):
            pick_device(wanted)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_no_gpu_is_said() -> None:
    with pytest.raises(ConfigError, match="torch sees no GPU here"):
        pick_device("cuda")


def test_settings_are_put_back() -> None:
    before = torch.get_num_threads(), torch.backends.cudnn.allow_tf32, torch.are_deterministic_algorithms_enabled()
    restore = configure_torch(precision="bf16", determinism="strict", device=CPU, threads=1)
    assert torch.are_deterministic_algorithms_enabled()
    assert torch.backends.cudnn.deterministic
    restore()
    after = torch.get_num_threads(), torch.backends.cudnn.allow_tf32, torch.are_deterministic_algorithms_enabled()
    assert after == before


def test_no_room_is_told_from_other_errors() -> None:
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"))
    assert is_out_of_memory(RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be reported later"))
    assert is_out_of_memory(RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"))
    assert not is_out_of_memory(RuntimeError("CUDA error: an illegal memory access was encountered"))
    assert not is_out_of_memory(ValueError("out of memory"))
    with pytest.raises(RuntimeError, match="could not be ended") as hiding:
        _fail_and_hide_it()
    assert is_out_of_memory(hiding.value)
    assert first_words(RuntimeError("CUDA out of memory. Tried\nmore")) == "CUDA out of memory"
    assert first_words(RuntimeError()) == "RuntimeError"


def _fail_and_hide_it() -> None:
    try:
        raise torch.OutOfMemoryError("CUDA out of memory")
    finally:
        raise RuntimeError("the capture could not be ended")
