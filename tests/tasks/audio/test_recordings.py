"""Sound files to samples: formats, rates, channels; and what is no sound file, or only half of one."""

from __future__ import annotations

import io

import numpy as np
import pytest
import soundfile

from tasks.audio.recordings import FULL_SCALE, decode, resample
from tasks.errors import DataError
from tests.tasks.audio.sounds import encoded, tone


@pytest.mark.parametrize("kind", ["WAV", "FLAC", "OGG", "AIFF"])
def test_formats(kind: str) -> None:
    wave = tone(300.0, seconds=0.5, rate=8000)
    samples = decode(encoded(wave, rate=8000, kind=kind), sample_rate=8000)
    assert samples.dtype == np.int16
    lossy = 0.05 if kind == "OGG" else 1e-4
    np.testing.assert_allclose(samples / FULL_SCALE, wave, atol=lossy)


@pytest.mark.parametrize(("rate", "to"), [(44_100, 16_000), (8_000, 16_000), (22_050, 8_000), (48_000, 16_000)])
def test_resampling_keeps_a_tone(rate: int, to: int) -> None:
    samples = decode(encoded(tone(1000.0, seconds=1.0, rate=rate), rate=rate), sample_rate=to) / FULL_SCALE
    assert len(samples) == to
    spectrum = np.abs(np.fft.rfft(samples))
    assert spectrum.argmax() == 1000  # bins of 1 Hz
    assert 0.5 * to * 0.5 == pytest.approx(spectrum[1000], rel=0.02)  # of half the amplitude


def test_resampling_removes_what_the_rate_cannot_hold() -> None:
    kept = resample(tone(6000.0, seconds=1.0, rate=16_000), 16_000, 8_000)
    assert np.abs(np.fft.rfft(kept)).max() < 0.03 * 2000


def test_channels_are_mixed() -> None:
    left, right = tone(200.0, seconds=0.2, rate=8000), tone(900.0, seconds=0.2, rate=8000, seed=1)
    samples = decode(encoded(np.stack([left, right], axis=1), rate=8000), sample_rate=8000)
    np.testing.assert_allclose(samples / FULL_SCALE, (left + right) / 2, atol=1e-4)


def test_loud_samples_are_cut_not_wrapped() -> None:
    buffer = io.BytesIO()
    soundfile.write(buffer, np.array([0.5, 1.5, -2.0], dtype=np.float32), 8000, format="WAV", subtype="FLOAT")
    assert decode(buffer.getvalue(), sample_rate=8000).tolist() == [16384, FULL_SCALE, -FULL_SCALE]


WAV = encoded(tone(300.0, seconds=0.5, rate=8000), rate=8000)
FLAC = encoded(tone(300.0, seconds=0.5, rate=8000), rate=8000, kind="FLAC")
NAN = io.BytesIO()
soundfile.write(NAN, np.array([0.0, np.nan], dtype=np.float32), 8000, format="WAV", subtype="FLOAT")


def with_rate(hz: int) -> bytes:
    return WAV[:24] + hz.to_bytes(4, "little") + WAV[28:]


REFUSALS = [
    (with_rate(2**31 - 1), "its header says 2147483647 Hz; rates of 1000 to 768000 Hz are read"),
    (with_rate(7), "its header says 7 Hz"),
    (WAV[: len(WAV) // 2], r"truncated: \d+ bytes of sound are missing"),
    (WAV[:20], "Malformed"),
    (FLAC[: len(FLAC) // 2], "flac"),
    (FLAC[:50], "flac"),
    (b"", "unimplemented|not recognised|unknown"),
    (b"not a sound file at all, but long enough to hold a header" * 4, "Format not recognised"),
    (encoded(np.zeros(0, dtype=np.float32), rate=8000), "holds no sound"),
    (NAN.getvalue(), "NaN or infinite"),
]


@pytest.mark.parametrize(("content", "message"), REFUSALS, ids=[message for _, message in REFUSALS])
def test_what_is_refused(content: bytes, message: str) -> None:
    with pytest.raises(DataError, match=message):
        decode(content, sample_rate=8000)


def with_length(size: int) -> bytes:
    place = WAV.index(b"data") + 4
    return WAV[:place] + size.to_bytes(4, "little") + WAV[place + 4 :]


def test_a_streamed_wav_need_not_know_its_length() -> None:
    assert len(decode(with_length(0xFFFFFFFF), sample_rate=8000)) == 4000
    with pytest.raises(DataError, match="holds no sound"):
        decode(with_length(0), sample_rate=8000)
