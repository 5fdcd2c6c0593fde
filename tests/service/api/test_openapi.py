"""The API's description against the one kept in openapi.json: what people script against changes on purpose only.

Renew it after such a change, and look at the difference before committing it:

    python -m tests.service.api.test_openapi
"""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from admeta.client.models import BestView, CloneRequest, ErrorView, StudyRunView, StudyView, TokenRequest, TrialView
from search.definition import StudyDefinition
from service.api import openapi
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


def test_examples_are_what_they_are_examples_of() -> None:
    for model in (ErrorView, StudyView, TrialView, StudyRunView, BestView):
        example = openapi.ANSWERS[model.__name__]
        read = model.model_validate_json(json.dumps(example)).model_dump(mode="json", exclude_unset=True)
        assert read == example  # a field with a default may be left out
    StudyDefinition.model_validate(openapi.STUDY)
    CloneRequest.model_validate(openapi.CLONE)
    TokenRequest.model_validate(openapi.TOKEN)


def test_every_parameter_and_body_has_an_example_or_says_all_in_its_schema() -> None:
    for path, operations in json.loads(KEPT.read_text())["paths"].items():
        for method, operation in operations.items():
            bare = [p["name"] for p in operation.get("parameters", []) if "example" not in p and not _says_all(p)]
            assert not bare, f"{method} {path}: {bare}"
            for content in operation.get("requestBody", {}).get("content", {}).values():
                assert "example" in content


def _says_all(parameter: dict[str, Any]) -> bool:
    """An enumeration, a flag, or what another answer gives out."""
    text = json.dumps(parameter["schema"])
    return (
        '"enum"' in text or "#/components/schemas" in text or '"boolean"' in text
        or parameter["name"] in ("cursor", "Last-Event-ID", "metric", "model")
    )  # fmt: skip


if __name__ == "__main__":
    with TemporaryDirectory() as home:
        KEPT.write_text(json.dumps(_description(Path(home)), indent=1, sort_keys=True) + "\n")
