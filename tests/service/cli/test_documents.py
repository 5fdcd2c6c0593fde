"""The commands of README and docs/cli.md, as they stand, on a study like the demo's: each shows something."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
_STARTS = {"serve", "worker", "demo", "watch", "token", "doctor", "new"}
"""Run until Ctrl-C, follow a study that nobody runs here, or are of the machine: tested elsewhere, as changes are."""
_CHANGES = {"submit", "clone", "pause", "resume", "cancel", "delete", "annotate", "extend"}


def commands(page: str) -> list[str]:
    """The lines that call `admeta` in the page's shell blocks, without comments; what follows a pipe is left out."""
    text = (ROOT / page).read_text(encoding="utf-8")
    blocks = re.findall(r"^```(?:sh)?\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)
    lines = [line.removeprefix("$ ") for block in blocks for line in block.splitlines()]
    found = [re.split(r" +#|[|;]| && ", line)[0].strip() for line in lines if re.match(r"(\$ )?admeta [a-z]", line)]
    return [line for line in dict.fromkeys(found) if shlex.split(line)[1] not in _STARTS | _CHANGES]


@pytest.mark.parametrize("line", [*commands("README.md"), *commands("docs/cli.md")])
def test_a_command_shows_something(
    filled: str, say: Callable[..., tuple[int, str, str]], line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ADMETA_URL", filled)
    monkeypatch.setenv("ADMETA_HOME", str(tmp_path))
    there = {"digits": "digits-four", "21": "1"}  # the study and the run that are filled in here
    words = shlex.split(line)[1:]
    words = [
        word if before == "--task" else there.get(word, word)
        for before, word in zip(["", *words[:-1]], words, strict=True)
    ]
    code, out, err = say(" ".join(words))
    is_refused = words[-1] in ("nothing", "current")  # as the document tells; the home here has no database
    assert code == (1 if is_refused else 0), err
    assert (out + err).strip()


def test_the_pages_have_commands() -> None:
    assert len(commands("README.md")) >= 8
    assert len(commands("docs/cli.md")) >= 15
