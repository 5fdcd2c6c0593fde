"""Named entities on the engine: tokens of words, loss and scores, files, resume."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tasks.data.pretrained import build_model, choose_model, load_tokenizer
from tasks.engine.run import TrainingRun
from tasks.engine.task import load_task, release_data
from tasks.entities.task import IGNORED, Sentence, encode_sentences, tag_names
from tasks.errors import ConfigError, DataError
from tasks.registry import parse_config
from tasks.runs import check, open_run

NAMES = ["Ada", "Bob", "Cleo", "Dora"]
TOWNS = ["Bonn", "Oslo", "Rome", "Yverdon"]


def sentences(n: int, seed: int) -> str:
    """IOB1 text: people in towns, by a rule that a tiny model can learn."""
    rng = np.random.default_rng(seed)
    blocks = ["-DOCSTART- -X- O O"]
    for _ in range(n):
        name, town = rng.choice(NAMES), rng.choice(TOWNS)
        words = [(name, "I-PER"), *([("Smith", "I-PER")] if rng.random() < 0.5 else []), ("went", "O"), ("to", "O")]
        words += [(town, "I-LOC"), *([(str(rng.choice(TOWNS)), "B-LOC")] if rng.random() < 0.2 else []), (".", "O")]
        blocks.append("\n".join(f"{word} X X {tag}" for word, tag in words))
    return "\n\n".join(blocks) + "\n"


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "data" / "conll2003"
    folder.mkdir(parents=True)
    for name, n in (("eng.train", 64), ("eng.testa", 20), ("eng.testb", 21)):
        (folder / name).write_text(sentences(n, seed=n))
    return tmp_path / "data"


def config(**fields: Any) -> Any:
    return parse_config({"name": "conll2003", "model": "tiny", "epochs": 2, "batch_size": 8, **fields})


def start(data_dir: Path, cfg: Any = None) -> TrainingRun:
    run = open_run(cfg or config(), optimizer="adamw", params={"lr": 3e-3}, seed=0, data_dir=data_dir, device="cpu")
    assert isinstance(run, TrainingRun)
    return run


def test_entities_are_learnt_and_a_resume_is_exact(data_dir: Path) -> None:
    whole = start(data_dir)
    first, second = whole.advance(), whole.advance()
    assert first.step == 8
    assert second.metrics["val_f1"] > 0.9
    assert set(second.metrics) == {"val_f1", "val_precision", "val_recall", "val_loss", "train_loss"}
    assert whole.test()["test_f1"] > 0.9
    assert whole.environment()["n_val"] == 20
    stopped = start(data_dir)
    stopped.advance()
    resumed = start(data_dir)
    resumed.load_state_dict(stopped.state_dict())
    assert resumed.advance().metrics == second.metrics
    assert resumed.test() == whole.test()


@pytest.fixture
def calm(data_dir: Path) -> None:
    """The model "calm", small and without dropout: its masks differ where a step is parted."""
    source = choose_model("tiny", data_dir=None, digest="people-in-towns", texts=lambda: [sentences(64, seed=64)])
    folder = data_dir / "calm"
    load_tokenizer(source).save_pretrained(folder)
    body = build_model(source, auto_class="AutoModel", attention_probs_dropout_prob=0.0, hidden_dropout_prob=0.0)
    body.save_pretrained(folder)  # type: ignore[operator]


def losses(
    data_dir: Path, *, batch_size: int, accumulation: int = 1, n_devices: int = 1, device: str | None = "cpu"
) -> list[float]:
    """Of two epochs, with a rate that lets differences grow."""
    cfg = config(model="calm", batch_size=batch_size, accumulation=accumulation, precision="fp32")
    run = open_run(
        cfg,
        optimizer="sgdm",
        params={"lr": 0.1},
        seed=0,
        data_dir=data_dir,
        device=device,
        n_devices=n_devices,
    )
    try:
        return [run.advance().metrics["train_loss"] for _ in range(2)]
    finally:
        run.close()


@pytest.mark.usefixtures("calm")
def test_every_word_weighs_alike_however_a_step_is_parted(data_dir: Path) -> None:
    whole = losses(data_dir, batch_size=8)
    assert losses(data_dir, batch_size=2, accumulation=4) == pytest.approx(whole, rel=1e-4)


@pytest.mark.slow
@pytest.mark.usefixtures("calm")
def test_every_word_weighs_alike_over_several_ranks(data_dir: Path) -> None:
    whole = losses(data_dir, batch_size=8)
    assert losses(data_dir, batch_size=4, accumulation=2, n_devices=2) == pytest.approx(whole, rel=1e-4)


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA cards")
@pytest.mark.usefixtures("calm")
def test_every_word_weighs_alike_over_two_cards(data_dir: Path) -> None:
    whole = losses(data_dir, batch_size=8, device=None)
    assert losses(data_dir, batch_size=8, device=None, n_devices=2) == pytest.approx(whole, rel=1e-3)


def test_scores_are_of_whole_sentences(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that knows each token's tag has F1 1; where a sentence is cut, what lies beyond is missed."""
    with (data_dir / "conll2003" / "eng.testa").open("a") as file:
        file.write("\n" + "went X X O\n" * 9 + "Oslo X X I-LOC\n")
    for max_length, recall in ((64, 1.0), (8, None)):
        task: Any = load_task(config(max_length=max_length), data_dir=data_dir, device=torch.device("cpu"))

        def outputs(model: Any, batch: Any) -> Any:
            logits = torch.nn.functional.one_hot(batch["tags"].clamp_min(0), 5).float() * 50
            return type("Output", (), {"logits": logits})

        monkeypatch.setattr(task, "outputs", outputs)
        scores = task.evaluate(torch.nn.Identity(), "val")
        assert scores["loss"] == pytest.approx(0.0, abs=1e-6)
        if recall is None:
            assert scores["recall"] < 1.0
            assert scores["precision"] == 1.0
            assert task.record()["n_truncated_texts"] > 0
        else:
            assert scores["f1"] == scores["recall"] == recall
            assert task.record()["n_truncated_texts"] == 0


def test_without_a_validation_file_some_of_training_is_held_out(data_dir: Path) -> None:
    (data_dir / "conll2003" / "eng.testa").unlink()
    data: Any = load_task(config(val_fraction=0.25), data_dir=data_dir, device=torch.device("cpu")).data
    assert (len(data.train), len(data.val), len(data.test)) == (48, 16, 21)
    assert not set(data.train.rows) & set(data.val.rows)
    run = start(data_dir, config(val_fraction=0.25, epochs=1))
    assert 0.0 <= run.advance().metrics["val_f1"] <= 1.0


def test_words_have_their_tag_on_their_first_token() -> None:
    class Letters:
        """One token for two characters at most, between two special ones."""

        model_input_names = ("input_ids", "attention_mask")

        def __call__(self, texts: list[str], *, max_length: int, **options: Any) -> dict[str, Any]:
            offsets = []
            for text in texts:
                words, place = [], 0
                for word in text.split(" "):
                    pieces = [(place + i, min(place + i + 2, place + len(word))) for i in range(0, len(word), 2)]
                    words += pieces
                    place += len(word) + 1
                offsets.append([(0, 0), *words[: max_length - 2], (0, 0)])
            return {"offset_mapping": offsets, "input_ids": [[7] * len(row) for row in offsets]}

    rows = [Sentence(("Rome", "is", "old"), ("B-LOC", "O", "O")), Sentence(("Al", "Green"), ("B-PER", "I-PER"))]
    tags = tag_names(rows)
    assert tags == ("O", "B-LOC", "I-LOC", "B-PER", "I-PER")
    tokens, words, n_cut = encode_sentences(rows, Letters(), tags=tags, max_length=6, path=Path("x"))
    assert tokens.starts.tolist() == [0, 6, 12]
    x = IGNORED
    # Ro me is ol | d is cut off; Al Gr ee n
    assert tokens.token_columns["tags"].tolist() == [x, 1, x, 0, 0, x, x, 3, 4, x, x, x]
    assert tokens.token_columns["places"].tolist() == [-1, 0, -1, 1, 2, -1, -1, 3, 4, -1, -1, -1]
    assert words.token_columns["tags"].tolist() == [1, 0, 0, 3, 4]
    assert n_cut == 0  # every word has its first token
    assert encode_sentences(rows, Letters(), tags=tags, max_length=5, path=Path("x"))[2] == 1


def test_what_is_refused(data_dir: Path) -> None:
    folder = data_dir / "conll2003"
    good = (folder / "eng.testb").read_text()
    (folder / "eng.testb").write_text(good.replace("I-LOC", "I-SHIP"))
    with pytest.raises(DataError, match=r"eng\.testb has the tag 'B-SHIP' \(in .*which the training file does not"):
        check(config(), data_dir=data_dir)
    (folder / "eng.testb").unlink()
    with pytest.raises(DataError, match=r"eng\.testb is missing; conll2003 needs eng\.train, eng\.testb in one folder"):
        check(config(), data_dir=data_dir)
    (folder / "eng.testb").write_text(good)
    (folder / "eng.train").write_text("Rome O\n")
    with pytest.raises(DataError, match="the training file holds no entity"):
        check(config(), data_dir=data_dir)
    (folder / "eng.train").write_text(good)
    with pytest.raises(ConfigError, match="max_length 600 is more than the 512 tokens"):
        check(config(max_length=600), data_dir=data_dir)


def test_nothing_there_and_no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:

    def offline(*args: Any, **options: Any) -> Any:
        raise ConnectionError("no route to host")

    monkeypatch.setattr("datasets.load_dataset", offline)
    with pytest.raises(
        DataError, match=r"conll2003 is not in .*\(ConnectionError: no route.*Put eng\.train, eng\.testa"
    ):
        check(config(), data_dir=tmp_path)
    (tmp_path / "{mine}").mkdir()
    with pytest.raises(DataError, match=r"is not in \S*/\{mine\} and could not be fetched \(ConnectionError"):
        check(config(), data_dir=tmp_path / "{mine}")
    (tmp_path / "mine").mkdir()
    with pytest.raises(DataError, match=r"is not in .*mine .*data_dir is given"):
        check(config(data_dir="mine"), data_dir=tmp_path)


def test_what_the_hub_has_becomes_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")
    names = datasets.ClassLabel(names=["O", "B-PER", "I-PER"])
    features = datasets.Features(
        {"tokens": datasets.Sequence(datasets.Value("string")), "ner_tags": datasets.Sequence(names)}
    )
    rows = {"tokens": [["Ada", "Smith", "left"], ["Bob"]] * 4, "ner_tags": [[1, 2, 0], [1]] * 4}
    table = datasets.Dataset.from_dict(rows, features=features)
    fetched: list[str] = []

    def load(name: str, *args: Any, **options: Any) -> Any:
        fetched.append(name)
        return {"train": table, "validation": table, "test": table}

    monkeypatch.setattr("datasets.load_dataset", load)
    for _ in range(2):
        release_data()
        check(config(), data_dir=None)
    assert fetched == ["eriktks/conll2003"]
