"""One sound file to samples: any format that libsndfile reads, all channels mixed to one, resampled, 16 bits."""

from __future__ import annotations

import io
import math

import numpy as np
from numpy.typing import NDArray

from tasks.errors import DataError

SUFFIXES = frozenset({".wav", ".flac", ".ogg", ".oga", ".opus", ".mp3", ".aif", ".aiff", ".aifc", ".au"})
FULL_SCALE = 32767
RATES_HZ = (1_000, 768_000)  # a header that says another is broken, and resampling from it could take any memory
_UNKNOWN_LENGTH = 0x7FFF0000  # what programs write into a WAV header when they stream: this or more, or 0

Samples = NDArray[np.int16]


def decode(content: bytes, *, sample_rate: int) -> Samples:
    """The samples of a sound file.

    Args:
        content: the file's bytes.
        sample_rate: of the result, in Hz. Other rates are resampled by a polyphase filter (Kaiser window, β = 5).

    Returns:
        int16 (n,), n ≥ 1; full scale is ±`FULL_SCALE`. The mean of all channels.

    Raises:
        DataError: not a sound file, a torn one, one without sound, one whose rate is not within `RATES_HZ`, or one that
            holds NaN or infinite values. The message is a reason without the file's name.
    """
    import soundfile

    try:
        with soundfile.SoundFile(io.BytesIO(content)) as file:
            n_frames, rate = file.frames, file.samplerate
            if not RATES_HZ[0] <= rate <= RATES_HZ[1]:
                raise DataError(f"its header says {rate} Hz; rates of {RATES_HZ[0]} to {RATES_HZ[1]} Hz are read")
            channels = file.read(dtype="float32", always_2d=True)
    except soundfile.SoundFileError as error:
        raise DataError(str(error).partition(": ")[2].strip() or str(error)) from error
    if missing := _missing_bytes(content):
        raise DataError(f"torn: {missing} bytes of sound are missing")
    if len(channels) < n_frames:
        raise DataError(f"torn: {len(channels)} of {n_frames} samples can be read")
    if len(channels) == 0:
        raise DataError("it holds no sound")
    mono = channels.mean(axis=1)
    if not np.isfinite(mono).all():
        raise DataError("it holds NaN or infinite samples")
    resampled = resample(mono, rate, sample_rate)
    return np.rint(np.clip(resampled, -1.0, 1.0) * FULL_SCALE).astype(np.int16)


def resample(samples: NDArray[np.float32], from_hz: int, to_hz: int) -> NDArray[np.float32]:
    """(n,) at one rate to (⌈n · to / from⌉,) at another."""
    if from_hz == to_hz:
        return samples
    from scipy.signal import resample_poly

    common = math.gcd(from_hz, to_hz)
    resampled: NDArray[np.float32] = resample_poly(samples, to_hz // common, from_hz // common).astype(np.float32)
    return resampled


def _missing_bytes(content: bytes) -> int:
    """Bytes that a WAV file's header promises and the file lacks; libsndfile reads what is there and says nothing."""
    if content[:4] != b"RIFF" or content[8:12] != b"WAVE":
        return 0
    place = 12
    while place + 8 <= len(content):
        size = int.from_bytes(content[place + 4 : place + 8], "little")
        if content[place : place + 4] == b"data":
            streamed = size == 0 or size >= _UNKNOWN_LENGTH
            return 0 if streamed else max(0, size - (len(content) - place - 8))
        place += 8 + size + size % 2  # chunks begin at even places
    return 0
