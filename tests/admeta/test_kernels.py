"""The kernels compile for a card without one."""

from __future__ import annotations

import os
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
