"""The package as a whole: what it exports and what it must not import."""

from __future__ import annotations

import subprocess
import sys

import search.analysis


def test_all_is_sorted_and_complete() -> None:
    assert search.analysis.__all__ == sorted(search.analysis.__all__, key=lambda name: (name[0].islower(), name))
    assert all(hasattr(search.analysis, name) for name in search.analysis.__all__)


def test_imports_neither_torch_ray_nor_a_database() -> None:
    code = (
        "import sys, search.analysis;print([m for m in ('torch', 'ray', 'psycopg', 'scipy.stats') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
