"""What the chaos tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import Engine

from service.database.engine import make_engine
from tests.chaos.installation import Service


@pytest.fixture(scope="module")
def engine(service: Service) -> Iterator[Engine]:
    """The database of the module's service."""
    engine = make_engine(service.database_url, pool_size=2)
    yield engine
    engine.dispose()
