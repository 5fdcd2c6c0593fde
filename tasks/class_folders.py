"""Class folders: <split>/<class>/…/<file>, perhaps under one folder of its own, in a folder or an archive."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from tasks.errors import DataError
from tasks.trees import Tree, open_tree

SPLITS: Mapping[str, str] = {"train": "train", "test": "test"}
"""Names of split folders → the split."""


@dataclass(frozen=True)
class Member:
    """A file of a class; `name` starts with its split's folder."""

    split: str
    klass: str
    name: str


@dataclass
class ClassFolders:
    """What was seen of a tree while its files were read: the class folders of each split, empty ones too."""

    found: dict[str, set[str]] = field(default_factory=dict)

    def members(
        self, tree: Tree, *, suffixes: Set[str], splits: Mapping[str, str] = SPLITS
    ) -> Iterator[tuple[Member, bytes]]:
        """The files of the tree that end in one of `suffixes` and lie in a class folder."""
        for entry in tree.entries(lambda name: PurePosixPath(name).suffix.lower() in suffixes):
            path = PurePosixPath(entry.name)
            member = _member(path if entry.is_folder else path.parent, path, splits)
            if member is None:
                continue
            self.found.setdefault(member.split, set()).add(member.klass)
            if entry.content is not None:
                yield member, entry.content

    def check(self, labels: Mapping[str, list[str]], *, what: str, suffixes: Set[str]) -> list[str]:
        """The classes, in alphabetical order.

        Args:
            labels: by split, the class of each file that could be read.
            what: what a file holds, in the singular: "image".

        Raises:
            DataError: fewer than two classes, a split or a class folder without a readable file, or a class that the
                training set does not know.
        """
        if not self.found:
            raise DataError(f"no {what} lies in train/<class>/ or test/<class>/; the data set must have both folders")
        classes = sorted(self.found.get("train", ()))
        if len(classes) < 2:
            raise DataError(f"train holds {len(classes)} class folder(s); a classification needs at least two")
        for split, names in labels.items():
            if not names:
                raise DataError(
                    f"{split} holds no {what}; its class folders must hold {', '.join(sorted(suffixes))} files"
                )
            if empty := sorted(self.found[split] - set(names)):
                raise DataError(
                    f"class folder {split}/{empty[0]} holds no readable {what} ({', '.join(sorted(suffixes))}); fill "
                    "it or remove it"
                )
            if strange := sorted(set(names) - set(classes)):
                raise DataError(
                    f"class {strange[0]!r} is in {split} but not in train; every class must have training {what}s"
                )
        return classes


def open_class_folders(path: Path) -> Tree:
    """The tree at a path whose top, or whose one folder, holds train/ and test/; of an archive this shows later.

    Raises:
        DataError: nothing there, or a folder without them.
    """
    if path.is_dir():
        inner = [entry for entry in path.iterdir() if entry.is_dir() and not entry.name.startswith(".")]
        if len(inner) == 1 and (inner[0] / "train").is_dir():
            path = inner[0]
        for split in ("train", "test"):
            if not (path / split).is_dir():
                raise DataError(f"{path} has no folder {split!r}; it must hold train/<class>/ and test/<class>/")
    return open_tree(path)


def _member(folder: PurePosixPath, path: PurePosixPath, splits: Mapping[str, str]) -> Member | None:
    """Where a folder, or a file in it, belongs; None outside the class folders."""
    for start in (0, 1):
        parts = folder.parts[start:]
        if len(parts) >= 2 and parts[0] in splits:
            return Member(splits[parts[0]], parts[1], "/".join(path.parts[start:]))
    return None
