"""Generates the blocking client from the one for asyncio: `make client`."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import unasync

PACKAGE = Path(__file__).parents[3] / "admeta" / "client"
SOURCE, TARGET = PACKAGE / "asynchronous", PACKAGE / "blocking"
_HEAD = "# Generated from admeta/client/{name} by `make client`; edit that file.\n"
_REPLACEMENTS = {
    "AsyncBaseTransport": "BaseTransport",
    "AsyncClient": "Client",
    "AsyncConnection": "Connection",
    "AsyncFollowing": "Following",
    "AsyncHTTPTransport": "HTTPTransport",
    "AsyncItems": "Items",
    "AsyncSubmission": "Submission",
    "aclose": "close",
    "aclosing": "closing",
    "aiter_bytes": "iter_bytes",
    "aiter_sse": "iter_sse",
    "anext": "next",
    "aread": "read",
    "asynchronous": "blocking",
    "asyncio": "time",
}


def generate() -> dict[str, str]:
    """The text of every module of the blocking client, by its file name."""
    rule = unasync.Rule("/asynchronous/", "/blocking/", additional_replacements=_REPLACEMENTS)
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        shutil.copytree(SOURCE, work / "asynchronous", ignore=shutil.ignore_patterns("__pycache__"))
        unasync.unasync_files([str(path) for path in (work / "asynchronous").glob("*.py")], [rule])
        made = work / "blocking"
        config = ["--config", str(PACKAGE.parents[1] / "pyproject.toml")]
        config += ["--config", 'lint.isort.known-first-party = ["admeta"]']
        for command in (["check", "--fix-only", "--select", "I"], ["format"]):
            subprocess.run([sys.executable, "-m", "ruff", *command, "--quiet", *config, str(made)], check=True)
        texts = {path.name: path.read_text(encoding="utf-8") for path in sorted(made.glob("*.py"))}
    return {name: _HEAD.format(name=f"asynchronous/{name}") + text for name, text in texts.items()}


if __name__ == "__main__":
    TARGET.mkdir(exist_ok=True)
    for file_name, text in generate().items():
        (TARGET / file_name).write_text(text, encoding="utf-8")
