"""Sound files decoded to 16-bit samples of one channel and one rate, once a node, into one flat file.

Any format that libsndfile reads. The class and split of a recording follow from its name and are not kept here.
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tasks.data.find import build_once
from tasks.data.trees import Content, Tree, decode_in_order, read_content
from tasks.errors import DataError

log = logging.getLogger(__name__)

SUFFIXES = frozenset(
    ".wav .wave .w64 .rf64 .flac .ogg .oga .opus .mp3 .mp2 .aif .aiff .aifc .au .snd .caf".split()  # noqa: SIM905
)
FULL_SCALE = 32767
RATES_HZ = (1_000, 768_000)  # a header with another rate is broken, and resampling from it could need any memory
MAX_HOURS = 24  # of one recording; a small compressed file can hold years of silence
BLOCK = 2**18  # samples of a channel that are read at once
SURPLUS_BYTES = 4096  # behind what an MP3's tag describes: other tags
_UNKNOWN_LENGTH = 0x7FFF0000  # what programs write into a WAV header when they stream: this or more, or 0
_UNKNOWN_FRAMES = 2**62  # libsndfile's number of samples where the header has none: this or more

Samples = NDArray[np.int16]


def decode(content: bytes, *, sample_rate: int) -> Samples:
    """The samples of a sound file, read until its end, whatever length its header has.

    Args:
        content: the file's bytes.
        sample_rate: of the result, in Hz. Other rates are resampled by a polyphase filter (Kaiser window, β = 5).

    Returns:
        int16 (n,), n ≥ 1; full scale is ±`FULL_SCALE`. The mean of all channels.

    Raises:
        DataError: not a sound file, a truncated one, one without sound, one whose rate is outside `RATES_HZ`, one of
            more than `MAX_HOURS`, or one that holds NaN or infinite values. The message does not name the file.
    """
    import soundfile

    if missing := _missing_bytes(content):
        raise DataError(f"truncated: {missing} bytes of sound are missing")
    try:
        mono, rate, n_expected = _read(content)
    except soundfile.SoundFileError as error:
        raise DataError(str(error).partition(": ")[2].strip() or str(error)) from error
    except (OSError, ValueError, TypeError, RuntimeError, ArithmeticError, LookupError, MemoryError) as error:
        raise DataError(f"the decoder failed: {error or type(error).__name__}") from error
    if len(mono) < n_expected:
        raise DataError(f"truncated: {len(mono)} of {n_expected} samples can be read")
    if len(mono) == 0:
        raise DataError("it holds no sound")
    if not np.isfinite(mono).all():
        raise DataError("it holds NaN or infinite samples")
    resampled = resample(mono, rate, sample_rate)
    return np.rint(np.clip(resampled, -1.0, 1.0) * FULL_SCALE).astype(np.int16)


def _read(content: bytes) -> tuple[NDArray[np.float32], int, int]:
    """(samples, rate in Hz, number of samples by the header, or 0 where it has none)."""
    with _open(io.BytesIO(content)) as file:
        tagged = _tagged_bytes(content) if file.format == "MP3" else len(content)
        mono = np.zeros(0, dtype=np.float32) if tagged is None else _read_blocks(file)
        rate, n_frames = file.samplerate, file.frames if file.frames < _UNKNOWN_FRAMES else 0
    if tagged is not None and len(content) <= tagged + SURPLUS_BYTES:
        return mono, rate, n_frames
    # libsndfile estimates the length of an MP3 without a tag from its size and first frame, and stops there.
    untagged = content.replace(b"Xing", bytes(4), 1).replace(b"Info", bytes(4), 1)
    with _open(_Longer(untagged)) as file:
        whole = _read_blocks(file)
    return (whole if len(whole) > len(mono) + SURPLUS_BYTES else mono), rate, 0


def _open(stream: io.RawIOBase | io.BytesIO) -> Any:
    import soundfile

    file = soundfile.SoundFile(stream)
    if not RATES_HZ[0] <= file.samplerate <= RATES_HZ[1]:
        raise DataError(f"its header says {file.samplerate} Hz; rates of {RATES_HZ[0]} to {RATES_HZ[1]} Hz are read")
    file.seekable = lambda: False  # soundfile seeks after each block, which fails where the length is unknown
    return file


def _read_blocks(file: Any) -> NDArray[np.float32]:
    """The mean of the channels, until the decoder gives no more."""
    buffer = np.empty((BLOCK, file.channels), dtype=np.float32)
    parts: list[NDArray[np.float32]] = []
    while len(block := file.read(out=buffer)):
        parts.append(block.mean(axis=1))
        if len(parts) * BLOCK > MAX_HOURS * 3600 * file.samplerate:
            raise DataError(f"it is longer than {MAX_HOURS} hours; split it")
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.float32)


class _Longer(io.RawIOBase):
    """A file's bytes that claim to be a thousand times as many, so that no estimate of the length is too short.

    The last 128 bytes can be read, as decoders look for a tag there; between those and the content the file ends.
    """

    TAG = 128

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._size = 1000 * len(content) + self.TAG
        self._place = 0

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._place = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self._size}[whence]
        return self._place

    def tell(self) -> int:
        return self._place

    def readinto(self, buffer: Any) -> int:
        if self._place >= self._size - self.TAG:
            part = bytes(min(len(buffer), self._size - self._place))
        else:
            part = self._content[self._place : self._place + len(buffer)]
        buffer[: len(part)] = part
        self._place += len(part)
        return len(part)


def _tagged_bytes(content: bytes) -> int | None:
    """Where an MP3 ends by the tag in its first frame (Xing's, or LAME's Info); None where it has no tag of its size.

    Source: Gabriel Bouvigne, "MP3 Tag specification" (Xing's header: flags, frames, bytes).
    """
    begin = 0
    if content[:3] == b"ID3":
        begin = 10 + sum((byte & 0x7F) << shift for byte, shift in zip(content[6:10], (21, 14, 7, 0), strict=True))
    head = content[begin : begin + 256]
    place = max(head.find(b"Xing"), head.find(b"Info"))
    if place < 0:
        return None
    flags = int.from_bytes(head[place + 4 : place + 8], "big")
    if not flags & 2:
        return None
    at = place + 8 + (4 if flags & 1 else 0)
    return begin + int.from_bytes(head[at : at + 4], "big")


def resample(samples: NDArray[np.float32], from_hz: int, to_hz: int) -> NDArray[np.float32]:
    """(n,) at one rate to (⌈n · to / from⌉,) at another."""
    if from_hz == to_hz:
        return samples
    from scipy.signal import resample_poly

    common = math.gcd(from_hz, to_hz)
    resampled: NDArray[np.float32] = resample_poly(samples, to_hz // common, from_hz // common).astype(np.float32)
    return resampled


def _missing_bytes(content: bytes) -> int:
    """Bytes that a WAV file has less than its header says; libsndfile reads such a file without an error."""
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


FORMAT = 2  # of the kept files; raise it when decoding changes


@dataclass(frozen=True, kw_only=True)
class Recordings:
    """n recordings, of together t samples.

    Attributes:
        samples: int16 (t,), mapped from a file, one recording after another.
        starts: int64 (n + 1,): recording i owns the samples starts[i] … starts[i + 1].
        names: of their files, in the tree.
        folders: all folders of the tree, those without a recording too.
        texts: content of the .txt files, by name.
        n_skipped: files that could not be decoded and were left out.
        n_others: files whose names do not end as those of sound files (`SUFFIXES`).
    """

    samples: Samples
    starts: NDArray[np.int64]
    names: tuple[str, ...]
    folders: tuple[str, ...]
    texts: Mapping[str, str]
    n_skipped: int
    n_others: int

    def __len__(self) -> int:
        return len(self.names)


def read_recordings(tree: Tree, *, sample_rate: int, on_bad_audio: Literal["refuse", "skip"]) -> Recordings:
    """Decode a tree, or map what an earlier call decoded; one process a node decodes, the others wait.

    Args:
        sample_rate: of the result, in Hz.
        on_bad_audio: a file that cannot be decoded: refuse the data set, or leave the file out.

    Raises:
        DataError: a file cannot be decoded and `on_bad_audio` is "refuse", or there is no sound file.
    """
    key = f"{FORMAT}/{sample_rate}/{on_bad_audio}/{tree.fingerprint()}"
    folder = build_once(
        "audio",
        hashlib.blake2b(key.encode(), digest_size=16).hexdigest(),
        lambda folder: _decode_tree(tree, folder, sample_rate=sample_rate, on_bad_audio=on_bad_audio),
    )
    facts = json.loads((folder / "facts.json").read_text(encoding="utf-8"))
    return Recordings(
        # Copy-on-write, because torch wants arrays it may write to; untouched pages are shared between processes.
        samples=np.memmap(folder / "samples.i16", dtype=np.int16, mode="c"),
        starts=np.load(folder / "starts.npy", allow_pickle=False),
        names=tuple(facts["names"]),
        folders=tuple(facts["folders"]),
        texts=facts["texts"],
        n_skipped=facts["n_skipped"],
        n_others=facts["n_others"],
    )


def _is_sound(name: str) -> bool:
    return PurePosixPath(name).suffix.lower() in SUFFIXES


def _decode_tree(tree: Tree, folder: Path, *, sample_rate: int, on_bad_audio: Literal["refuse", "skip"]) -> None:
    """Write samples as they come, so that a large tree never has to fit in memory."""
    folders: list[str] = []
    texts: dict[str, str] = {}
    others: list[str] = []

    def sounds() -> Iterator[tuple[str, Content]]:
        for entry in tree.entries(lambda name: _is_sound(name) or name.endswith(".txt")):
            if entry.is_folder:
                folders.append(entry.name)
            elif entry.content is not None and entry.name.endswith(".txt"):
                texts[entry.name] = read_content(entry.content).decode("utf-8", errors="replace")
            elif entry.content is not None:
                yield entry.name, entry.content
            else:
                others.append(entry.name)

    names: list[str] = []
    lengths: list[int] = []
    n_skipped = 0
    with (folder / "samples.i16").open("wb") as file:
        for name, samples in decode_in_order(sounds(), partial(decode, sample_rate=sample_rate)):
            if isinstance(samples, DataError):
                if on_bad_audio == "refuse":
                    raise DataError(
                        f"recording {name} cannot be read ({samples}); repair or remove it, or set on_bad_audio: skip"
                    ) from samples
                n_skipped += 1
                log.warning("skipped %s: %s", name, samples)
                continue
            file.write(samples.tobytes())
            names.append(name)
            lengths.append(len(samples))
    if not names:
        raise DataError(f"no recording was found; the files must end in one of {', '.join(sorted(SUFFIXES))}")
    np.save(folder / "starts.npy", np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64))
    if others:
        log.warning("%d files are not recordings by their names, among them %s", len(others), others[0])
    facts = {
        "names": names,
        "folders": folders,
        "texts": texts,
        "n_skipped": n_skipped,
        "n_others": len(others),
    }
    (folder / "facts.json").write_text(json.dumps(facts), encoding="utf-8")
