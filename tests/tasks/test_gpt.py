"""Language modelling: the decoder against transformers' GPT-2, splits and sequences, learning, resume, refusals."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch import nn

from tasks.engine.task import load_task
from tasks.errors import ConfigError, DataError
from tasks.gpt import Gpt, GptTask
from tasks.registry import parse_config
from tasks.runs import check, open_run
from tasks.text.config import GPT_SIZES

WORDS = "the quick brown fox jumps over a lazy dog while é and 🦊 sleep".split()  # noqa: SIM905


def config(**fields: Any) -> Any:
    return parse_config({"name": "gpt", "data_dir": "book", "context": 32, "batch_size": 8, "epochs": 2, **fields})


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """A data folder with book/train.txt: 30 kB of sentences from a few words."""
    rng = np.random.default_rng(0)
    lines = [" ".join(rng.choice(WORDS, size=8)) for _ in range(700)]
    (tmp_path / "data/book").mkdir(parents=True)
    (tmp_path / "data/book/train.txt").write_text("\n".join(lines), encoding="utf-8")
    return tmp_path / "data"


def load(data_dir: Path, **fields: Any) -> GptTask:
    task = load_task(config(**fields), data_dir=data_dir, device=torch.device("cpu"))
    assert isinstance(task, GptTask)
    return task


def start(data_dir: Path, *, optimizer: str = "adamw", lr: float = 3e-3, **fields: Any) -> Any:
    return open_run(config(**fields), optimizer=optimizer, params={"lr": lr}, seed=0, data_dir=data_dir, device="cpu")


def test_the_decoder_is_gpt2() -> None:
    """The same weights in transformers' GPT-2 give the same logits."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    layers, heads, width = GPT_SIZES["nano"]
    ours = Gpt("nano", n_tokens=64, context=16, dropout=0.0)
    for parameter in ours.parameters():
        nn.init.normal_(parameter, std=0.2)
    shape = {"n_embd": width, "n_layer": layers, "n_head": heads}
    gpt2 = GPT2Config(vocab_size=64, n_positions=16, bos_token_id=0, eos_token_id=0, **shape)
    theirs = GPT2LMHeadModel(gpt2).eval()
    names = {
        "attention_norm": "ln_1", "qkv": "attn.c_attn", "attention_out": "attn.c_proj",
        "network_norm": "ln_2", "network_in": "mlp.c_fc", "network_out": "mlp.c_proj",
    }  # fmt: skip
    state = {"transformer.wte.weight": ours.tokens.weight, "transformer.wpe.weight": ours.positions.weight}
    for kind in ("weight", "bias"):
        state[f"transformer.ln_f.{kind}"] = getattr(ours.final_norm, kind)
        for index, block in enumerate(ours.blocks):
            for own, other in names.items():
                value = getattr(getattr(block, own), kind)
                state[f"transformer.h.{index}.{other}.{kind}"] = value.T if value.dim() == 2 else value
    missing = theirs.load_state_dict(state, strict=False).missing_keys
    assert all("lm_head" in name or "attn.bias" in name or "masked_bias" in name for name in missing)
    theirs.tie_weights()
    tokens = torch.randint(0, 64, (3, 16))
    with torch.no_grad():
        torch.testing.assert_close(ours(tokens), theirs(tokens).logits, rtol=1e-4, atol=1e-4)


def test_gpt2_has_124_million_parameters() -> None:
    with torch.device("meta"):
        model = Gpt("gpt2", n_tokens=50_257, context=1024, dropout=0.0)
    assert sum(p.numel() for p in model.parameters()) == 124_439_808


def test_the_ends_of_the_text_are_held_out_and_no_character_is_cut(data_dir: Path) -> None:
    data = load(data_dir).data
    text = (data_dir / "book/train.txt").read_bytes()
    parts = [bytes(part.to(torch.uint8).tolist()) for part in (data.train, data.val, data.test)]
    assert b"".join(parts) == text
    assert [len(part) / len(text) for part in parts] == pytest.approx([0.8, 0.1, 0.1], abs=1e-3)
    for part in parts:
        part.decode()
    assert data.n_bytes == dict(zip(("train", "val", "test"), map(len, parts), strict=True))


def test_files_of_their_own_are_used(data_dir: Path) -> None:
    (data_dir / "book/val.txt").write_bytes(b"\xff\x00 any bytes at all")
    data = load(data_dir, val_file="val.txt", test_file="val.txt").data
    assert bytes(data.val.to(torch.uint8).tolist()) == b"\xff\x00 any bytes at all"
    assert len(data.train) == len((data_dir / "book/train.txt").read_bytes())


def test_each_token_is_a_target_once_in_an_epoch_and_budgets_are_tokens(data_dir: Path) -> None:
    task = load(data_dir)
    batches = list(task.train_batches(seed=0, epoch=0))
    assert len(batches) == task.batches_per_epoch == (len(task.data.train) - 1) // 32 // 8
    starts = task._starts(seed=0, epoch=0)
    targets = (starts[:, None] + np.arange(1, 33)).ravel()
    assert len(np.unique(targets)) == len(targets)
    assert targets.max() < len(task.data.train)
    assert torch.equal(batches[0]["tokens"][0], task.data.train[int(starts[0]) : int(starts[0]) + 33].long())
    again, other = (next(task.train_batches(seed=0, epoch=epoch))["tokens"] for epoch in (0, 1))
    assert torch.equal(again, batches[0]["tokens"])
    assert not torch.equal(other, again)
    few, many = (load(data_dir, tokens_per_epoch=n) for n in (32 * 16, 32 * 8 * 400))
    assert (few.batches_per_epoch, many.batches_per_epoch) == (2, 400)
    assert len(many._starts(seed=0, epoch=0)) == 3200  # several passes


def test_the_evaluation_counts_every_token_once(data_dir: Path) -> None:
    task = load(data_dir)
    torch.manual_seed(0)
    model = task.build_model().eval()
    tokens = task.data.val.long()
    nats = 0.0
    with torch.no_grad():
        metrics = task.evaluate(model, "val")
        for begin in range(0, len(tokens) - 1, 32):
            part = tokens[begin : begin + 33]
            logits = model(part[None, :-1])[0]
            nats += float(nn.functional.cross_entropy(logits, part[1:], reduction="sum"))
    assert metrics["loss"] == pytest.approx(nats / (len(tokens) - 1), rel=1e-5)
    assert metrics["bits_per_byte"] == pytest.approx(nats / math.log(2) / len(tokens), rel=1e-5)


@pytest.mark.parametrize("optimizer", ["adamw", "admetas", "sgdm"])
def test_it_learns(data_dir: Path, optimizer: str) -> None:
    run = start(data_dir, optimizer=optimizer, lr={"sgdm": 0.3}.get(optimizer, 3e-3), epochs=3)
    seen = [run.advance() for _ in range(3)]
    assert seen[-1].metrics["val_loss"] < seen[0].metrics["val_loss"] < math.log(256)
    assert set(run.test()) == {"test_loss", "test_bits_per_byte"}
    assert run.environment()["n_vocabulary"] == 256


def test_a_resumed_run_is_the_same_bit_for_bit(data_dir: Path) -> None:
    whole, part = start(data_dir, dropout=0.1), start(data_dir, dropout=0.1)
    whole.advance()
    part.advance()
    state = copy.deepcopy(part.state_dict())
    part.close()
    torch.rand(7)
    other = start(data_dir, dropout=0.1)
    other.load_state_dict(state)
    assert whole.advance().metrics == other.advance().metrics
    assert all(map(torch.equal, whole.model.parameters(), other.model.parameters()))


def test_a_bpe_of_the_training_text(data_dir: Path) -> None:
    task = load(data_dir, tokenizer="bpe", vocab_size=300)
    data = task.data
    assert data.n_tokens == 320  # the next multiple of 64
    assert len(data.train) < 0.6 * data.n_bytes["train"]
    assert int(data.train.max()) < 300
    assert load(data_dir, tokenizer="bpe", vocab_size=301).data.n_tokens == 320
    run = start(data_dir, tokenizer="bpe", vocab_size=300, epochs=2)
    first, second = run.advance().metrics, run.advance().metrics
    assert second["val_bits_per_byte"] < first["val_bits_per_byte"]


def test_what_is_refused(data_dir: Path) -> None:
    (data_dir / "book/latin.txt").write_bytes(b"caf\xe9 " * 100)
    (data_dir / "book/empty.txt").write_bytes(b"")
    with pytest.raises(DataError, match=r"latin\.txt is not UTF-8 .* set tokenizer: bytes"):
        check(config(train_file="latin.txt", tokenizer="bpe"), data_dir=data_dir)
    with pytest.raises(DataError, match="the val text has 0 bytes"):
        check(config(val_file="empty.txt"), data_dir=data_dir)
    with pytest.raises(DataError, match=r"'gone\.txt' is not in the data folder .*book"):
        check(config(train_file="gone.txt"), data_dir=data_dir)
    with pytest.raises(ConfigError, match="too few for one sequence of 8192"):
        check(config(context=8192, train_file="latin.txt"), data_dir=data_dir)
    with pytest.raises(ConfigError, match="more than the 2 training samples"):
        check(config(tokens_per_epoch=64), data_dir=data_dir)
    with pytest.raises(DataError, match="gpt needs a data folder"):
        check(config(), data_dir=None)
    with pytest.raises(ValidationError):
        config(tokenizer="words")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA card")
@pytest.mark.parametrize("acceleration", ["graph", "compile"])
def test_captured_steps_learn_as_eager_ones(data_dir: Path, acceleration: str) -> None:
    runs = {}
    for kind in ("eager", acceleration):
        cfg = config(model="micro", context=64, epochs=2, acceleration=kind)
        run = open_run(cfg, optimizer="admetas", params={"lr": 1e-3}, seed=0, data_dir=data_dir, device="cuda")
        runs[kind] = ([run.advance().metrics["val_loss"] for _ in range(2)], run.step_status)
        run.close()
    assert runs[acceleration][1].startswith("graph: 1 shape")
    assert runs["eager"][0] == pytest.approx(runs[acceleration][0], rel=0.02)


MUP = {"model": "nano", "width": 96, "parametrization": "mup", "base_width": 48}


@pytest.mark.parametrize("optimizer", ["admetar", "muon"])
def test_a_run_in_mup_resumes_to_the_bit(data_dir: Path, optimizer: str) -> None:
    whole, first, second = (start(data_dir, optimizer=optimizer, tokens_per_epoch=2048, **MUP) for _ in range(3))
    expected = [whole.advance().metrics["val_loss"] for _ in range(2)]
    first.advance()
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    assert second.advance().metrics["val_loss"] == expected[1]
    for run in (whole, first, second):
        run.close()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA card")
@pytest.mark.parametrize("optimizer", ["adamw", "admetar", "sgdm"])
def test_captured_steps_in_mup_learn_as_eager_ones(data_dir: Path, optimizer: str) -> None:
    """A captured step reads the learning rate of each role from a tensor of its own."""
    runs = {}
    for kind in ("eager", "graph"):
        cfg = config(**MUP, context=64, epochs=2, acceleration=kind)
        run = open_run(cfg, optimizer=optimizer, params={"lr": 3e-3}, seed=0, data_dir=data_dir, device="cuda")
        runs[kind] = ([run.advance().metrics["val_loss"] for _ in range(2)], run.step_status)
        run.close()
    assert runs["graph"][1].startswith("graph: 1 shape")
    assert runs["eager"][0] == pytest.approx(runs["graph"][0], rel=0.02)
