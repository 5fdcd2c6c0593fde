"""The kernels compile for a card without one, and Triton's way to the driver is what admeta.launcher takes it for."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")


def run(module: str, cache: Path, **environment: str) -> None:
    """Runs a program of this folder with Triton as it is, not its interpreter."""
    variables = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(cache), **environment}
    program = [sys.executable, "-m", f"tests.admeta.{module}"]
    done = subprocess.run(program, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


def test_kernels_compile_and_use_wide_loads(tmp_path: Path) -> None:
    run("compile_kernels", tmp_path)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs a C compiler, as Triton does")
def test_launches_reach_the_driver(tmp_path: Path) -> None:
    stub = tmp_path / "libcuda.so.1"
    source = Path(__file__).with_name("driver_stub.c")
    subprocess.run(["gcc", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", stub, source], check=True)
    (tmp_path / "libcuda.so").symlink_to(stub.name)
    run("launch_without_a_card", tmp_path / "cache", LD_LIBRARY_PATH=str(tmp_path), TRITON_LIBCUDA_PATH=str(tmp_path))
