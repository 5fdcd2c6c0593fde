"""Every data set of the paper, a few samples of each in its real format, in one data folder: random, but learnable."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from tasks.text.glue import GLUE
from tests.tasks.answering.test_task import squad
from tests.tasks.audio.sounds import write_tone
from tests.tasks.audio.test_datasets import superb
from tests.tasks.entities.test_task import sentences
from tests.tasks.text.conftest import reviews

N_TRAIN = 32
N_TEST = 12
EXTRA_COLUMN = "index"  # GLUE's files have more columns than are read


def write_small_data(folder: Path) -> None:
    """CIFAR-10 and -100, GLUE, SQuAD 1.1 and 2.0, CoNLL-2003, Speech Commands and Common Language."""
    _cifar(folder / "cifar10", n_classes=10, n_train=10)
    _cifar(folder / "cifar100", n_classes=100, n_train=2)
    for name in GLUE:
        _glue(folder / "glue" / GLUE[name].folder, name)
    (folder / "squad").mkdir()
    for version, unanswerable in (("v1.1", False), ("v2.0", True)):
        for split, n in (("train", N_TRAIN), ("dev", N_TEST)):
            content = squad(n, seed=n, unanswerable=unanswerable)
            (folder / "squad" / f"{split}-{version}.json").write_text(json.dumps(content))
    (folder / "conll2003").mkdir()
    for file, n in (("eng.train", N_TRAIN), ("eng.testa", N_TEST), ("eng.testb", N_TEST + 1)):
        (folder / "conll2003" / file).write_text(sentences(n, seed=n))
    superb(folder, archive=False)
    for place, language in enumerate(("Arabic", "Welsh")):
        for split, n in (("train", 5), ("dev", 2), ("test", 2)):
            for index in range(n):
                path = folder / "CommonLanguage" / language / split / f"sp_{index}" / "x.wav"
                write_tone(path, 300.0 * (1 + place), rate=16_000, seconds=0.2, seed=index)


def _cifar(folder: Path, *, n_classes: int, n_train: int) -> None:
    """Class folders of PNGs, each class with its own colour in noise."""
    rng = np.random.default_rng(n_classes)
    for klass in range(n_classes):
        colour = rng.integers(60, 200, size=3)
        for split, n in (("train", n_train), ("test", 1)):
            place = folder / split / f"c{klass:02d}"
            place.mkdir(parents=True)
            for index in range(n):
                pixels = np.clip(colour + rng.normal(scale=30, size=(32, 32, 3)), 0, 255).astype(np.uint8)
                Image.fromarray(pixels).save(place / f"{index}.png")


def _glue(folder: Path, name: str) -> None:
    files = GLUE[name]
    header = files.header or (EXTRA_COLUMN, files.first, *([files.second] if files.second else []), files.label)
    folder.mkdir(parents=True)
    targets: list[tuple[str, int]] = [("train.tsv", N_TRAIN), *((file, N_TEST) for file, _ in files.dev.values())]
    for file, n in targets:
        rows = [_row(header, files.first, files.second, label) for label in _labels(files.classes, n)]
        lines = rows if files.header else ["\t".join(header), *rows]
        (folder / file).write_text("\n".join(lines) + "\n", encoding="utf-8")


def _labels(classes: tuple[str, ...], n: int) -> list[str]:
    return [classes[i % len(classes)] if classes else f"{5 * i / (n - 1):.2f}" for i in range(n)]


def _row(header: tuple[str, ...], first: str, second: str | None, label: str) -> str:
    text, other = (words for words, _, _ in reviews(2, seed=sum(map(ord, label))))
    said: dict[str, Any] = {first: text, second: other, header[-1]: label}
    if "label" in header:
        said["label"] = label
    return "\t".join(str(said.get(column, "x")) for column in header)
