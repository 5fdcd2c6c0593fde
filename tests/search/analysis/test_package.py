"""The package as a whole: what it exports and what it must not import."""

from __future__ import annotations

import subprocess
import sys

import search.analysis


def test_all_is_sorted_and_complete() -> None:
    assert search.analysis.__all__ == sorted(search.analysis.__all__, key=lambda name: (name[0].islower(), name))
    assert all(hasattr(search.analysis, name) for name in search.analysis.__all__)


def test_imports_neither_torch_ray_nor_a_database() -> None:
    """Nor the parts of scipy that take half a second each: each study's driver imports this."""
    unwanted = ("torch", "ray", "psycopg", "scipy.stats", "scipy.optimize", "scipy.interpolate")
    code = f"import sys, search.analysis; print([m for m in {unwanted} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_driver_imports_no_slow_parts_of_scipy_and_no_torch() -> None:
    unwanted = ("torch", "scipy.stats", "scipy.optimize", "scipy.interpolate", "sklearn", "transformers")
    code = f"import sys, search.tuning, search.driver, search.edge; print([m for m in {unwanted} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
