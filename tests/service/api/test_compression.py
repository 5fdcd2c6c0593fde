"""Answers are compressed where that helps, and nothing else changes."""

from __future__ import annotations

from fastapi.testclient import TestClient

GZIP = {"Accept-Encoding": "gzip"}


def test_large_answers_are_compressed_for_those_who_take_it(api: TestClient) -> None:
    packed = api.get("/v1/optimizers", headers=GZIP)
    plain = api.get("/v1/optimizers", headers={"Accept-Encoding": "identity"})
    assert packed.headers["content-encoding"] == "gzip"
    assert "content-encoding" not in plain.headers
    assert packed.content == plain.content
    assert int(packed.headers["content-length"]) < len(plain.content) / 3
    assert "Accept-Encoding" in packed.headers["vary"]


def test_a_tag_serves_both_forms(api: TestClient) -> None:
    packed = api.get("/v1/optimizers", headers=GZIP)
    assert packed.headers["etag"].startswith('W/"')
    again = api.get("/v1/optimizers", headers={**GZIP, "If-None-Match": packed.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


def test_small_answers_and_heads_pass_as_they_are(api: TestClient) -> None:
    assert "content-encoding" not in api.get("/livez", headers=GZIP).headers
    head = api.head("/v1/optimizers", headers=GZIP)
    assert (head.status_code, head.content) == (200, b"")
