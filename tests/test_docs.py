"""Links between the documents lead somewhere: the file exists, and so does the heading after '#'."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
_LINK = re.compile(r"\]\((?!https?://|mailto:)([^)\s#]*)(?:#([^)\s]+))?\)")
_FENCED = re.compile(r"^```.*?^```", flags=re.DOTALL | re.MULTILINE)
_NAMED = re.compile(
    r"(?:`|\b)((?:admeta|search|service|tasks|tests|benchmarks|studies|docs|deploy)/[\w./-]+\.(?:py|md|yaml|json))\b"
)


def _anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", _FENCED.sub("", page.read_text(encoding="utf-8")), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def _broken(page: Path) -> list[str]:
    text = _FENCED.sub("", page.read_text(encoding="utf-8"))
    found = []
    for path, anchor in _LINK.findall(text):
        target = page.parent / path if path else page
        if not target.exists() or (anchor and anchor not in _anchors(target)):
            found.append(f"{path}#{anchor}")
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    assert _broken(page) == []


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "CHANGELOG.md"], ids=lambda page: page.name)
def test_files_that_are_named_exist(page: Path) -> None:
    named = set(_NAMED.findall(page.read_text(encoding="utf-8")))
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# One two\n[a](page.md#one-two) [b](#one-two) [c](page.md#three) [d](gone.md) [e](https://x.org/y)\n"
    )
    assert _broken(page) == ["page.md#three", "gone.md#"]


def test_every_page_is_listed_in_the_readme() -> None:
    listed = {path for path, _ in _LINK.findall((ROOT / "README.md").read_text(encoding="utf-8"))}
    assert {f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md")} <= listed
