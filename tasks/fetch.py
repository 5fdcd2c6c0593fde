"""Files from the internet, fetched once a node by one process and kept; a clear word where there is no network."""

from __future__ import annotations

import hashlib
import logging
from pathlib import Path

from tasks.engine.node_cache import built_once
from tasks.errors import DataError

log = logging.getLogger(__name__)

TIMEOUT_S = 30.0  # without a byte


def fetched(url: str, *, file: str, missing: str) -> Path:
    """The file at an address, in the node's cache.

    Args:
        file: its name there.
        missing: what is missing and where to put it instead, for the error: "<what> is not in <where>", "<advice>"
            around the reason, as one text with `{reason}` in it.

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
        raise DataError(missing.format(reason=f"{url}: {reason}")) from error
