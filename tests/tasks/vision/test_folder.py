"""Class folders and archives: what is read, what is refused and how it is named."""

from __future__ import annotations

import io
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tasks.engine.task import load_task, release_data
from tasks.errors import ConfigError, DataError
from tasks.registry import parse_config
from tasks.runs import check, open_run
from tasks.vision.images import decode_image
from tests.tasks.shared_data import shared_case

CLASSES = ("cat", "dog", "emu")


def picture(seed: int, *, width: int = 20, height: int = 16) -> Image.Image:
    rng = np.random.default_rng(seed)
    return Image.fromarray(rng.integers(0, 256, size=(height, width, 3), dtype=np.uint8))


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """A data folder with `pets`: three classes, 10 training and 4 test pictures each, of several formats and sizes."""
    seed = 0
    for split, n in (("train", 10), ("test", 4)):
        for klass in CLASSES:
            folder = tmp_path / "data" / "pets" / split / klass
            folder.mkdir(parents=True)
            for index in range(n):
                seed += 1
                suffix = ("png", "jpg", "bmp")[index % 3]
                picture(seed, width=16 + index, height=30 - index).save(folder / f"{index}.{suffix}")
            (folder / "notes.txt").write_text("not an image")
    return tmp_path / "data"


def config(**fields: Any) -> Any:
    base = {"name": "image_folder", "data_dir": "pets", "image_size": 16, "batch_size": 8, "epochs": 1}
    return parse_config({**base, **fields})


def load(root: Path, **fields: Any) -> Any:
    return load_task(config(**fields), data_dir=root, device=torch.device("cpu")).data


def test_reads_splits_and_trains(data_dir: Path) -> None:
    check(config(), data_dir=data_dir)
    data = load(data_dir)
    assert data.classes == CLASSES
    assert [len(part) for part in (data.train, data.val, data.test)] == [27, 3, 12]
    assert sorted(data.val.labels.tolist()) == [0, 1, 2]
    assert not set(data.train.rows.tolist()) & set(data.val.rows.tolist())
    run = open_run(config(), optimizer="sgdm", params={"lr": 0.1}, seed=0, data_dir=data_dir, device="cpu")
    assert run.advance().step == 27 // 8
    assert set(run.test()) == {"test_accuracy", "test_loss"}
    record = run.environment()
    assert (record["n_train"], record["n_skipped_images"], record["n_other_files"]) == (27, 0, 6)  # notes.txt


def test_pixels_are_pillows(data_dir: Path) -> None:
    source = Image.open(data_dir / "pets/test/cat/0.png").convert("RGB")
    assert source.size == (16, 30)
    expected = np.asarray(source)[7:23, :, :]  # the shorter side is already 16: centre crop alone
    np.testing.assert_array_equal(load(data_dir).test.images[0].numpy(), expected)


def pack(source: Path, archive: Path, *, prefix: str) -> None:
    with tarfile.open(archive, "w:xz") as tar:
        tar.add(source, arcname=prefix)


@pytest.mark.parametrize("prefix", ["pets", "."])
def test_an_archive_is_the_same_as_its_folder(data_dir: Path, prefix: str) -> None:
    pack(data_dir / "pets", data_dir / "pets.tar.xz", prefix=prefix)
    folder, archive = load(data_dir), load(data_dir, data_dir="pets.tar.xz")
    assert folder.classes == archive.classes
    for one, other in ((folder.train, archive.train), (folder.test, archive.test)):
        both = [sorted(bytes(image) for image in part.images.numpy()) for part in (one, other)]
        assert both[0] == both[1]


def test_decoded_once(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load(data_dir)
    release_data()
    monkeypatch.setattr("tasks.vision.images.decode_image", lambda *a, **k: pytest.fail("decoded a second time"))
    load(data_dir)


def test_a_changed_tree_is_decoded_anew(data_dir: Path) -> None:
    assert len(load(data_dir).test) == 12
    release_data()
    picture(99).save(data_dir / "pets/test/emu/new.png")
    assert len(load(data_dir).test) == 13


def break_image(data_dir: Path) -> None:
    (data_dir / "pets/train/dog/3.png").write_bytes(b"\x89PNG\r\n\x1a\n torn")


def test_a_broken_image_is_named_or_skipped(data_dir: Path) -> None:
    break_image(data_dir)
    with pytest.raises(
        DataError, match=r"image train/dog/3\.png cannot be decoded: its 13 bytes are not an image.*on_bad_image: skip"
    ):
        check(config(), data_dir=data_dir)
    data = load(data_dir, on_bad_image="skip")
    assert data.n_skipped == 1
    assert len(data.train) + len(data.val) == 29


def test_an_image_too_large_to_be_true_is_named_or_skipped(data_dir: Path) -> None:
    Image.new("1", (20_000, 10_000)).save(data_dir / "pets/train/dog/huge.png")
    with pytest.raises(DataError, match=r"image train/dog/huge\.png cannot be decoded: Image size"):
        check(config(), data_dir=data_dir)
    assert load(data_dir, on_bad_image="skip").n_skipped == 1


def encoded(values: Any, format: str) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(values).save(buffer, format)
    return buffer.getvalue()


@pytest.mark.parametrize("format", ["PNG", "TIFF", "PPM"])
def test_16_bit_greys_keep_their_upper_byte(format: str) -> None:
    greys = np.arange(256, dtype=np.uint16).reshape(16, 16)
    pixels = decode_image(encoded(greys * 257, format), size=16)
    np.testing.assert_array_equal(pixels, np.repeat(greys[..., None], 3, axis=2))


def test_greys_of_unknown_range_are_refused() -> None:
    with pytest.raises(DataError, match="grey levels of mode 'F' is unknown"):
        decode_image(encoded(np.ones((16, 16), dtype=np.float32), "TIFF"), size=16)


@pytest.mark.parametrize("size", [(40, 31), (20, 90), (7, 9), (16, 300)])
def test_the_crop_is_that_of_the_whole_resized_image(size: tuple[int, int]) -> None:
    source = picture(3, width=size[0], height=size[1])
    scale = 16 / min(size)
    whole = source.resize((max(16, round(size[0] * scale)), max(16, round(size[1] * scale))), Image.Resampling.BILINEAR)
    left, top = (whole.width - 16) // 2, (whole.height - 16) // 2
    expected = np.asarray(whole.crop((left, top, left + 16, top + 16))).astype(int)
    pixels = decode_image(encoded(np.asarray(source), "PNG"), size=16)
    assert np.abs(pixels - expected).max() <= 1  # a rounding apart


def test_a_long_narrow_image_takes_no_memory_of_its_length() -> None:
    content = encoded(np.zeros((20_000, 1), dtype=np.uint8), "PNG")
    assert decode_image(content, size=1024).shape == (1024, 1024, 3)  # resized whole it would have 63 GB


def empty_class(data_dir: Path) -> None:
    for file in (data_dir / "pets/train/emu").iterdir():
        file.unlink()


def single_image(data_dir: Path) -> None:
    for file in sorted((data_dir / "pets/train/emu").glob("*.*"))[1:]:
        file.unlink()


def strange_test_class(data_dir: Path) -> None:
    (data_dir / "pets/test/emu").rename(data_dir / "pets/test/yak")


def only_test(data_dir: Path) -> None:
    shutil.rmtree(data_dir / "pets/train")


def no_class_folders(data_dir: Path) -> None:
    for split in ("train", "test"):
        shutil.rmtree(data_dir / "pets" / split)
        (data_dir / "pets" / split).mkdir()


def no_test(data_dir: Path) -> None:
    (data_dir / "pets/test").rename(data_dir / "pets/holdout")


def torn_archive(data_dir: Path) -> None:
    pack(data_dir / "pets", data_dir / "pets.tar.xz", prefix="pets")
    content = (data_dir / "pets.tar.xz").read_bytes()
    (data_dir / "pets.tar.xz").write_bytes(content[: len(content) // 2])


REFUSALS: list[tuple[Callable[[Path], None], dict[str, Any], str]] = [
    (empty_class, {}, "class folder train/emu holds no readable image"),
    (single_image, {}, "class 'emu' has 1 training image.* too few to be in"),
    (strange_test_class, {}, "class 'yak' is in test but not in train"),
    (lambda _: None, {"val_fraction": 0.95}, "too few to be in training at val_fraction 0.95; .* lower val_fraction"),
    (lambda _: None, {"val_fraction": 0.01}, "gives 0 for validation and 30 for training"),
    (no_test, {}, "has no folder 'test'"),
    (only_test, {}, "pets has no folder 'train'"),
    (no_class_folders, {}, "no image is in train/<class>/"),
    (torn_archive, {"data_dir": "pets.tar.xz"}, r"pets\.tar\.xz cannot be read"),
    (lambda _: None, {"data_dir": "birds"}, "'birds' is not in the data folder"),
    (lambda _: None, {"data_dir": "pets/train/cat/0.png"}, "neither a folder nor a tar archive"),
    (lambda data_dir: (data_dir / "out").symlink_to("/etc"), {"data_dir": "out"}, "leads out of the data folder"),
]


@pytest.mark.parametrize(("spoil", "fields", "message"), REFUSALS, ids=[m for _, _, m in REFUSALS])
def test_what_is_refused(data_dir: Path, spoil: Callable[[Path], None], fields: dict[str, Any], message: str) -> None:
    spoil(data_dir)
    with pytest.raises(DataError, match=message):
        check(config(**fields), data_dir=data_dir)


def test_what_does_not_fit_is_refused(data_dir: Path) -> None:
    with pytest.raises(ConfigError, match="more than the 27 training samples"):
        check(config(batch_size=28), data_dir=data_dir)
    with pytest.raises(ConfigError, match="does not take batches"):
        check(config(model="torchvision/inception_v3"), data_dir=data_dir)
    with pytest.raises(DataError, match="needs a data folder"):
        check(config(), data_dir=None)


def test_links_in_an_archive_are_not_followed(data_dir: Path) -> None:
    secret = data_dir.parent / "secret.png"
    picture(5).save(secret)
    pack(data_dir / "pets", data_dir / "pets.tar", prefix="pets")
    with tarfile.open(data_dir / "evil.tar", "w") as out, tarfile.open(data_dir / "pets.tar") as good:
        for member in good:
            out.addfile(member, good.extractfile(member) if member.isfile() else None)
        link = tarfile.TarInfo("pets/train/cat/link.png")
        link.type, link.linkname = tarfile.SYMTYPE, str(secret)
        out.addfile(link)
        climber = tarfile.TarInfo("../../climb.png")
        climber.size = 3
        out.addfile(climber, io.BytesIO(b"abc"))
    data = load(data_dir, data_dir="evil.tar")
    assert len(data.train) + len(data.val) == 30
    assert not list(data_dir.parent.glob("**/climb.png"))


@pytest.mark.parametrize(
    ("suffix", "kind"),
    [(".jfif", "JPEG"), (".jpe", "JPEG"), ("", "PNG"), (".JPG", "JPEG"), (".avif", "AVIF"), (".jp2", "JPEG2000")],
)
def test_whatever_pillow_opens_is_an_image(data_dir: Path, suffix: str, kind: str) -> None:
    Image.init()
    if kind not in Image.SAVE:
        pytest.skip(f"this Pillow writes no {kind}")
    buffer = io.BytesIO()
    picture(5, width=32, height=32).save(buffer, format=kind)
    (data_dir / f"pets/test/emu/new{suffix}").write_bytes(buffer.getvalue())
    assert len(load(data_dir).test) == 13


def test_other_files_are_counted(data_dir: Path) -> None:
    (data_dir / "pets/extra/emu").mkdir(parents=True)
    picture(1).save(data_dir / "pets/extra/emu/0.png")
    (data_dir / "pets/readme").write_text("read me")
    assert load(data_dir).n_others == 6 + 2
    (data_dir / "pets/train/cat/broken.jfif").write_text("an image by its name")
    release_data()
    with pytest.raises(DataError, match=r"broken\.jfif cannot be decoded"):
        load(data_dir)


@pytest.mark.parametrize("name", ["val", "valid", "validation", "dev"])
def test_a_validation_folder_is_used(data_dir: Path, name: str) -> None:
    shutil.copytree(data_dir / "pets/test", data_dir / "pets" / name)
    data = load(data_dir)
    assert [len(part) for part in (data.train, data.val, data.test)] == [30, 12, 12]
    assert torch.equal(data.val.images[data.val.rows], data.test.images[data.test.rows])
    shutil.rmtree(data_dir / "pets" / name / "emu")
    (data_dir / "pets" / name / "emu").mkdir()
    release_data()
    with pytest.raises(DataError, match="class folder val/emu holds no readable image"):
        load(data_dir)


@pytest.mark.parametrize("form", ["folder", "archive"])
def test_a_class_in_two_unicode_forms_is_one(data_dir: Path, form: str) -> None:
    (data_dir / "pets/train/cat").rename(data_dir / "pets/train/caf\u00e9")
    (data_dir / "pets/test/cat").rename(data_dir / "pets/test/cafe\u0301")
    if form == "archive":
        pack(data_dir / "pets", data_dir / "pets.tar.xz", prefix="pets")
    data = load(data_dir, **({"data_dir": "pets.tar.xz"} if form == "archive" else {}))
    assert data.classes == ("caf\u00e9", "dog", "emu")
    assert len(data.test) == 12


@pytest.mark.parametrize(("name", "sizes"), [("images_jfif", 90), ("images_nfc", 50)])
def test_real_folders_of_these_kinds(name: str, sizes: int) -> None:
    data = load(shared_case(name).parent, data_dir=name)
    assert len(data.classes) == 2
    assert sum(map(len, (data.train, data.val, data.test))) == sizes
