"""Recordings on the engine: both kinds of model learn and resume to the last bit; checkpoints are taken as they are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tasks.audio.models import CheckpointNet, tiny_source
from tasks.data.pretrained import ModelSource, load_config
from tasks.engine.run import TrainingRun
from tasks.errors import ConfigError
from tasks.registry import parse_config
from tasks.runs import check, open_run
from tests.tasks.audio.sounds import write_tone

PITCHES = {"high": 1600.0, "low": 300.0, "mid": 800.0}


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    for number, (klass, hz) in enumerate(PITCHES.items()):
        for index in range(24):
            split = "test" if index < 4 else "train"
            seconds = 0.2 + 0.02 * (index % 5)
            write_tone(
                tmp_path / "data/calls" / split / klass / f"{index}.wav", hz, seconds=seconds, seed=24 * number + index
            )
    return tmp_path / "data"


def config(**fields: Any) -> Any:
    base = {
        "name": "audio_folder",
        "data_dir": "calls",
        "model": "spectrogram",
        "sample_rate": 8000,
        "max_length_s": 0.25,
        "batch_size": 6,
        "epochs": 6,
    }
    return parse_config({**base, **fields})


def start(data_dir: Path, cfg: Any, *, lr: float = 3e-3) -> TrainingRun:
    run = open_run(cfg, optimizer="adamw", params={"lr": lr}, seed=0, data_dir=data_dir, device="cpu")
    assert isinstance(run, TrainingRun)
    return run


@pytest.mark.parametrize(("model", "accumulation"), [("spectrogram", 1), ("tiny", 3)])
def test_a_run_and_its_exact_resume(data_dir: Path, model: str, accumulation: int) -> None:
    cfg = config(model=model, accumulation=accumulation)
    whole = start(data_dir, cfg)
    evaluations = [whole.advance() for _ in range(6)]
    assert evaluations[-1].step == 6 * (54 // (6 * accumulation))
    assert set(evaluations[-1].metrics) == {"val_accuracy", "val_loss", "train_loss"}
    assert evaluations[-1].metrics["train_loss"] < evaluations[0].metrics["train_loss"]
    if model == "spectrogram":
        assert whole.test()["test_accuracy"] == 1.0  # pitches that far apart
    assert whole.environment()["train_seconds"] > 5
    stopped, resumed = start(data_dir, cfg), start(data_dir, cfg)
    for _ in range(3):
        stopped.advance()
    torch.rand(5)  # whatever the process draws in between
    resumed.load_state_dict(stopped.state_dict())
    for expected in evaluations[3:]:
        assert resumed.advance().metrics == expected.metrics
    assert resumed.test() == whole.test()


def checkpoint_folder(folder: Path, *, rate: int = 8000, **fields: Any) -> Path:
    """A small wav2vec 2.0 with its own weights, as `save_pretrained` writes it."""
    from transformers import Wav2Vec2ForPreTraining

    torch.manual_seed(5)
    source = tiny_source()
    body = Wav2Vec2ForPreTraining(load_config(source, num_codevectors_per_group=4, codevector_dim=8, **fields))
    body.save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps({"sampling_rate": rate, "do_normalize": True}))
    return folder


def test_a_checkpoint_keeps_its_body_and_its_frozen_features(data_dir: Path) -> None:
    folder = checkpoint_folder(data_dir / "mine")
    cfg = config(model="mine", epochs=1)
    check(cfg, data_dir=data_dir)
    run = start(data_dir, cfg)
    saved = load_file(folder / "model.safetensors")
    own = {name.removeprefix("body."): value.clone() for name, value in run.model.state_dict().items()}
    shared = [name for name in saved if name in own]
    assert any("encoder.layers.0" in name for name in shared)
    assert all(torch.equal(saved[name], own[name]) for name in shared)
    run.advance()
    moved = {name.removeprefix("body."): value for name, value in run.model.state_dict().items()}
    frozen = [name for name in shared if "feature_extractor" in name]
    assert frozen
    assert all(torch.equal(own[name], moved[name]) for name in frozen)
    assert not torch.equal(own["projector.weight"], moved["projector.weight"])
    assert run.environment()["model_origin"] == "folder mine"


def test_checkpoints_that_do_not_fit_are_refused(data_dir: Path) -> None:
    folder = checkpoint_folder(data_dir / "mine", rate=16_000)
    with pytest.raises(ConfigError, match=r"folder mine expects 16000 Hz; set sample_rate: 16000"):
        check(config(model="mine"), data_dir=data_dir)
    (folder / "preprocessor_config.json").write_text('{"sampling_rate": "16k"}')
    with pytest.raises(ConfigError, match=r"preprocessor_config\.json says sampling_rate '16k', which is not a whole"):
        check(config(model="mine"), data_dir=data_dir)
    raw = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**raw, "model_type": "whisper"}))
    with pytest.raises(ConfigError, match="is a 'whisper' model; recordings need one of wav2vec2, hubert"):
        check(config(model="mine"), data_dir=data_dir)


def net(source: ModelSource, *, augment: Any) -> CheckpointNet:
    torch.manual_seed(0)
    return CheckpointNet(source, n_classes=3, freeze="nothing", augment=augment)


def test_masks_and_dropped_layers_follow_torchs_seed(data_dir: Path) -> None:
    folder = checkpoint_folder(data_dir / "mine", layerdrop=0.5, hidden_dropout=0.0, attention_dropout=0.0)
    source = ModelSource(folder=folder, origin="folder mine")
    waves, lengths = torch.randn(4, 3200), torch.full((4,), 3200)
    plain = net(source, augment="none")

    def logits(model: CheckpointNet, seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        with torch.no_grad():
            return model(waves, lengths)

    masked = net(source, augment="spec")
    assert torch.equal(logits(masked.train(), 1), logits(masked, 1))
    assert len({float(logits(masked, seed).sum()) for seed in range(6)}) == 6
    assert torch.equal(logits(masked.eval(), 1), logits(masked, 2))
    assert torch.equal(logits(masked, 1), logits(plain.eval(), 1))


def test_silence_behind_a_clip_is_masked_where_the_checkpoint_wants_it(data_dir: Path) -> None:
    folder = checkpoint_folder(data_dir / "mine", feat_extract_norm="layer", do_stable_layer_norm=True)
    model = net(ModelSource(folder=folder, origin="folder mine"), augment="none").eval()
    waves = torch.randn(1, 3200)
    longer = torch.nn.functional.pad(waves, (0, 3200))
    with torch.no_grad():
        alone = model(waves, torch.tensor([3200]))
        padded = model(longer, torch.tensor([3200]))
        everything = model(longer, torch.tensor([6400]))
    torch.testing.assert_close(alone, padded, atol=2e-3, rtol=2e-2)
    assert (alone - everything).abs().max() > 5 * (alone - padded).abs().max()
