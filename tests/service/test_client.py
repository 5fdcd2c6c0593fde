"""The client's older name."""

from __future__ import annotations

import admeta.client
import service.client


def test_the_older_name_is_the_same_client() -> None:
    assert all(getattr(service.client, name) is getattr(admeta.client, name) for name in service.client.__all__)
    assert {"Client", "AsyncClient", "ClientError"} <= set(service.client.__all__)
