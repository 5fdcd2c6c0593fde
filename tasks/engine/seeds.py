"""Independent random streams from one seed. NumPy is imported when a stream is made: `derive_seed` does not need it."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def derive_seed(seed: int, *labels: str | int, bits: int = 63) -> int:
    """A seed for the stream that `labels` name: equal inputs give equal seeds, on any machine and version.

    Args:
        bits: the seed is below 2 ** bits; at most 64. NumPy's and torch's generators take 63, Optuna's samplers 32.
    """
    text = "/".join(str(part) for part in (seed, *labels))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> (64 - bits)


def random_stream(seed: int, *labels: str | int) -> np.random.Generator:
    """NumPy's generator for the stream that `labels` name; it does not depend on the device."""
    import numpy as np

    return np.random.Generator(np.random.PCG64(derive_seed(seed, *labels)))


def epoch_order(n: int, *, seed: int, epoch: int) -> NDArray[np.int64]:
    """A permutation of 0 … n−1 for one epoch: int64 (n,), a function of (n, seed, epoch)."""
    import numpy as np

    return random_stream(seed, "order", epoch).permutation(n).astype(np.int64)
