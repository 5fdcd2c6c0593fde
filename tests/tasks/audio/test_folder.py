"""Own recordings: layouts of folders and archives, what is refused and how it is named."""

from __future__ import annotations

import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tasks.engine.task import load_task, release_data
from tasks.errors import ConfigError, DataError
from tasks.registry import parse_config
from tasks.runs import check
from tests.tasks.audio.sounds import write_tone

PITCHES = {"high": 1600.0, "low": 300.0, "mid": 800.0}


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """`calls`: three classes, 10 training and 4 test recordings each, of two formats and three rates."""
    seed = 0
    for split, n in (("train", 10), ("test", 4)):
        for klass, hz in PITCHES.items():
            for index in range(n):
                seed += 1
                name = f"{index}.{('wav', 'flac')[index % 2]}"
                rate = (8000, 16_000, 22_050)[index % 3]
                write_tone(tmp_path / "data/calls" / split / klass / name, hz, seconds=0.2, rate=rate, seed=seed)
    (tmp_path / "data/calls/train/low/notes.txt").write_text("not a recording")
    return tmp_path / "data"


def config(**fields: Any) -> Any:
    base = {"name": "audio_folder", "data_dir": "calls", "model": "spectrogram", "sample_rate": 8000, "batch_size": 8}
    return parse_config({**base, **fields})


def load(root: Path, **fields: Any) -> Any:
    return load_task(config(**fields), data_dir=root, device=torch.device("cpu")).data


def sizes(data: Any) -> list[int]:
    return [len(part) for part in (data.train, data.val, data.test)]


def test_splits_classes_and_rates(data_dir: Path) -> None:
    check(config(), data_dir=data_dir)
    data = load(data_dir)
    assert data.classes == ("high", "low", "mid")
    assert sizes(data) == [27, 3, 12]
    assert sorted(data.val.labels.tolist()) == [0, 1, 2]
    for part in (data.train, data.val, data.test):
        assert all(abs(length - 1600) <= 1 for length in part.lengths.tolist())  # 0.2 s at every rate


def move_to_validation(data_dir: Path) -> None:
    for klass in PITCHES:
        for index in range(2):
            source = next((data_dir / "calls/train" / klass).glob(f"{index}.*"))
            target = data_dir / "calls/dev" / klass / source.name
            target.parent.mkdir(parents=True, exist_ok=True)
            source.rename(target)


def test_a_validation_folder_is_used(data_dir: Path) -> None:
    move_to_validation(data_dir)
    assert sizes(load(data_dir)) == [24, 6, 12]


def test_classes_alone_are_split(data_dir: Path) -> None:
    (data_dir / "calls/train").rename(data_dir / "plain")
    data = load(data_dir, data_dir="plain", test_fraction=0.2, val_fraction=0.25)
    assert sizes(data) == [18, 6, 6]
    other = load(data_dir, data_dir="plain", test_fraction=0.2, val_fraction=0.25, split_seed=1)
    assert other.test.starts.tolist() == data.test.starts.tolist()  # the test set never moves
    assert other.val.starts.tolist() != data.val.starts.tolist()


@pytest.mark.parametrize(("inner", "prefix"), [("calls", "calls"), ("calls", "."), ("calls/train", "birds")])
def test_an_archive_is_the_same_as_its_folder(data_dir: Path, inner: str, prefix: str) -> None:
    with tarfile.open(data_dir / "packed.tar.gz", "w:gz") as tar:
        tar.add(data_dir / inner, arcname=prefix)
    folder, archive = load(data_dir, data_dir=inner), load(data_dir, data_dir="packed.tar.gz")
    assert folder.classes == archive.classes
    assert sizes(folder) == sizes(archive)


def test_decoded_once(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load(data_dir)
    release_data()
    monkeypatch.setattr("tasks.audio.recordings.decode", lambda *a, **k: pytest.fail("decoded a second time"))
    load(data_dir)


def tear(data_dir: Path) -> None:
    path = data_dir / "calls/train/mid/2.wav"
    path.write_bytes(path.read_bytes()[:1000])


def test_a_torn_recording_is_named_or_skipped(data_dir: Path) -> None:
    tear(data_dir)
    with pytest.raises(DataError, match=r"recording train/mid/2\.wav cannot be read \(truncated: .*on_bad_audio: skip"):
        check(config(), data_dir=data_dir)
    data = load(data_dir, on_bad_audio="skip")
    assert data.n_skipped == 1
    assert sizes(data) == [26, 3, 12]


def empty_class(data_dir: Path) -> None:
    for file in (data_dir / "calls/train/mid").iterdir():
        file.unlink()


def single(data_dir: Path) -> None:
    for file in sorted((data_dir / "calls/train/mid").iterdir())[1:]:
        file.unlink()


def one_class(data_dir: Path) -> None:
    for klass in ("mid", "low"):
        for split in ("train", "test"):
            (data_dir / "calls" / split / klass).rename(data_dir / f"{split}-{klass}")


REFUSALS: list[tuple[Callable[[Path], object], dict[str, Any], str]] = [
    (empty_class, {}, "class folder train/mid holds no readable recording"),
    (single, {}, "class 'mid' has 1 recording.* too few to be in validation"),
    (one_class, {}, r"the training set has 1 class\(es\)"),
    (lambda d: (d / "calls/test/mid").rename(d / "calls/test/yak"), {}, "class 'yak' is in test but not in train"),
    (lambda d: (d / "calls/test").rename(d / "calls/rest"), {}, r"class folders in train/ but none in test/"),
    (lambda d: (d / "empty").mkdir(), {"data_dir": "empty"}, "no recording was found"),
    (lambda _: None, {"data_dir": "birds"}, "'birds' is not in the data folder"),
    (lambda _: None, {"data_dir": "calls/train/mid/2.wav"}, "neither a folder nor a tar archive"),
    (lambda _: None, {"val_fraction": 0.01}, "gives 0 for validation and 30 for training"),
]


@pytest.mark.parametrize(("spoil", "fields", "message"), REFUSALS, ids=[m for _, _, m in REFUSALS])
def test_what_is_refused(data_dir: Path, spoil: Callable[[Path], object], fields: dict[str, Any], message: str) -> None:
    spoil(data_dir)
    with pytest.raises(DataError, match=message):
        check(config(**fields), data_dir=data_dir)


def test_what_does_not_fit_is_refused(data_dir: Path) -> None:
    with pytest.raises(ConfigError, match="more than the 27 training samples"):
        check(config(batch_size=28), data_dir=data_dir)
    with pytest.raises(DataError, match="needs a data folder"):
        check(config(), data_dir=None)
