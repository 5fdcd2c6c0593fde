"""A Ray for the tests of a module, started as the service starts its own: by itself Ray starts three more processes."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from service.ray import cluster
from service.settings import load


@contextmanager
def local_ray(home: Path, **options: Any) -> Iterator[None]:
    """A Ray on loopback that ends with the block; `options` are those of `ray.init`."""
    cluster.start_embedded(log_to_driver=False, logging_level=logging.ERROR, **options)
    try:
        yield
    finally:
        cluster.leave(load({}, home=home))
