"""ETags: 304 for what has not changed, another tag for what has, and none on streams and errors."""

from __future__ import annotations

import pytest
from fastapi.testclient import TestClient

from tests.service.fakes import definition


def test_what_has_not_changed_is_not_sent_again(api: TestClient) -> None:
    api.headers["Accept-Encoding"] = "identity"  # compressed, the tag is a weak one
    api.post("/v1/studies", json=definition())
    first = api.get("/v1/studies/first")
    tag = first.headers["ETag"]
    for known in (tag, f"W/{tag}", f'"other", {tag}', "*"):
        again = api.get("/v1/studies/first", headers={"If-None-Match": known})
        assert (again.status_code, again.content, again.headers["ETag"]) == (304, b"", tag)
        assert "content-length" not in again.headers
    assert api.head("/v1/studies/first").headers["ETag"] == tag

    api.post("/v1/studies/first/cancel")
    changed = api.get("/v1/studies/first", headers={"If-None-Match": tag})
    assert changed.status_code == 200
    assert changed.headers["ETag"] != tag


@pytest.mark.parametrize("path", ["/v1/studies/none", "/v1/studies/first/export"])
def test_errors_and_streams_have_no_tag(api: TestClient, path: str) -> None:
    api.post("/v1/studies", json=definition())
    answer = api.get(path)
    assert "ETag" not in answer.headers
    assert answer.content
