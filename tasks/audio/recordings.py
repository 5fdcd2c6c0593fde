"""Sound files decoded to 16-bit samples of one channel and one rate, once a node, into one flat file.

Any format that libsndfile reads. The class and split of a recording follow from its name and are not kept here.
"""

from __future__ import annotations

import hashlib
import io
import itertools
import json
import logging
import math
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from tasks.data.cache import build_once
from tasks.data.trees import Tree
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
        DataError: not a sound file, a truncated one, one without sound, one whose rate is outside `RATES_HZ`, or one
            that holds NaN or infinite values. The message is a reason without the file's name.
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
        raise DataError(f"truncated: {missing} bytes of sound are missing")
    if len(channels) < n_frames:
        raise DataError(f"truncated: {len(channels)} of {n_frames} samples can be read")
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


log = logging.getLogger(__name__)

DECODED_AT_ONCE = 256
FORMAT = 1  # of the kept files; raise it when decoding changes


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
    """

    samples: Samples
    starts: NDArray[np.int64]
    names: tuple[str, ...]
    folders: tuple[str, ...]
    texts: Mapping[str, str]
    n_skipped: int

    def __len__(self) -> int:
        return len(self.names)


def read_recordings(
    tree: Tree,
    *,
    sample_rate: int,
    on_bad_audio: Literal["refuse", "skip"],
    wanted: Callable[[str], bool] | None = None,
) -> Recordings:
    """Decode a tree, or map what an earlier call decoded; one process a node decodes, the others wait.

    Args:
        sample_rate: of the result, in Hz.
        on_bad_audio: a file that cannot be decoded: refuse the data set, or leave the file out.
        wanted: which of the sound files to read, by name; None: all.

    Raises:
        DataError: a file cannot be decoded and `on_bad_audio` is "refuse", or there is no sound file.
    """
    chosen = partial(_is_chosen, wanted)
    key = f"{FORMAT}/{sample_rate}/{on_bad_audio}/{tree.fingerprint()}"
    folder = build_once(
        "audio",
        hashlib.blake2b(key.encode(), digest_size=16).hexdigest(),
        lambda folder: _decode_tree(tree, folder, chosen, sample_rate=sample_rate, on_bad_audio=on_bad_audio),
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
    )


def _is_chosen(wanted: Callable[[str], bool] | None, name: str) -> bool:
    return PurePosixPath(name).suffix.lower() in SUFFIXES and (wanted is None or wanted(name))


def _decode_tree(
    tree: Tree,
    folder: Path,
    chosen: Callable[[str], bool],
    *,
    sample_rate: int,
    on_bad_audio: Literal["refuse", "skip"],
) -> None:
    """Write samples as they come, so that a large tree never has to fit in memory."""
    folders: list[str] = []
    texts: dict[str, str] = {}

    def sounds() -> Iterator[tuple[str, bytes]]:
        for entry in tree.entries(lambda name: chosen(name) or name.endswith(".txt")):
            if entry.is_folder:
                folders.append(entry.name)
            elif entry.content is not None and entry.name.endswith(".txt"):
                texts[entry.name] = entry.content.decode("utf-8", errors="replace")
            elif entry.content is not None:
                yield entry.name, entry.content

    names: list[str] = []
    lengths: list[int] = []
    n_skipped = 0
    with (folder / "samples.i16").open("wb") as file:
        for name, samples in _decode_all(sounds(), sample_rate=sample_rate):
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
    facts = {"names": names, "folders": folders, "texts": texts, "n_skipped": n_skipped}
    (folder / "facts.json").write_text(json.dumps(facts), encoding="utf-8")


def _decode_all(sounds: Iterator[tuple[str, bytes]], *, sample_rate: int) -> Iterator[tuple[str, Samples | DataError]]:
    """Each file decoded, in order, by threads: libsndfile works without the interpreter's lock."""
    with ThreadPoolExecutor() as pool:
        while block := list(itertools.islice(sounds, DECODED_AT_ONCE)):
            decoded = pool.map(partial(_decode_or_error, sample_rate=sample_rate), (content for _, content in block))
            yield from zip((name for name, _ in block), decoded, strict=True)


def _decode_or_error(content: bytes, *, sample_rate: int) -> Samples | DataError:
    try:
        return decode(content, sample_rate=sample_rate)
    except DataError as error:
        return error
