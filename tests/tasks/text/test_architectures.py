"""Checkpoints of other architectures than BERT, small and random, on the same data, in float32 and wholly in bf16."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from tasks.data.pretrained import check_length, choose_model, find_model, load_tokenizer
from tasks.engine.run import TrainingRun
from tasks.errors import ConfigError
from tasks.registry import parse_config
from tasks.runs import open_run
from tests.tasks.text.conftest import reviews

SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
CONFIGS: dict[str, tuple[type[Any], dict[str, Any]]] = {
    "roberta": (transformers.RobertaConfig, {**SMALL, "max_position_embeddings": 129, "type_vocab_size": 1}),
    "distilbert": (transformers.DistilBertConfig, {"dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 64}),
    "electra": (transformers.ElectraConfig, {**SMALL, "embedding_size": 16}),
    "albert": (transformers.AlbertConfig, {**SMALL, "embedding_size": 16}),
    "deberta": (transformers.DebertaV2Config, SMALL),
    "modernbert": (transformers.ModernBertConfig, {**SMALL, "global_attn_every_n_layers": 2, "local_attention": 8}),
    "gpt2": (transformers.GPT2Config, {"n_embd": 32, "n_layer": 2, "n_head": 2}),
}


def saved(folder: Path, architecture: str) -> None:
    """A random model of that architecture with the words of the reviews."""
    source = choose_model("tiny", data_dir=None, digest="r", texts=lambda: [row[0] for row in reviews(80, seed=0)])
    tokenizer = load_tokenizer(source)
    tokenizer.model_max_length = 10**30  # as tokenizers that were never told
    if architecture in ("roberta", "distilbert", "modernbert", "gpt2"):
        tokenizer.model_input_names = ["input_ids", "attention_mask"]
    if architecture == "gpt2":
        tokenizer.eos_token, tokenizer.pad_token = tokenizer.sep_token, None
    tokenizer.save_pretrained(folder)
    config_class, fields = CONFIGS[architecture]
    special = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3, "cls_token_id": 2, "sep_token_id": 3}
    config = config_class(vocab_size=len(tokenizer), **special, **fields)
    torch.manual_seed(0)
    transformers.AutoModelForSequenceClassification.from_config(config).save_pretrained(folder)


@pytest.mark.parametrize("architecture", sorted(CONFIGS))
def test_trains_and_pads_without_a_trace(data_dir: Path, architecture: str) -> None:
    saved(data_dir / "models" / architecture, architecture)
    raw = {"name": "text_classification", "data_dir": "reviews", "model": f"models/{architecture}", "epochs": 1}
    losses = []
    for precision in ("fp32", "bf16"):
        run = open_run(
            parse_config({**raw, "precision": precision, "batch_size": 16}),
            optimizer="adamw",
            params={"lr": 1e-3},
            seed=0,
            data_dir=data_dir,
            device="cpu",
        )
        assert isinstance(run, TrainingRun)
        task: Any = run._task
        run.model.eval()
        with torch.no_grad():
            together = task.logits(run.model, task.data.test)
            alone = task.outputs(run.model, task.data.test.table.pad(torch.tensor([7]), 40)).logits
        torch.testing.assert_close(together[7], alone[0], rtol=1e-3, atol=1e-4)
        losses.append(run.advance().metrics["train_loss"])
    assert losses[0] == pytest.approx(losses[1], rel=0.05)


def test_robertas_positions_begin_after_the_padding(data_dir: Path) -> None:
    saved(data_dir / "roberta", "roberta")
    source = find_model("roberta", data_dir=data_dir)
    tokenizer = load_tokenizer(source)
    check_length(source, tokenizer=tokenizer, max_length=128)
    with pytest.raises(ConfigError, match="max_length 129 is more than the 128 tokens"):
        check_length(source, tokenizer=tokenizer, max_length=129)
