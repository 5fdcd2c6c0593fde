"""Spoken digits, SUPERB and Common Language: what their names mean, and what is said where they are not there."""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

from tasks.data import find
from tasks.engine.task import load_task, release_data
from tasks.errors import DataError
from tasks.registry import parse_config
from tasks.runs import check
from tests.tasks.audio.sounds import encoded, tone, write_tone
from tests.tasks.shared_data import shared_data


def load(root: Path, **fields: Any) -> Any:
    config = parse_config({"model": "spectrogram", "sample_rate": 8000, "batch_size": 2, "accumulation": 1, **fields})
    check(config, data_dir=root)
    return load_task(config, data_dir=root, device=torch.device("cpu")).data


def sizes(data: Any) -> list[int]:
    return [len(part) for part in (data.train, data.val, data.test)]


def test_fsdd_is_split_by_take(tmp_path: Path) -> None:
    for digit in range(10):
        for speaker in ("ann", "bo"):
            for take in (0, 4, 5, 10, 49):
                write_tone(tmp_path / f"fsdd/recordings/{digit}_{speaker}_{take}.wav", 300.0, seconds=0.1)
    for data in (
        load(tmp_path, name="fsdd", val_fraction=0.2),
        load(tmp_path, name="fsdd", data_dir="fsdd", val_fraction=0.2),
    ):
        assert data.classes == tuple("0123456789")
        assert sizes(data)[2] == 40  # takes 0 and 4
        assert sum(sizes(data)) == 100
        assert torch.bincount(torch.from_numpy(data.test.labels)).tolist() == [4] * 10


def test_the_real_fsdd() -> None:
    data = load(shared_data("fsdd.tar.xz"), name="fsdd")
    assert sizes(data) == [2430, 270, 300]
    assert torch.bincount(torch.from_numpy(data.val.labels)).tolist() == [27] * 10
    assert data.train.lengths.min() >= 1000


def superb(root: Path, *, archive: bool) -> None:
    train, test = root / "speech_commands_v0.01", root / "speech_commands_test_set_v0.01"
    for word in ("yes", "go", "bed", "cat"):
        for index in range(3):
            write_tone(train / word / f"{index}_nohash_0.wav", 300.0, seconds=0.1)
    write_tone(train / "_background_noise_" / "pink.wav", 50.0, seconds=3.0)
    (train / "validation_list.txt").write_text("yes/1_nohash_0.wav\nbed/1_nohash_0.wav\n")
    (train / "testing_list.txt").write_text("yes/2_nohash_0.wav\n")
    for word in ("yes", "go", "_silence_", "_unknown_"):
        write_tone(test / word / "a.wav", 300.0, seconds=0.1)
    if archive:
        for folder in (train, test):
            with tarfile.open(f"{folder}.tar.gz", "w:gz") as tar:
                for entry in sorted(folder.iterdir()):
                    tar.add(entry, arcname=f"./{entry.name}")  # as the original has it
            folder.rename(root / f"unpacked_{folder.name}")


@pytest.mark.parametrize("archive", [False, True])
def test_superb_has_its_lists_and_its_twelve_classes(tmp_path: Path, archive: bool) -> None:
    superb(tmp_path, archive=archive)
    data = load(tmp_path, name="superb_ks")
    assert data.classes == (
        "yes",
        "no",
        "up",
        "down",
        "left",
        "right",
        "on",
        "off",
        "stop",
        "go",
        "_silence_",
        "_unknown_",
    )
    assert sizes(data) == [10, 2, 4]

    def classes(part: Any) -> list[str]:
        return sorted(data.classes[label] for label in part.labels)

    assert classes(data.train) == ["_silence_", *["_unknown_"] * 5, "go", "go", "go", "yes"]
    assert classes(data.val) == ["_unknown_", "yes"]
    assert classes(data.test) == ["_silence_", "_unknown_", "go", "yes"]
    assert data.train.lengths.max() == 24_000  # the noise, of which training hears a second at a time


def test_superb_without_its_lists_is_refused(tmp_path: Path) -> None:
    superb(tmp_path, archive=False)
    (tmp_path / "speech_commands_v0.01" / "validation_list.txt").unlink()
    with pytest.raises(DataError, match=r"speech_commands_v0\.01 has no validation_list\.txt"):
        load(tmp_path, name="superb_ks")
    (tmp_path / "speech_commands_v0.01" / "validation_list.txt").write_text("yes/nobody.wav\n")
    with pytest.raises(DataError, match="no recording is in val; its folders or its list must name"):
        load(tmp_path, name="superb_ks")


@pytest.mark.parametrize("top", ["CommonLanguage/common_voice_kpd", "common_voice_kpd"])
def test_common_language_has_its_own_splits(tmp_path: Path, top: str) -> None:
    for language in ("Arabic", "Welsh"):
        for split, n in (("train", 3), ("dev", 2), ("test", 1)):
            for index in range(n):
                write_tone(tmp_path / top / language / split / f"sp_{index}" / "x.wav", 300.0, rate=48_000, seconds=0.1)
            (tmp_path / top / language / f"{split}.csv").write_text("not read")
    data = load(tmp_path, name="common_language")
    assert data.classes == ("Arabic", "Welsh")
    assert sizes(data) == [6, 4, 2]
    (tmp_path / top / "Welsh/dev/sp_0/x.wav").unlink()
    (tmp_path / top / "Welsh/dev/sp_1/x.wav").unlink()
    release_data()
    with pytest.raises(DataError, match=r"class folder \S*Welsh/dev\S* holds no readable recording"):
        load(tmp_path, name="common_language")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("fsdd", r"fsdd is not in .*Put there: fsdd\.tar\.xz"),
        ("superb_ks", r"speech_commands_v0\.01 is not in .*Put there: speech_commands_v0\.01\.tar\.gz"),
        ("common_language", r"CommonLanguage is not in .*Put there: CommonLanguage\.tar\.gz"),
    ],
)
def test_nothing_there_and_no_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, expected: str
) -> None:
    def offline(*args: Any, **options: Any) -> Any:
        raise httpx.ConnectError("no route to host")

    monkeypatch.setattr("httpx.stream", offline)
    folder = tmp_path / "with {braces}"
    folder.mkdir()
    with pytest.raises(DataError, match=expected) as caught:
        load(folder, name=name)
    assert "no route to host" in str(caught.value)
    assert str(folder) in str(caught.value)
    with pytest.raises(DataError, match=rf"{expected[:9]}.*data_dir is given"):
        load(tmp_path, name=name, data_dir=folder.name)


@pytest.mark.parametrize("n_broken", [2, 3])
def test_what_is_fetched_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n_broken: int) -> None:
    """On a slow network nothing may come for half a minute: it is fetched anew, twice at most."""
    archive = tmp_path / "source.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        for digit in range(10):
            for take in (0, 7, 8, 9):
                path = tmp_path / f"{digit}_ann_{take}.wav"
                path.write_bytes(encoded(tone(300.0, seconds=0.1, rate=8000), rate=8000))
                tar.add(path, arcname=f"free-spoken-digit-dataset-master/recordings/{path.name}")
    asked: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        if len(asked) <= n_broken:
            raise httpx.ReadTimeout("nothing came for 30 s")
        return httpx.Response(200, content=archive.read_bytes())

    client = httpx.Client(transport=httpx.MockTransport(answer))
    monkeypatch.setattr("httpx.stream", lambda *args, **options: client.stream(*args))
    empty = tmp_path / "empty"
    empty.mkdir()
    monkeypatch.setattr(find, "PAUSE_S", 0.0)
    if n_broken == find.N_TRIES:
        with pytest.raises(DataError, match="nothing came for 30 s"):
            load(empty, name="fsdd", val_fraction=0.34)
        return
    for _ in range(2):
        release_data()
        assert sizes(load(empty, name="fsdd", val_fraction=0.34)) == [20, 10, 10]
    assert len(asked) == n_broken + 1
