"""Where SQuAD's files lie, under their official names; or fetched once a node from the hub."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tasks.engine.node_cache import built_once
from tasks.errors import DataError
from tasks.fetch import NAMED_FOLDER, nowhere
from tasks.paths import resolve_inside
from tasks.text.hub import load_from_hub

FORMAT = 1  # of the fetched files; raise it when their layout changes
VERSIONS: Mapping[str, str] = {"squad_v1": "v1.1", "squad_v2": "v2.0"}
HUB_NAMES: Mapping[str, str] = {"squad_v1": "rajpurkar/squad", "squad_v2": "rajpurkar/squad_v2"}
FOLDERS = (".", "squad", "SQuAD")


def squad_files(task: str, *, data_dir: Path | None, inner: str | None) -> Mapping[str, Path]:
    """The files "train" and "test" (the development set) of a version.

    Args:
        inner: a folder of the data folder to look in; None: the data folder, and its folder squad.

    Raises:
        DataError: not there and no network; the message names the folder and the files expected.
    """
    names = {"train": f"train-{VERSIONS[task]}.json", "test": f"dev-{VERSIONS[task]}.json"}
    root = None if data_dir is None else data_dir if inner is None else resolve_inside(data_dir, inner)
    if root is not None:
        for folder in (".",) if inner is not None else (*FOLDERS, task):
            if (root / folder / names["train"]).is_file():
                paths = {split: root / folder / name for split, name in names.items()}
                if not paths["test"].is_file():
                    raise DataError(f"{paths['test']} is missing; it must stand beside {paths['train'].name}")
                return paths
    where = str(root) if root is not None else "the data folder (set ADMETA_DATA or --data)"
    missing = (
        f"{task} is not in {where} and could not be fetched ({{reason}}). Put {' and '.join(names.values())} there"
    )
    if inner is not None:
        raise nowhere(missing, reason=NAMED_FOLDER)
    fetched = built_once("squad", f"{task}-{FORMAT}", lambda folder: _fetch(folder, task, names, missing))
    return {split: fetched / name for split, name in names.items()}


def _fetch(folder: Path, task: str, names: Mapping[str, str], missing: str) -> None:
    """Write the hub's splits as SQuAD's own JSON, so that later runs need neither network nor `datasets`."""
    loaded = load_from_hub(HUB_NAMES[task], missing=missing)
    for split, hub_split in {"train": "train", "test": "validation"}.items():
        content = {"version": VERSIONS[task], "data": _articles(loaded[hub_split])}
        (folder / names[split]).write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")


def _articles(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rows of questions, in order, as articles of paragraphs of questions."""
    articles: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for row in rows:
        questions = articles.setdefault(row["title"], {}).setdefault(row["context"], [])
        answers = row["answers"]
        questions.append(
            {
                "id": row["id"],
                "question": row["question"],
                "answers": [
                    {"text": text, "answer_start": start}
                    for text, start in zip(answers["text"], answers["answer_start"], strict=True)
                ],
            }
        )
    return [
        {"title": title, "paragraphs": [{"context": context, "qas": asked} for context, asked in paragraphs.items()]}
        for title, paragraphs in articles.items()
    ]
