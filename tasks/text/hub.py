"""Data sets of the Hugging Face hub, through `datasets`; a clear word where there is no network."""

from __future__ import annotations

import logging
from typing import Any

from tasks.fetch import nowhere

log = logging.getLogger(__name__)

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
