"""Sound files to samples: formats, rates, channels; and what is no sound file, or only half of one."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
import soundfile
from numpy.typing import NDArray

from tasks.audio.recordings import FULL_SCALE, decode, resample
from tasks.errors import DataError
from tests.tasks.audio.sounds import encoded, tone
from tests.tasks.shared_data import shared_case


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


def mp3(wave: NDArray[np.float32], *, mode: str = "VARIABLE") -> bytes:
    """An MP3 whose first frame is a tag with its length."""
    buffer = io.BytesIO()
    soundfile.write(buffer, wave, 44_100, format="MP3", bitrate_mode=mode)
    content = buffer.getvalue()
    assert b"Xing" in content[:200] or b"Info" in content[:200]
    return content


def without_tag(content: bytes) -> bytes:
    """An MP3 (MPEG-1, layer III) without its first frame."""
    kbit_s = (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320)[content[2] >> 4]
    size = 144_000 * kbit_s // 44_100 + (content[2] >> 1 & 1)
    assert content[size] == 0xFF
    return content[size:]


def swelling(seconds: float) -> NDArray[np.float32]:
    """Silence, then noise: the first frames of a variable bit rate are far smaller than the others."""
    rng = np.random.default_rng(0)
    n = round(seconds * 44_100)
    return (0.3 * rng.normal(size=n) * (np.arange(n) > n // 4)).clip(-1, 1).astype(np.float32)


@pytest.mark.parametrize("mode", ["VARIABLE", "CONSTANT"])
def test_an_mp3_without_a_length_is_decoded_to_its_end(mode: str) -> None:
    tagged = mp3(swelling(2.0), mode=mode)
    whole, bare = (decode(content, sample_rate=44_100) for content in (tagged, without_tag(tagged)))
    assert len(whole) == 2 * 44_100
    # Without the tag the encoder's delay is not cut off: the same samples come later.
    delay = next(n for n in range(3000) if np.array_equal(bare[n : n + 40_000][-5000:], whole[:40_000][-5000:]))
    assert len(bare) >= len(whole)
    np.testing.assert_array_equal(bare[delay : delay + 80_000], whole[:80_000])


def test_an_mp3_whose_tag_says_too_little_is_decoded_to_its_end() -> None:
    content = mp3(swelling(1.0))
    assert len(decode(content + without_tag(content), sample_rate=44_100)) > 1.9 * 44_100


def test_a_flac_of_unknown_length_is_decoded_to_its_end() -> None:
    streamed = bytearray(FLAC)
    streamed[21] &= 0xF0  # the low bits of 36 that hold the number of samples
    streamed[22:26] = bytes(4)
    assert decode(bytes(streamed), sample_rate=8000).tolist() == decode(FLAC, sample_rate=8000).tolist()


def test_gsm_which_cannot_be_sought_is_decoded() -> None:
    buffer = io.BytesIO()
    soundfile.write(buffer, tone(300.0, seconds=0.5, rate=8000), 8000, format="WAV", subtype="GSM610")
    assert 4000 <= len(decode(buffer.getvalue(), sample_rate=8000)) < 4500


def test_a_decoder_that_fails_otherwise_is_a_reason_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: Any, **options: Any) -> Any:
        raise ValueError("array is too big")

    monkeypatch.setattr(soundfile.SoundFile, "read", broken)
    with pytest.raises(DataError, match="the decoder failed: array is too big"):
        decode(WAV, sample_rate=8000)


@pytest.mark.parametrize(
    ("name", "n_samples"),
    [
        ("vbr_no_xing.mp3", 178_560),
        ("cbr_no_xing.mp3", 178_560),
        ("vbr_xing.mp3", 176_400),
        ("cbr_xing.mp3", 176_400),
        ("streamed.flac", 22_050),
        ("voicemail_gsm.wav", 24_696),
    ],
)
def test_real_files_of_these_kinds(name: str, n_samples: int) -> None:
    assert len(decode(shared_case(name).read_bytes(), sample_rate=44_100)) == n_samples
