"""Independent random streams from one seed."""

from __future__ import annotations

import hashlib


def derive_seed(seed: int, *labels: str | int, bits: int = 63) -> int:
    """A seed for the stream that `labels` name: equal inputs give equal seeds, on any machine and version.

    Args:
        bits: the seed is below 2 ** bits; at most 64. NumPy's and torch's generators take 63, Optuna's samplers 32.
    """
    text = "/".join(str(part) for part in (seed, *labels))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> (64 - bits)
