"""The API's description against the one kept in openapi.json: what people script against changes on purpose only.

Renew it after such a change, and look at the difference before committing it:

    python -m tests.service.api.test_openapi
"""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from service.app import create_app
from tests.service.fakes import FakeSupervisor, settings_in

KEPT = Path(__file__).with_name("openapi.json")


def _description(home: Path) -> dict[str, Any]:
    description = create_app(settings_in(home), supervisor=FakeSupervisor()).openapi()
    del description["info"]["version"]  # a release is no change of the API
    plain: dict[str, Any] = json.loads(json.dumps(description))
    return plain


def _differences(kept: Any, now: Any, path: str = "") -> list[str]:
    if isinstance(kept, dict) and isinstance(now, dict):
        lines = [f"{path}/{key} is new" for key in now.keys() - kept.keys()]
        lines += [f"{path}/{key} is gone" for key in kept.keys() - now.keys()]
        for key in kept.keys() & now.keys():
            lines += _differences(kept[key], now[key], f"{path}/{key}")
        return sorted(lines)
    return [] if kept == now else [f"{path} was {kept!r} and is {now!r}"]


def test_the_api_is_as_it_is_kept(tmp_path: Path) -> None:
    differences = _differences(json.loads(KEPT.read_text()), _description(tmp_path))
    assert not differences, "the API changed; if on purpose: python -m tests.service.api.test_openapi\n" + "\n".join(
        differences[:40]
    )


if __name__ == "__main__":
    with TemporaryDirectory() as home:
        KEPT.write_text(json.dumps(_description(Path(home)), indent=1, sort_keys=True) + "\n")
