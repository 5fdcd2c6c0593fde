"""Reading class-folder trees: <split>/<class>/<image>, from a folder or a tar archive, into one uint8 array.

Decoding 60,000 files takes a while, so the result is kept as a plain array file in the user's cache folder, by the
content's digest; one process a node decodes, the others wait for it and map the file.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import io
import itertools
import json
import logging
import os
import tarfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from tasks.engine.batches import Rows
from tasks.errors import DataError

log = logging.getLogger(__name__)

SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".gif", ".ppm", ".pgm", ".webp", ".tif", ".tiff"})
ARCHIVES = (".tar", ".tar.gz", ".tgz", ".tar.xz", ".tar.bz2")
DECODED_AT_ONCE = 512
THREADS_FROM_BYTES = 16_384  # mean file size; small files spend their time holding the interpreter's lock
FORMAT = 1  # of the cached arrays; raise it when decoding changes


@dataclass(frozen=True)
class Decoded:
    """One split: images (n, size, size, 3) uint8 (mapped from a file), labels (n,), and how many were skipped."""

    images: NDArray[np.uint8]
    labels: Rows
    n_skipped: int


@dataclass(frozen=True)
class DecodedTree:
    """The `train` and `test` splits and their classes, in alphabetical order."""

    classes: tuple[str, ...]
    train: Decoded
    test: Decoded


def read_tree(path: Path, *, image_size: int, on_bad_image: Literal["refuse", "skip"]) -> DecodedTree:
    """Decode a tree, or map what an earlier call decoded.

    Args:
        path: a folder or archive that holds train/<class>/… and test/<class>/…, perhaps under one folder of its own.
        image_size: images are resized so that the shorter side has this many pixels, then cropped at the centre.
        on_bad_image: an image that cannot be decoded: refuse the data set, or leave the image out.

    Raises:
        DataError: the splits are missing, a class folder is empty or is unknown to the training set, or an image is
            broken; the message names it.
    """
    source = _source(path)
    digest = hashlib.blake2b(f"{FORMAT}/{image_size}/{on_bad_image}/{source.fingerprint()}".encode(), digest_size=16)
    folder = cache_folder() / digest.hexdigest()
    if not (folder / "meta.json").exists():
        with _lock(folder):
            if not (folder / "meta.json").exists():
                _decode(source, folder, image_size=image_size, on_bad_image=on_bad_image)
    meta = json.loads((folder / "meta.json").read_text())
    return DecodedTree(
        classes=tuple(meta["classes"]),
        train=_map(folder, "train", image_size=image_size, n_skipped=meta["n_skipped"]["train"]),
        test=_map(folder, "test", image_size=image_size, n_skipped=meta["n_skipped"]["test"]),
    )


def cache_folder() -> Path:
    """Where decoded arrays are kept: $XDG_CACHE_HOME or ~/.cache, under admeta-search/images."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "admeta-search" / "images"


@dataclass(frozen=True)
class _Member:
    split: str
    klass: str
    name: str


class _Folder:
    """A tree of files."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def fingerprint(self) -> str:
        lines = []
        for member in self._members():
            status = (self._root / member.name).stat()
            lines.append(f"{member.name} {status.st_size} {status.st_mtime_ns}")
        return hashlib.blake2b("\n".join(lines).encode()).hexdigest()

    def classes(self, split: str) -> list[str]:
        folder = self._root / split
        return sorted(entry.name for entry in folder.iterdir() if entry.is_dir()) if folder.is_dir() else []

    def _members(self) -> list[_Member]:
        found = []
        for split in ("train", "test"):
            for klass in self.classes(split):
                for file in sorted((self._root / split / klass).rglob("*")):
                    if file.suffix.lower() in SUFFIXES and file.is_file():
                        found.append(_Member(split, klass, str(file.relative_to(self._root))))
        return found

    def __iter__(self) -> Iterator[tuple[_Member, bytes]]:
        for member in self._members():
            yield member, (self._root / member.name).read_bytes()


class _Archive:
    """A tar archive, read once from front to back; nothing is unpacked to disk."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._classes: dict[str, set[str]] = {"train": set(), "test": set()}

    def fingerprint(self) -> str:
        digest = hashlib.blake2b()
        with self._path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
        return digest.hexdigest()

    def classes(self, split: str) -> list[str]:
        """Known after iteration."""
        return sorted(self._classes[split])

    def __iter__(self) -> Iterator[tuple[_Member, bytes]]:
        try:
            with tarfile.open(self._path, "r|*") as archive:
                for entry in archive:
                    member = _archive_member(entry)
                    if member is None:
                        continue
                    self._classes[member.split].add(member.klass)
                    file = archive.extractfile(entry) if entry.isfile() and member.name else None
                    if file is not None and PurePosixPath(entry.name).suffix.lower() in SUFFIXES:
                        yield member, file.read()
        except (tarfile.TarError, EOFError, OSError) as error:
            raise DataError(f"archive {self._path} cannot be read: {error}; copy it again") from error


def _archive_member(entry: tarfile.TarInfo) -> _Member | None:
    """train/<class>[/…] or <folder>/train/<class>[/…]; None for anything else."""
    parts = PurePosixPath(entry.name).parts
    for start in (0, 1):
        tail = parts[start:]
        if len(tail) >= 2 and tail[0] in ("train", "test") and (len(tail) > 2 or entry.isdir()):
            return _Member(tail[0], tail[1], "/".join(tail))
    return None


def _source(path: Path) -> _Folder | _Archive:
    if path.is_file() and path.name.endswith(ARCHIVES):
        return _Archive(path)
    if not path.is_dir():
        raise DataError(f"{path} is neither a folder nor a tar archive; it must hold train/<class>/ and test/<class>/")
    inner = [entry for entry in path.iterdir() if entry.is_dir()]
    if not (path / "train").is_dir() and len(inner) == 1:
        path = inner[0]
    for split in ("train", "test"):
        if not (path / split).is_dir():
            raise DataError(f"{path} has no folder {split!r}; it must hold train/<class>/ and test/<class>/")
    return _Folder(path)


def _decode(
    source: _Folder | _Archive, folder: Path, *, image_size: int, on_bad_image: Literal["refuse", "skip"]
) -> None:
    """Decode into raw files that grow as images come, so that a large tree never has to fit in memory."""
    folder.mkdir(parents=True, exist_ok=True)
    labels: dict[str, list[str]] = {"train": [], "test": []}
    skipped = {"train": 0, "test": 0}
    with contextlib.ExitStack() as stack:
        files = {split: stack.enter_context(_pixels(folder, split).open("wb")) for split in labels}
        for member, image in _decode_all(source, image_size=image_size):
            if isinstance(image, Exception):
                if on_bad_image == "refuse":
                    raise DataError(
                        f"image {member.name} cannot be decoded ({image}); mend or remove it, or set on_bad_image: skip"
                    )
                skipped[member.split] += 1
                log.warning("skipped %s: %s", member.name, image)
                continue
            files[member.split].write(image.tobytes())
            labels[member.split].append(member.klass)
    classes = _check_classes(source, labels)
    number = {klass: index for index, klass in enumerate(classes)}
    for split, names in labels.items():
        np.save(folder / f"{split}-labels.npy", np.array([number[name] for name in names], dtype=np.int64))
    # Written last and under its name at once: its presence vouches for the rest.
    temporary = folder / f".meta-{os.getpid()}"
    temporary.write_text(json.dumps({"classes": classes, "n_skipped": skipped, "image_size": image_size}))
    os.replace(temporary, folder / "meta.json")


def _decode_all(
    source: _Folder | _Archive, *, image_size: int
) -> Iterator[tuple[_Member, NDArray[np.uint8] | Exception]]:
    """Each member decoded, in order; by threads where files are large enough to be worth it."""
    members = iter(source)
    decode = partial(_decode_or_error, size=image_size)
    with ThreadPoolExecutor() as pool:
        while block := list(itertools.islice(members, DECODED_AT_ONCE)):
            contents = [content for _, content in block]
            large = sum(map(len, contents)) >= THREADS_FROM_BYTES * len(contents)
            images = pool.map(decode, contents) if large else map(decode, contents)
            yield from zip((member for member, _ in block), images, strict=True)


def _decode_or_error(content: bytes, *, size: int) -> NDArray[np.uint8] | Exception:
    try:
        return decode_image(content, size=size)
    except (OSError, SyntaxError, ValueError) as error:  # what Pillow raises for a broken file
        return error


def decode_image(content: bytes, *, size: int) -> NDArray[np.uint8]:
    """An RGB image (size, size, 3) uint8: resized by its shorter side (bilinear), cropped at the centre."""
    from PIL import Image

    with Image.open(io.BytesIO(content)) as file:
        image = file.convert("RGB")
    if image.size != (size, size):
        scale = size / min(image.size)
        width, height = (max(size, round(side * scale)) for side in image.size)
        image = image.resize((width, height), Image.Resampling.BILINEAR)
        left, top = (width - size) // 2, (height - size) // 2
        image = image.crop((left, top, left + size, top + size))
    return np.asarray(image, dtype=np.uint8)


def _check_classes(source: _Folder | _Archive, labels: dict[str, list[str]]) -> list[str]:
    classes = source.classes("train")
    if len(classes) < 2:
        raise DataError(f"train holds {len(classes)} class folder(s); a classification needs at least two")
    for split in ("train", "test"):
        if not labels[split]:
            raise DataError(f"{split} holds no image; its class folders must hold {', '.join(sorted(SUFFIXES))} files")
        present = set(labels[split])
        if empty := [klass for klass in source.classes(split) if klass not in present]:
            raise DataError(f"class folder {split}/{empty[0]} holds no readable image; fill it or remove it")
    if strange := sorted(set(labels["test"]) - set(classes)):
        raise DataError(f"class {strange[0]!r} is in test but not in train; the two must have the same classes")
    return classes


def _pixels(folder: Path, split: str) -> Path:
    return folder / f"{split}-images.u8"


def _map(folder: Path, split: str, *, image_size: int, n_skipped: int) -> Decoded:
    labels = np.load(folder / f"{split}-labels.npy", allow_pickle=False)
    shape = (len(labels), image_size, image_size, 3)
    # Copy-on-write, because torch wants arrays it may write to; untouched pages are shared between processes.
    images = np.memmap(_pixels(folder, split), dtype=np.uint8, mode="c", shape=shape)
    return Decoded(images=images, labels=labels, n_skipped=n_skipped)


@contextlib.contextmanager
def _lock(folder: Path) -> Iterator[None]:
    """Hold the node's lock for one cached data set; freed by the system if the holder dies."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f"{folder.name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
