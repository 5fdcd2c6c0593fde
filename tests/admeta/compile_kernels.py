"""Compiles the kernels for an H100 at several settings; needs Triton, but no card. Run by test_kernels.py.

A program of its own, because the tests' process has the kernels in Triton's interpreter.
"""

from __future__ import annotations

import itertools
from typing import Any

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from admeta import kernels

H100 = GPUTarget("cuda", 90, 32)


def compiled(function: Any, pointers: dict[str, str], switches: dict[str, Any]) -> str:
    """The PTX."""
    signature = {**pointers, **dict.fromkeys(switches, "constexpr")}
    source = ASTSource(fn=function, signature=signature, constexprs=switches)
    ptx = triton.compile(source, target=H100, options={"num_warps": 4}).asm["ptx"]
    assert isinstance(ptx, str)
    return ptx


def main() -> None:
    table = {"table": "*i64", "grads": "*i64", "chunks": "*i32", "factors": "*fp64"}
    flags = ("UNSCALE", "FOUND_INF", "MAXIMIZE", "CENTRALIZE", "L2", "DECOUPLED", "DEMA", "BIAS", "MOMENTS", "BELIEF")
    dtypes = (
        (tl.float32, tl.float32, tl.float32, tl.float32),
        (tl.float32, tl.bfloat16, tl.float32, tl.float32),  # the gradients of weights' bf16 copies
        (tl.bfloat16, tl.bfloat16, tl.float32, tl.float32),
        (tl.float32, tl.float32, tl.bfloat16, tl.float32),
        (tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.float32),
        (tl.float64, tl.float64, tl.float64, tl.float64),
    )
    for (theta, grad, state, arithmetic), on in itertools.product(dtypes, (True, False)):
        switches = {"P": theta, "G": grad, "S": state, "C": arithmetic, **dict.fromkeys(flags, on)}
        switches |= {"PLAIN": True, "SLOW": on, "ALIGNED": on, "BLOCK": 1024}
        random = state == tl.bfloat16
        switches |= {"STOCHASTIC": random, "RANDOM": random}
        ptx = compiled(kernels.update_kernel, table, switches)
        wide = "ld.global.v4.b32" in ptx or "ld.global.v2.b64" in ptx
        narrow = (theta, grad, state) == (tl.bfloat16,) * 3  # 8-byte loads: as many elements a thread
        assert wide is (on and not narrow), "16-byte loads exactly where all addresses are aligned"
        assert "bar.sync" not in ptx, "threads keep their elements from load to store, whatever the dtypes"
        compiled(
            kernels.row_mean_kernel,
            {"table": "*i64", "grads": "*i64", "rows": "*i32"},
            {"G": grad, "C": arithmetic, "BLOCK": 1024},
        )
    arguments = {"table": "*i64", "constants": "*fp64", "lr_ptr": "*fp32", "scale_ptr": "*fp32",
                 "found_inf_ptr": "*fp32", "factors": "*fp64", "n": "i32"}  # fmt: skip
    names = (
        "UNSCALE",
        "FOUND_INF",
        "DEMA",
        "MOMENTS",
        "RECTIFY",
        "PLAIN",
        "GATE",
        "RAW_EPS",
        "SLOW",
        "DECOUPLED",
        "RANDOM",
    )
    for step, on in itertools.product((tl.float32, tl.float64), (True, False)):
        compiled(kernels.factors_kernel, arguments, {"T": step, **dict.fromkeys(names, on), "BLOCK": 64})


if __name__ == "__main__":
    main()
