"""Files from the internet, fetched once a node by one process and kept; a clear word where there is no network."""

from __future__ import annotations

import hashlib
import logging
from pathlib import Path

from tasks.engine.node_cache import built_once
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
