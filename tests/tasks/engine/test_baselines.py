"""Every registered optimizer trains digits and a small GPT, and resumes exactly; so do import paths and joint ones.

A new optimizer needs a row in `ROWS`: settings for runs of about a hundred steps, by default the middle of its space.
"""

from __future__ import annotations

import inspect
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import admeta
from admeta import registry
from admeta.baselines import BASELINES
from admeta.builtin import BUILTIN
from admeta.imports import load_optimizer
from admeta.spaces import Categorical
from search.placement import middle_of
from search.space import from_registry
from tasks.engine.run import TrainingRun
from tasks.registry import parse_config
from tasks.runs import open_run

ROWS: dict[str, dict[str, Any]] = {
    **{name: {} for name in BASELINES},
    "muon": {"lr": 0.05, "others.lr": 3e-3},
    "soap": {"lr": 1e-2},
    "shampoo": {"lr": 0.1, "others.lr": 1e-2, "preconditioning_compute_steps": 1},
    "ademamix": {"lr": 1e-2, "alpha": 2.0},
    "prodigy": {"d_coef": 2.0, "d0": 1e-3, "safeguard_warmup": False},  # the estimate needs some hundred steps
    "lion": {"lr": 3e-3, "weight_decay": 0.1},
    # Not registered, but a study can name them.
    "soap+adamw": {},
    "adamw+sgdm": {},
    "torch.optim:Adamax": {"lr": 1e-2},
    "pytorch_optimizer:Lion+adamw": {"lr": 1e-3, "others.lr": 3e-3},
}
DIGITS_ACCURACY = 0.90
GPT_LOSS = 1.5  # nats a byte: the entropy of single bytes is 2.62, that of the words 0.23; processors differ by 0.1


def settings(name: str) -> dict[str, Any]:
    """The middle of the optimizer's own space, with the row's changes."""
    info = registry.get(name)
    middle = {key: middle_of(one) for key, one in from_registry(info.default_space).items()}
    return {**info.fixed, **middle, **ROWS[name]}


@pytest.fixture(scope="module")
def book(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with book/train.txt: 12 kB of four words."""
    folder = tmp_path_factory.mktemp("data")
    (folder / "book").mkdir()
    words = np.random.default_rng(0).choice(["stone", "river", "cloud", "amber"], size=2000)
    (folder / "book/train.txt").write_text(" ".join(words))
    return folder


def start(task: str, name: str, book: Path) -> TrainingRun:
    fields: dict[str, Any] = {"epochs": 3} if task == "digits" else {
        "data_dir": "book", "context": 32, "batch_size": 4, "epochs": 2, "tokens_per_epoch": 128 * 50,
    }  # fmt: skip
    config = parse_config({"name": task, **fields})
    run = open_run(config, optimizer=name, params=settings(name), seed=0, data_dir=book, device="cpu")
    assert isinstance(run, TrainingRun)
    return run


@pytest.mark.parametrize("task", ["digits", "gpt"])
@pytest.mark.parametrize("name", ROWS)
def test_it_learns_and_resumes_exactly(task: str, name: str, book: Path) -> None:
    run = start(task, name, book)
    run.advance()
    kept = io.BytesIO()
    torch.save(run.state_dict(), kept)
    while not run.done:
        last = run.advance()
    if task == "digits":
        assert last.metrics["val_accuracy"] > DIGITS_ACCURACY
    else:
        assert last.metrics["val_loss"] < GPT_LOSS
    kept.seek(0)
    again = start(task, name, book)
    again.load_state_dict(torch.load(kept, weights_only=True))
    while not again.done:
        repeated = again.advance()
    assert repeated.metrics == last.metrics
    for mine, theirs in zip(run.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("name", BASELINES)
def test_the_registered_defaults_are_the_librarys(name: str) -> None:
    """What `construct` gives where nothing is said, and what the registry shows, are the constructor's own."""
    info = admeta.get(name)
    own = inspect.signature(load_optimizer(info.target)).parameters
    for parameter in info.parameters.values():
        info.check(parameter.name, parameter.default)
        if parameter.name.startswith("others."):
            continue
        default = info.constructor_kwargs.get(parameter.name, own[parameter.name].default)
        assert (list(default) if isinstance(default, tuple) else default) == parameter.default, parameter.name
    json.dumps([one.default for one in info.parameters.values()], allow_nan=False)


@pytest.mark.parametrize("name", BASELINES)
def test_spaces_and_constants_are_valid(name: str) -> None:
    info = admeta.get(name)
    for space, fixed in ((info.default_space, info.fixed), (info.finetune_space, info.finetune_fixed)):
        assert space
        assert not set(space) & set(fixed)
        for key, value in fixed.items():
            info.check(key, value)
        for key, one in space.items():
            for value in one.choices if isinstance(one, Categorical) else (one.low, one.high):
                info.check(key, value)


def test_every_registered_optimizer_is_tested() -> None:
    assert {*BUILTIN, *BASELINES} == {*admeta.OPTIMIZERS}
    assert {*BASELINES} <= {*ROWS}
