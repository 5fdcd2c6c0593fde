"""Reading class-folder trees: <split>/<class>/<image>, from a folder or a tar archive, into one uint8 array.

Decoding 60,000 files takes a while, so the result is kept as a plain array file in the user's cache folder, by the
content's digest; one process a node decodes, the others wait for it and map the file.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import logging
import struct
import zlib
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from tasks.data.find import build_once
from tasks.data.hold_out import Rows
from tasks.data.trees import ClassFolders, Tree, decode_in_order, open_class_folders
from tasks.errors import DataError

if TYPE_CHECKING:
    from PIL import Image

log = logging.getLogger(__name__)

BROKEN = (
    *(OSError, EOFError, SyntaxError, ValueError, TypeError, LookupError, AttributeError, AssertionError),
    *(ArithmeticError, RuntimeError, MemoryError, struct.error, zlib.error),
)
"""What Pillow's decoders raise for a broken file."""
THREADS_FROM_BYTES = 16_384  # mean file size; small files spend their time holding the interpreter's lock
FORMAT = 3  # of the cached arrays; raise it when decoding changes


@dataclass(frozen=True)
class Decoded:
    """One split: images (n, size, size, 3) uint8 (mapped from a file), labels (n,), and how many were skipped."""

    images: NDArray[np.uint8]
    labels: Rows
    n_skipped: int


@dataclass(frozen=True)
class DecodedTree:
    """The splits and their classes, in alphabetical order; `n_others` files are not images."""

    classes: tuple[str, ...]
    train: Decoded
    test: Decoded
    val: Decoded | None = None
    n_others: int = 0


class NotAnImageError(DataError):
    """Pillow does not recognize the content."""


def read_tree(path: Path, *, image_size: int, on_bad_image: Literal["refuse", "skip"]) -> DecodedTree:
    """Decode a tree, or map what an earlier call decoded.

    Args:
        path: a folder or archive that holds train/<class>/…, test/<class>/… and perhaps val/<class>/…; any file there
            that Pillow opens is an image, and the others are counted.
        image_size: images are resized so that the shorter side has this many pixels, then cropped at the centre.
        on_bad_image: an image that cannot be decoded: refuse the data set, or leave the image out.

    Raises:
        DataError: the splits are missing, a class folder is empty or not in the training set, or an image is broken;
            the message names it.
    """
    tree = open_class_folders(path)
    digest = hashlib.blake2b(f"{FORMAT}/{image_size}/{on_bad_image}/{tree.fingerprint()}".encode(), digest_size=16)
    folder = build_once(
        "images",
        digest.hexdigest(),
        lambda folder: _decode(tree, folder, image_size=image_size, on_bad_image=on_bad_image),
    )
    meta = json.loads((folder / "meta.json").read_text())
    splits = {split: _map(folder, split, image_size=image_size, n_skipped=n) for split, n in meta["n_skipped"].items()}
    return DecodedTree(classes=tuple(meta["classes"]), n_others=meta["n_others"], **splits)


def _decode(tree: Tree, folder: Path, *, image_size: int, on_bad_image: Literal["refuse", "skip"]) -> None:
    """Decode into raw files that grow as images come, so that a large tree never has to fit in memory."""
    labels: dict[str, list[str]] = {"train": [], "val": [], "test": []}
    skipped = dict.fromkeys(labels, 0)
    folders = ClassFolders()
    decode = partial(decode_image, size=image_size)
    with contextlib.ExitStack() as stack:
        files = {split: stack.enter_context(_pixels(folder, split).open("wb")) for split in labels}
        for member, image in decode_in_order(folders.read_members(tree), decode, threads_from_bytes=THREADS_FROM_BYTES):
            if isinstance(image, NotAnImageError) and not _is_named_as_image(member.name):
                folders.others.append(member.name)
            elif not isinstance(image, DataError):
                files[member.split].write(image.tobytes())
                labels[member.split].append(member.klass)
            elif on_bad_image == "skip":
                skipped[member.split] += 1
                log.warning("skipped %s: %s", member.name, image)
            else:
                raise DataError(
                    f"image {member.name} cannot be decoded: {image}; repair or remove it (image_folder also takes "
                    "on_bad_image: skip)"
                )
    if "val" not in folders.found:
        del labels["val"], skipped["val"]
    if folders.others:
        log.warning("%d files are not images in class folders, among them %s", len(folders.others), folders.others[0])
    classes = folders.check(labels, what="image")
    number = {klass: index for index, klass in enumerate(classes)}
    for split, names in labels.items():
        np.save(folder / f"{split}-labels.npy", np.array([number[name] for name in names], dtype=np.int64))
    meta = {"classes": classes, "n_skipped": skipped, "n_others": len(folders.others)}
    (folder / "meta.json").write_text(json.dumps(meta))


def _is_named_as_image(name: str) -> bool:
    from PIL import Image

    return Image.registered_extensions().get(PurePosixPath(name).suffix.lower()) in Image.OPEN


def decode_image(content: bytes, *, size: int) -> NDArray[np.uint8]:
    """An RGB image (size, size, 3) uint8: resized by its shorter side (bilinear), cropped at the centre.

    Raises:
        DataError: the content is not an image, is broken, or has grey levels of unknown range.
    """
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(io.BytesIO(content)) as file:
            return _crop(_rgb(file), size=size)
    except UnidentifiedImageError as error:
        raise NotAnImageError(f"its {len(content)} bytes are not an image that Pillow can read") from error
    except (*BROKEN, Image.DecompressionBombError) as error:
        raise DataError(str(error) or type(error).__name__) from error


def _crop(image: Image.Image, *, size: int) -> NDArray[np.uint8]:
    from PIL import Image

    if image.size != (size, size):
        scale = size / min(image.size)
        whole = [max(size, round(side * scale)) for side in image.size]
        first = [(side - size) // 2 for side in whole]
        # The crop alone is computed: a long narrow image would be huge where its shorter side has grown.
        (left, right), (top, bottom) = (
            (begin * side / resized, (begin + size) * side / resized)
            for begin, side, resized in zip(first, image.size, whole, strict=True)
        )
        image = image.resize((size, size), Image.Resampling.BILINEAR, box=(left, top, right, bottom))
    return np.asarray(image, dtype=np.uint8)


def _rgb(file: Image.Image) -> Image.Image:
    """In RGB; 16-bit grey levels by their upper byte, where Pillow would make all above 255 white."""
    if file.mode.startswith("I;16") or (file.mode, file.format) == ("I", "PPM"):
        from PIL import Image

        return Image.fromarray((np.asarray(file) >> 8).astype(np.uint8)).convert("RGB")
    if file.mode in ("I", "F"):
        raise ValueError(f"the range of grey levels of mode {file.mode!r} is unknown; use 8 or 16 bits")
    return file.convert("RGB")


def _pixels(folder: Path, split: str) -> Path:
    return folder / f"{split}-images.u8"


def _map(folder: Path, split: str, *, image_size: int, n_skipped: int) -> Decoded:
    labels = np.load(folder / f"{split}-labels.npy", allow_pickle=False)
    shape = (len(labels), image_size, image_size, 3)
    # Copy-on-write, because torch wants arrays it may write to; untouched pages are shared between processes.
    images = np.memmap(_pixels(folder, split), dtype=np.uint8, mode="c", shape=shape)
    return Decoded(images=images, labels=labels, n_skipped=n_skipped)
