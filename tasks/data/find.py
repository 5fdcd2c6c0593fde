"""Paths of a definition stay under the data folder.

Files from the internet, fetched once a node by one process and kept; a clear word where there is no network.

Data sets of the Hugging Face hub, through `datasets`; a clear word where there is no network.

Where an audio data set lies: in the data folder, as a folder or an archive, or fetched once a node."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tasks.data.cache import built_once
from tasks.data.trees import ARCHIVES, Tree, open_tree
from tasks.errors import DataError

log = logging.getLogger(__name__)

TIMEOUT_S = 30.0  # without a byte
NAMED_FOLDER = "data_dir is given, so nothing else is looked for"
"""Why nothing was fetched where the configuration names the folder to look in."""


def nowhere(missing: str, *, reason: str) -> DataError:
    """The error for data that are neither here nor fetched.

    Args:
        missing: what is missing and where to put it instead: "<what> is not in <where>", "<advice>" around the reason,
            as one text with `{reason}` in it; other braces, of paths say, stand for themselves.
    """
    return DataError(missing.replace("{reason}", reason))


def fetched(url: str, *, file: str, missing: str) -> Path:
    """The file at an address, in the node's cache.

    Args:
        file: its name there.
        missing: as in `nowhere`.

    Raises:
        DataError: it is not kept and cannot be fetched.
    """
    key = hashlib.blake2b(url.encode(), digest_size=16).hexdigest()
    return built_once("downloads", key, lambda folder: _download(url, folder / file, missing)) / file


def _download(url: str, path: Path, missing: str) -> None:
    import httpx

    log.info("fetching %s", url)
    try:
        with (
            httpx.stream("GET", url, follow_redirects=True, timeout=TIMEOUT_S) as answer,
            path.open("wb") as file,
        ):
            answer.raise_for_status()
            for block in answer.iter_bytes():
                file.write(block)
    except (httpx.HTTPError, OSError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise nowhere(missing, reason=f"{url}: {reason}") from error


PARQUET = "refs/convert/parquet"
"""The hub's own conversion of data sets that are programs, which `datasets` no longer runs."""


def load_from_hub(name: str, part: str | None = None, *, revision: str | None = None, missing: str) -> Any:
    """The splits of a data set by name, each a table of rows.

    Args:
        part: of a data set that has several (GLUE's tasks).
        missing: the error's text, with `{reason}` where the reason goes: what is missing, and what to put where.

    Raises:
        DataError: it cannot be fetched.
    """
    import httpx
    from datasets import disable_progress_bars, load_dataset
    from datasets.exceptions import DatasetsError

    log.info("fetching %s %s from the hub", name, part or "")
    disable_progress_bars()
    try:
        return load_dataset(name, part, revision=revision)
    except (OSError, ValueError, KeyError, RuntimeError, DatasetsError, httpx.HTTPError) as error:
        reason = f"{type(error).__name__}: {(str(error).splitlines() or ['no message'])[0]}"
        raise nowhere(missing, reason=reason) from error


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
