"""Recordings for tests: tones, whose pitch is their class."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import soundfile
from numpy.typing import NDArray


def tone(hz: float, *, seconds: float, rate: int, seed: int = 0) -> NDArray[np.float32]:
    """A tone in a little noise: float32 (seconds × rate,)."""
    rng = np.random.default_rng(seed)
    time = np.arange(round(seconds * rate)) / rate
    return (0.5 * np.sin(2 * np.pi * hz * time + rng.uniform(0, 6)) + 0.02 * rng.normal(size=len(time))).astype(
        np.float32
    )


def encoded(samples: NDArray[np.float32], *, rate: int, kind: str = "WAV") -> bytes:
    """The bytes of a sound file; samples (n,) or (n, channels)."""
    buffer = io.BytesIO()
    soundfile.write(buffer, samples, rate, format=kind)
    return buffer.getvalue()


def write_tone(path: Path, hz: float, *, seconds: float = 0.3, rate: int = 8000, seed: int = 0) -> None:
    """A tone as a file, its format by the name's ending; makes the folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(encoded(tone(hz, seconds=seconds, rate=rate, seed=seed), rate=rate, kind=path.suffix[1:].upper()))
