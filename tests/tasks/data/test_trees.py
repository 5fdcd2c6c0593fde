"""Folders and archives as trees of files: names, links, hidden files, and damaged archives."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest

from tasks.data import trees
from tasks.data.trees import DECODED_AT_ONCE, PROCESSES_FROM, Tree, decode_in_order, open_tree
from tasks.errors import DataError


def files(tree: Tree) -> dict[str, bytes]:
    found = tree.entries(lambda _: True)
    return {entry.name: trees.read_content(entry.content) for entry in found if entry.content is not None}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "tree"
    (folder / "a").mkdir(parents=True)
    for name in ("one", "two", "three"):
        (folder / "a" / name).write_bytes(name.encode() * 200)
    return folder


def pack(root: Path, *, mode: str = "w") -> Path:
    archive = root.parent / "tree.tar"
    with tarfile.open(archive, mode) as tar:  # type: ignore[call-overload]
        tar.add(root, arcname=".")
    return archive


@pytest.mark.parametrize("kind", ["folder", "archive"])
def test_names_that_are_not_utf8_become_text(root: Path, kind: str) -> None:
    folder = os.fsencode(root) + b"/\xff"
    os.mkdir(folder)
    Path(os.fsdecode(folder + b"/\xfe.png")).write_bytes(b"x")
    tree = open_tree(root if kind == "folder" else pack(root))
    assert files(tree)[r"\xff/\xfe.png"] == b"x"
    assert tree.fingerprint()
    assert r"\xff" in [entry.name for entry in tree.entries(lambda _: False) if entry.is_folder]


@pytest.mark.parametrize("kind", ["folder", "archive"])
def test_hidden_files_are_passed_over(root: Path, kind: str) -> None:
    (root / "a/._one").write_bytes(b"a Mac's notes on the file")
    (root / ".checkpoints").mkdir()
    (root / ".checkpoints/one").write_bytes(b"x")
    tree = open_tree(root if kind == "folder" else pack(root))
    assert sorted(files(tree)) == ["a/one", "a/three", "a/two"]


def test_links_are_followed(root: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/four").write_bytes(b"4")
    (root / "b").symlink_to(tmp_path / "elsewhere")
    assert files(open_tree(root))["b/four"] == b"4"


def test_a_link_that_leads_nowhere_is_named(root: Path) -> None:
    (root / "a/gone.png").symlink_to(root / "nothing")
    with pytest.raises(DataError, match=r"a/gone\.png cannot be read: No such file"):
        files(open_tree(root))


@pytest.mark.parametrize(
    ("target", "reason"), [("gone.png", "Too many levels of symbolic links"), ("one/x", "Not a directory")]
)
def test_a_link_that_names_itself_or_a_file_as_a_folder_is_named(root: Path, target: str, reason: str) -> None:
    (root / "a/gone.png").symlink_to(target)
    assert open_tree(root).fingerprint()
    with pytest.raises(DataError, match=rf"a/gone\.png cannot be read: {reason}"):
        files(open_tree(root))


def test_a_pipe_is_not_read_nor_a_link_to_one(root: Path) -> None:
    """Nothing writes to it: reading would wait without end, and of a device it would not end."""
    os.mkfifo(root / "a/pipe")
    (root / "a/to_pipe").symlink_to("pipe")
    entries = {entry.name: entry for entry in open_tree(root).entries(lambda _: True)}
    assert entries["a/pipe"].content is None
    assert entries["a/to_pipe"].content is None
    assert not entries["a/to_pipe"].is_folder


def test_a_link_to_its_own_folder_is_named(root: Path) -> None:
    (root / "b").mkdir()
    (root / "a/to_b").symlink_to(root / "b")
    (root / "b/to_a").symlink_to(root / "a")
    with pytest.raises(DataError, match=r"a/to_b/to_a is a link to a folder that holds it"):
        files(open_tree(root))


def test_an_empty_folder_counts_in_the_fingerprint(root: Path) -> None:
    before = open_tree(root).fingerprint()
    (root / "empty").mkdir()
    assert open_tree(root).fingerprint() != before


def test_a_damaged_header_is_not_taken_for_the_end(root: Path) -> None:
    archive = pack(root)
    content = bytearray(archive.read_bytes())
    with tarfile.open(archive) as tar:
        begin = tar.getmembers()[-1].offset
    content[begin + 10] ^= 0xFF
    archive.write_bytes(content)
    with pytest.raises(DataError, match=r"tree\.tar cannot be read: bad checksum where a file or the archive's end"):
        files(open_tree(archive))


def test_an_archive_cut_between_two_files_is_refused(root: Path) -> None:
    archive = pack(root)
    with tarfile.open(archive) as tar:
        begin = tar.getmembers()[-1].offset
    archive.write_bytes(archive.read_bytes()[:begin])
    with pytest.raises(DataError, match=r"tree\.tar cannot be read: empty header"):
        files(open_tree(archive))


def test_long_names_and_zeros_at_the_end_are_fine(root: Path) -> None:
    (root / "a" / ("x" * 200)).write_bytes(b"long")
    for style in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w", format=style) as tar:
            tar.add(root, arcname=".")
        archive = root.parent / "long.tar"
        archive.write_bytes(buffer.getvalue() + bytes(10_240))
        assert files(open_tree(archive))["a/" + "x" * 200] == b"long"


def _bomb(path: Path, *, size: int, n: int) -> Path:
    """A compressed archive of files of zeros."""
    with tarfile.open(path, "w:xz") as archive:
        for i in range(n):
            entry = tarfile.TarInfo(f"train/a/{i}.txt")
            entry.size = size
            archive.addfile(entry, io.BytesIO(bytes(size)))
    return path


def test_an_archive_that_unpacks_to_far_more_than_its_size_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trees, "_MAX_FILE", 1 << 20)
    for size, n in ((2 << 20, 1), (1 << 20, 3)):  # one file too large; several too large together
        tree = open_tree(_bomb(tmp_path / "bomb.tar.xz", size=size, n=n))
        with pytest.raises(DataError, match="unpacks to too much at 'train/a/"):
            list(tree.entries(lambda name: True))


def test_a_sparse_file_of_a_declared_tebibyte_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "sparse.tar"
    entry = tarfile.TarInfo("train/a/0.txt")
    entry.size = 1 << 40
    path.write_bytes(entry.tobuf(tarfile.GNU_FORMAT) + bytes(10_240))
    with pytest.raises(DataError, match="unpacks to too much"):
        list(open_tree(path).entries(lambda name: True))


def _length_of(content: bytes) -> int:
    if content == b"broken":
        raise DataError("it is broken")
    if content == b"fatal":
        os._exit(3)
    if content == b"printed":
        os.write(1, b"what a library prints is no answer\n")
    return len(content)


def test_many_small_files_are_decoded_by_processes_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trees, "usable_cpus", lambda: 3)
    files = [(n, b"x" * (n % 50)) for n in range(PROCESSES_FROM * DECODED_AT_ONCE + 10)]
    files[700], files[800] = (700, b"broken"), (800, b"printed")
    decoded = list(decode_in_order(iter(files), _length_of, threads_from_bytes=1000))
    assert [key for key, _ in decoded] == [key for key, _ in files]
    assert str(decoded[700][1]) == "it is broken"
    assert [length for key, length in decoded if key != 700] == [len(content) for key, content in files if key != 700]


def test_a_file_that_kills_the_process_that_decodes_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trees, "usable_cpus", lambda: 2)
    files = [(n, b"x") for n in range(PROCESSES_FROM * DECODED_AT_ONCE)]
    files[900] = (900, b"fatal")
    with pytest.raises(DataError, match="a process that decodes files ended with exit code 3"):
        list(decode_in_order(iter(files), _length_of, threads_from_bytes=1000))


@pytest.mark.parametrize("n_files", [1, PROCESSES_FROM * DECODED_AT_ONCE])
def test_a_file_of_a_folder_that_is_gone_is_told_whoever_reads_it(tmp_path: Path, n_files: int) -> None:
    """In processes and in this one; it is no file that cannot be decoded, which a task may leave out."""
    (tmp_path / "there").write_bytes(b"x")
    files = [(n, str(tmp_path / ("gone" if n == n_files - 1 else "there"))) for n in range(n_files)]
    with pytest.raises(DataError, match=r"gone cannot be read: No such file or directory; repair or remove it"):
        list(decode_in_order(iter(files), _length_of, threads_from_bytes=1000))
