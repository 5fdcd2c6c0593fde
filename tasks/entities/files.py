"""Where CoNLL's files lie: the shared task's own names, or train, valid and test; or fetched once a node."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tasks.engine.node_cache import built_once
from tasks.errors import DataError
from tasks.fetch import NAMED_FOLDER, nowhere
from tasks.paths import resolve_inside
from tasks.text.hub import PARQUET, load_from_hub

HUB_NAME = "eriktks/conll2003"
FORMAT = 1  # of the fetched files; raise it when their layout changes
NAMES: tuple[Mapping[str, str], ...] = (
    {"train": "eng.train", "val": "eng.testa", "test": "eng.testb"},
    {"train": "train.txt", "val": "valid.txt", "test": "test.txt"},
)
FOLDERS = (".", "conll2003", "CoNLL-2003")


def conll_files(*, data_dir: Path | None, inner: str | None) -> Mapping[str, Path]:
    """The files by split: "train", "test" and, where there is one, "val".

    Args:
        inner: a folder of the data folder to look in; None: the data folder, and its folder conll2003.

    Raises:
        DataError: not there and no network; the message names the folder and the files expected.
    """
    root = None if data_dir is None else data_dir if inner is None else resolve_inside(data_dir, inner)
    if root is not None:
        for folder in FOLDERS if inner is None else (".",):
            for names in NAMES:
                if (root / folder / names["train"]).is_file():
                    return _complete({split: root / folder / name for split, name in names.items()})
    where = root if root is not None else "the data folder (set ADMETA_DATA or --data)"
    expected = " or ".join(", ".join(names.values()) for names in NAMES)
    missing = f"conll2003 is not in {where} and could not be fetched ({{reason}}). Put {expected} there"
    if inner is not None:
        raise nowhere(missing, reason=NAMED_FOLDER)
    fetched = built_once("conll2003", str(FORMAT), lambda folder: _fetch(folder, missing))
    return _complete({split: fetched / name for split, name in NAMES[1].items()})


def _complete(paths: Mapping[str, Path]) -> Mapping[str, Path]:
    if not paths["test"].is_file():
        raise DataError(f"{paths['test']} is missing; it must stand beside {paths['train'].name}")
    return {split: path for split, path in paths.items() if path.is_file()}


def _fetch(folder: Path, missing: str) -> None:
    """Write the hub's splits as column files, so that later runs need neither network nor `datasets`."""
    loaded = load_from_hub(HUB_NAME, revision=PARQUET, missing=missing)
    for split, hub_split in {"train": "train", "val": "validation", "test": "test"}.items():
        rows = loaded[hub_split]
        tags: list[str] = rows.features["ner_tags"].feature.names
        with (folder / NAMES[1][split]).open("w", encoding="utf-8") as file:
            file.writelines(f"{_columns(row, tags)}\n\n" for row in rows)


def _columns(row: Mapping[str, Any], tags: list[str]) -> str:
    return "\n".join(f"{word} {tags[tag]}" for word, tag in zip(row["tokens"], row["ner_tags"], strict=True))
