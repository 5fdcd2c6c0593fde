"""The device of a run, torch's settings while it runs, and what its record says about the machine."""

from __future__ import annotations

import os
import platform
import resource
import subprocess
import tempfile
from collections.abc import Callable
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

import torch
from numpy.typing import NDArray
from torch import Tensor

from tasks.data.find import cache_root
from tasks.engine.lazy_compiler import defer_compiler
from tasks.errors import ConfigError

Precision = Literal["fp32", "tf32", "bf16"]
DATA_SHARE = 0.4  # of a device's free memory that a data set may take
defer_compiler()  # every process that trains, or checks a task, imports this module first

CONTEXT_BYTES = 600 * 2**20  # that a process holds besides torch's allocator: CUDA context, cuDNN, cuBLAS


_NO_ROOM = ("out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED", "DEVICE_ALLOCATION_FAILED")


def is_out_of_memory(error: BaseException | None) -> bool:
    """Whether the device ran out of memory: torch's own error, or one of CUDA, cuBLAS or cuDNN that says so.

    The errors before it (`__context__`) count too: a failing capture can hide the first one.
    """
    while error is not None:
        told = isinstance(error, RuntimeError) and any(words in str(error) for words in _NO_ROOM)
        if told or isinstance(error, torch.OutOfMemoryError):
            return True
        error = error.__context__
    return False


def first_words(error: BaseException) -> str:
    """The first sentence of an error that may have many lines."""
    lines = str(error).splitlines()
    return lines[0].split(". ")[0] if lines else type(error).__name__


def pick_device(wanted: str | None) -> torch.device:
    """The device of that name; None: the first GPU that is visible, or else the CPU.

    Raises:
        ConfigError: no such device here.
    """
    if wanted is None:
        wanted = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(wanted)
    except RuntimeError as error:
        raise ConfigError(f"device {wanted!r} is not a torch device: {error}; use 'cpu', 'cuda' or 'cuda:0'") from error
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise ConfigError(f"device {wanted!r} was asked for, but torch sees no GPU here; leave it out for a CPU")
        return torch.device("cuda", device.index or 0)
    if device.type != "cpu":
        raise ConfigError(f"device {wanted!r} is not supported; use 'cpu' or 'cuda'")
    return device


def place_array(array: NDArray[Any], *, device: torch.device) -> Tensor:
    """A data set's array as a tensor: on the device if `DATA_SHARE` of its free memory is enough, or else on the host.

    Args:
        array: perhaps mapped from a file.
    """
    tensor = torch.from_numpy(array)
    if device.type == "cuda" and array.nbytes <= DATA_SHARE * torch.cuda.mem_get_info(device)[0]:
        return tensor.to(device)
    return tensor


def pick_precision(wanted: str, *, device: torch.device) -> Precision:
    """`auto` resolved: bf16 on a GPU, fp32 on a CPU. tf32 on a CPU is fp32."""
    match wanted:
        case "auto":
            return "bf16" if device.type == "cuda" else "fp32"
        case "tf32":
            return "tf32" if device.type == "cuda" else "fp32"
        case "bf16":
            return "bf16"
        case _:
            return "fp32"


def configure_torch(
    *, precision: Precision, determinism: Literal["strict", "free"], device: torch.device, threads: int
) -> Callable[[], None]:
    """Set torch for one run: threads, matrix precision, deterministic kernels.

    Returns:
        A function that restores the former settings.
    """
    before = (
        torch.get_num_threads(),
        torch.get_float32_matmul_precision(),
        torch.backends.cudnn.allow_tf32,
        torch.backends.cudnn.benchmark,
        torch.backends.cudnn.deterministic,
        torch.are_deterministic_algorithms_enabled(),
    )
    _keep_compiled_code()
    strict = determinism == "strict"
    if strict and device.type == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read by cuBLAS when its first handle is made
    torch.set_num_threads(threads)
    torch.set_float32_matmul_precision("highest" if precision == "fp32" else "high")
    torch.backends.cudnn.allow_tf32 = precision != "fp32"
    torch.backends.cudnn.benchmark = not strict
    torch.backends.cudnn.deterministic = strict
    _set_deterministic(strict=strict)

    def restore() -> None:
        torch.set_num_threads(before[0])
        torch.set_float32_matmul_precision(before[1])
        torch.backends.cudnn.allow_tf32 = before[2]
        torch.backends.cudnn.benchmark = before[3]
        torch.backends.cudnn.deterministic = before[4]
        _set_deterministic(strict=before[5])

    return restore


def _keep_compiled_code() -> None:
    """Let all processes of the node use compiled code again, also after a restart, unless an operator chose a folder.

    To import the compiler sets the variable too, to a folder of the machine's temporary files.
    """
    name, temporary = "TORCHINDUCTOR_CACHE_DIR", str(Path(tempfile.gettempdir()) / "torchinductor_")
    if os.environ.get(name, temporary).startswith(temporary):
        os.environ[name] = str(cache_root() / "inductor")


def _set_deterministic(*, strict: bool) -> None:
    if torch.are_deterministic_algorithms_enabled() != strict:  # the call imports the compiler, which takes seconds
        torch.use_deterministic_algorithms(strict)


_PACKAGES = ("admeta-search", "torch", "torchvision", "transformers", "ray", "optuna", "numpy")


def describe_machine(device: torch.device) -> dict[str, Any]:
    """Device name, versions of what decides the numbers, and the source's commit where it is a checkout."""
    on_gpu = device.type == "cuda"
    return {
        "device": str(device),
        "device_name": torch.cuda.get_device_name(device) if on_gpu else platform.processor() or platform.machine(),
        "cuda": torch.version.cuda if on_gpu else None,
        "python": platform.python_version(),
        "versions": _versions(),
        "commit": source_commit(),
        "host": platform.node(),
    }


def peak_memory_bytes(device: torch.device) -> int:
    """Most memory held so far: the allocator's peak on a GPU, the process's resident set on a CPU."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # Linux counts KiB


def held_memory_bytes(device: torch.device) -> tuple[int, int]:
    """Most memory of the GPU that this process has held so far, its context included, and all there is; 0 on a CPU."""
    if device.type != "cuda":
        return 0, 0
    held = int(torch.cuda.max_memory_reserved(device)) + CONTEXT_BYTES
    return held, int(torch.cuda.get_device_properties(device).total_memory)


@lru_cache(maxsize=1)
def source_commit() -> str | None:
    """The commit of the checkout this package runs from; None for an installed copy."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None
    try:
        done = subprocess.run(
            ["git", "-C", str(root), "rev-parse", "HEAD"], capture_output=True, text=True, timeout=5, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None


@lru_cache(maxsize=1)
def _versions() -> dict[str, str]:
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
