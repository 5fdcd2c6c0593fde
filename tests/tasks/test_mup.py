"""µP: exactly the standard run at the base width, activations that do not grow with the width, roles' learning rates.

The coordinate check is that of Yang, Hu et al., "Tensor Programs V" (2022), appendix D.1.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor, nn

from admeta.registry import why_no_width_rule
from admeta.roles import create_for_model, split_parameters
from tasks.config import Shape
from tasks.gpt import Gpt
from tasks.registry import parse_config
from tasks.vision.config import VIT_SIZES
from tasks.vision.models import build_image_model

HEAD, BASE = 16, 32


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Small products are slower on several."""
    n = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(n)


@pytest.fixture(autouse=True)
def two_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both models with two layers, so that a check takes a second."""
    from tasks.text.config import GPT_SIZES

    monkeypatch.setitem(GPT_SIZES, "nano", (2, 2, BASE))  # type: ignore[arg-type]
    monkeypatch.setitem(VIT_SIZES, "vit_tiny", (2, 2, BASE))


def shape(width: int, *, mup: bool) -> Shape:
    return Shape(width=width, n_heads=width // HEAD, over_base=width / BASE if mup else 1.0)


def gpt(width: int, *, mup: bool) -> Gpt:
    torch.manual_seed(0)
    return Gpt("nano", n_tokens=64, context=16, dropout=0.0, shape=shape(width, mup=mup))


def vit(width: int, *, mup: bool) -> nn.Module:
    torch.manual_seed(0)
    return build_image_model("vit_tiny", n_classes=4, image_size=8, shape=shape(width, mup=mup))


def batch_of(model: nn.Module) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(1)
    if isinstance(model, Gpt):
        tokens = torch.randint(0, 64, (8, 17), generator=random)
        return tokens[:, :-1], tokens[:, 1:].flatten()
    return torch.randn(16, 3, 8, 8, generator=random), torch.randint(0, 4, (16,), generator=random)


def blocks_of(model: nn.Module) -> Any:
    return model.blocks if isinstance(model, Gpt) else model.encoder.layers  # type: ignore[union-attr]


def growth(build: Any, *, mup: bool, optimizer: str, settings: dict[str, Any]) -> tuple[float, float]:
    """How much farther four steps move activations at four times the width: those of a block, and the logits."""
    sizes = []
    for width in (32, 128):
        model = build(width, mup=mup)
        inputs, targets = batch_of(model)
        seen: dict[str, Tensor] = {}
        blocks_of(model)[-1].register_forward_hook(lambda _m, _i, out, seen=seen: seen.update(block=out.detach()))
        first = {"logits": model(inputs).detach(), **seen}
        made = create_for_model(optimizer, model, settings)
        for _ in range(4):
            loss = nn.functional.cross_entropy(model(inputs).flatten(0, -2), targets)
            made.zero_grad()
            loss.backward()
            made.step()
        last = {"logits": model(inputs).detach(), **seen}
        sizes.append([float((last[name] - first[name]).abs().mean()) for name in ("block", "logits")])
    return sizes[1][0] / sizes[0][0], sizes[1][1] / sizes[0][1]


@pytest.mark.parametrize(
    ("build", "optimizer", "settings"),
    [
        (gpt, "adamw", {"lr": 3e-3}),
        (gpt, "admetar", {"lr": 1e-3, "rectify": False}),
        (gpt, "lion", {"lr": 1e-3}),
        (gpt, "sgdm", {"lr": 0.3}),
        (gpt, "muon", {"lr": 1e-2, "others.lr": 1e-3}),
        (vit, "adamw", {"lr": 3e-3}),
    ],
)
def test_a_step_moves_activations_as_far_at_every_width(build: Any, optimizer: str, settings: dict[str, Any]) -> None:
    in_mup = growth(build, mup=True, optimizer=optimizer, settings=settings)
    standard = growth(build, mup=False, optimizer=optimizer, settings=settings)
    assert max(in_mup) < 1.3
    assert min(standard) > 1.7


@pytest.mark.parametrize("build", [gpt, vit])
def test_at_the_base_width_it_is_the_standard_run(build: Any) -> None:
    models = [build(BASE, mup=mup) for mup in (False, True)]
    for model in models:
        inputs, targets = batch_of(model)
        made = create_for_model("adamw", model, {"lr": 1e-2, "weight_decay": 0.1})
        for _ in range(2):
            nn.functional.cross_entropy(model(inputs).flatten(0, -2), targets).backward()
            made.step()
    assert models[0].state_dict().keys() == models[1].state_dict().keys()
    for (name, one), other in zip(models[0].state_dict().items(), models[1].state_dict().values(), strict=True):
        assert torch.equal(one, other), name


def factors(optimizer: str, settings: dict[str, Any], **options: Any) -> dict[str, set[tuple[float, float | None]]]:
    """The learning rates and weight decays of hidden matrices and of all others, at four times the base width."""
    model = gpt(4 * BASE, mup=True)
    matrices = {id(p) for _, p in split_parameters(model)[0]}
    made = create_for_model(optimizer, model, settings, **options)
    found: dict[str, set[tuple[float, float | None]]] = {"matrices": set(), "others": set()}
    for group in made.param_groups:
        for p in group["params"]:
            role = "matrices" if id(p) in matrices else "others"
            found[role].add((round(group["lr"], 9), round(group["weight_decay"], 9)))
    assert sum(len(group["params"]) for group in made.param_groups) == len(list(model.parameters()))
    return found


def test_learning_rates_by_role_are_those_of_the_table() -> None:
    given = {"lr": 0.1, "weight_decay": 0.01}
    assert factors("adamw", given) == {"matrices": {(0.025, 0.04)}, "others": {(0.1, 0.01)}}
    assert factors("adamw", given, weight_decay_on="matrices") == {
        "matrices": {(0.025, 0.04)},
        "others": {(0.1, 0.01), (0.1, 0.0)},
    }
    assert factors("sgdm", given) == {"matrices": {(0.1, 0.01)}, "others": {(0.4, 0.0025)}}
    joint = {"lr": 0.1, "weight_decay": 0.01, "others.lr": 0.2, "others.weight_decay": 0.02}
    assert factors("muon", joint) == {"matrices": {(0.1, 0.01)}, "others": {(0.2, 0.02)}}
    assert factors("muon", {**joint, "use_adjusted_lr": True})["matrices"] == {(0.05, 0.02)}
    assert factors("muon+sgdm", joint)["others"] == {(0.8, 0.005)}


@pytest.mark.parametrize("name", ["soap", "shampoo", "prodigy", "torch.optim:NAdam", "muon+soap"])
def test_optimizers_without_a_rule_are_refused(name: str) -> None:
    refused = name.rpartition("+")[2]
    assert (why_no_width_rule(name) or "").startswith(f"{refused} has no known rule")
    with pytest.raises(ValueError, match="no known rule"):
        create_for_model(name, gpt(4 * BASE, mup=True), {"lr": 1e-3})


def test_widths_that_do_not_fit_are_refused() -> None:
    for fields, words in (
        ({"name": "gpt", "width": 40}, "no multiple of 16"),
        ({"name": "gpt", "width": 64, "base_width": 32}, "is for 'parametrization: mup'"),
        ({"name": "cifar10", "model": "resnet20", "width": 64}, "has its own width"),
    ):
        with pytest.raises(ValidationError, match=words):
            parse_config(fields)
    assert parse_config({"name": "gpt", "width": 64, "parametrization": "mup"}).shape.over_base == 2.0  # type: ignore[attr-defined]
    assert parse_config({"name": "cifar10", "model": "vit_tiny", "width": 64}).shape == Shape(width=64, n_heads=4)  # type: ignore[attr-defined]
