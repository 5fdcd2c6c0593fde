"""Every test of text has a cache of its own, and small files of sentences that a tiny model can learn."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

GOOD = ("fine", "great", "lovely", "superb")
BAD = ("awful", "bad", "dull", "poor")
FILLER = ("the", "a", "film", "plot", "actor", "was", "quite", "rather", "and", "scene")


def reviews(n: int, *, seed: int) -> list[tuple[str, str, float]]:
    """n sentences of 4 to 30 words, their class by one word, and a score by how many such words there are."""
    rng = np.random.default_rng(seed)
    rows = []
    for _ in range(n):
        klass = int(rng.integers(2))
        count = int(rng.integers(1, 4))
        words = list(rng.choice(FILLER, size=int(rng.integers(3, 28)))) + list(
            rng.choice((BAD, GOOD)[klass], size=count)
        )
        rng.shuffle(words)
        rows.append((" ".join(words), ("no", "yes")[klass], 1000.0 + count * (2 * klass - 1)))
    return rows


def write_csv(path: Path, rows: list[tuple[str, str, float]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "label", "score"])
        writer.writerows(rows)


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """A data folder with reviews/train.csv (160 rows) and reviews/test.csv (60)."""
    folder = tmp_path / "data" / "reviews"
    folder.mkdir(parents=True)
    write_csv(folder / "train.csv", reviews(160, seed=0))
    write_csv(folder / "test.csv", reviews(60, seed=1))
    return tmp_path / "data"
