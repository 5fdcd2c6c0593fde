"""Where an audio data set lies: in the data folder, as a folder or an archive, or fetched once a node."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tasks.fetch import NAMED_FOLDER, fetched, nowhere
from tasks.trees import ARCHIVES, Tree, open_tree


def find_tree(
    folder: Path, stems: Sequence[str], *, url: str | None, file: str, expected: str, inside: str | None = None
) -> Tree:
    """The tree of a data set.

    Args:
        folder: where to look: for <stem>/ and for archives <stem>.tar and so on.
        inside: a folder that shows that `folder` is the data set's own.
        url, file: where it is fetched from if nothing is found (None: nowhere), and the archive's name.
        expected: what may be put into the folder instead, for the error.

    Raises:
        DataError: nothing found and nothing fetched; the message names the folder and the files expected.
    """
    if inside is not None and (folder / inside).is_dir():
        return open_tree(folder)
    for stem in stems:
        for candidate in (folder / stem, *(folder / f"{stem}{suffix}" for suffix in ARCHIVES)):
            if candidate.is_dir() or candidate.is_file():
                return open_tree(candidate)
    missing = f"{stems[0]} is not in {folder} and could not be fetched ({{reason}}). Put there: {expected}"
    if url is None:
        raise nowhere(missing, reason=NAMED_FOLDER)
    return open_tree(fetched(url, file=file, missing=missing))
