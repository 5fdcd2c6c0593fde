"""Parameter roles on models of every kind, and the joint step against its members one by one."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torchvision
import transformers
from torch import nn

import admeta
from admeta.roles import JointOptimizer, create_for_model, find_head, split_parameters
from tasks.gpt import Gpt
from tasks.vision.models import build_image_model


def others_of(model: nn.Module) -> list[str]:
    """The other parameters' names, those of fewer than two dimensions left out."""
    return [name for name, p in split_parameters(model)[1] if p.ndim >= 2]


def mlp() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 3))


def bert() -> nn.Module:
    size = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    return transformers.BertForSequenceClassification(transformers.BertConfig(vocab_size=50, **size))


def vit() -> nn.Module:
    return torchvision.models.VisionTransformer(
        image_size=8, patch_size=4, num_layers=2, num_heads=2, hidden_dim=16, mlp_dim=32, num_classes=5
    )


def transformers_vit() -> nn.Module:
    size = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    return transformers.ViTForImageClassification(transformers.ViTConfig(image_size=8, patch_size=4, **size))


@pytest.mark.parametrize(
    ("model", "others"),
    [
        (mlp, ["5.weight"]),
        (lambda: Gpt("nano", n_tokens=64, context=16, dropout=0.0), ["tokens.weight", "positions.weight"]),
        (lambda: build_image_model("resnet20", n_classes=10, image_size=32), ["head.weight"]),
        (vit, ["class_token", "conv_proj.weight", "encoder.pos_embedding", "heads.head.weight"]),
        (
            transformers_vit,
            [
                *("vit.embeddings.cls_token", "vit.embeddings.position_embeddings"),
                *("vit.embeddings.patch_embeddings.projection.weight", "classifier.weight"),
            ],
        ),
        (
            bert,
            [
                *(f"bert.embeddings.{kind}_embeddings.weight" for kind in ("word", "position", "token_type")),
                "classifier.weight",
            ],
        ),
    ],
    ids=["mlp", "gpt", "resnet", "vit", "transformers-vit", "bert"],
)
def test_embeddings_and_the_head_are_others(model: Any, others: list[str]) -> None:
    made = model()
    assert others_of(made) == others
    matrices, rest = split_parameters(made)
    assert all(p.ndim >= 2 for _, p in matrices)
    named = dict(made.named_parameters())
    assert {name for name, _ in matrices} | {name for name, _ in rest} == set(named)
    assert len(matrices) + len(rest) == len(named)


def test_a_model_may_state_its_head_and_frozen_parameters_have_no_role() -> None:
    model = mlp()
    assert find_head(model) is model[5]
    model.output_head = model[0]
    assert others_of(model) == ["0.weight"]
    model[3].requires_grad_(False)
    assert {name for part in split_parameters(model) for name, _ in part} == {
        "0.weight", "0.bias", "1.weight", "1.bias", "5.weight", "5.bias",
    }  # fmt: skip
    assert find_head(nn.Embedding(3, 3)) is None


def backward(model: nn.Module, step: int) -> None:
    draws = torch.Generator().manual_seed(step)
    loss = model(torch.randn(4, 6, generator=draws)).square().mean()
    loss.backward()


def test_a_joint_step_is_its_members_steps() -> None:
    joint_model, model = mlp(), mlp()
    settings = {"lr": 0.02, "momentum": 0.9, "others.lr": 0.01, "others.betas": [0.8, 0.9]}
    joint = create_for_model("torch.optim:Muon+adamw", joint_model, settings)
    assert isinstance(joint, JointOptimizer)
    assert [group["lr"] for group in joint.param_groups] == [0.02, 0.01]
    matrices = [model[0].weight, model[3].weight]
    rest = [p for p in model.parameters() if all(p is not matrix for matrix in matrices)]
    one, two = torch.optim.Muon(matrices, lr=0.02, momentum=0.9), torch.optim.AdamW(rest, lr=0.01, betas=(0.8, 0.9))
    for step in range(5):
        backward(joint_model, step)
        joint.step()
        joint.zero_grad()
        backward(model, step)
        for optimizer in (one, two):
            optimizer.step()
            optimizer.zero_grad()
    for mine, theirs in zip(joint_model.parameters(), model.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_a_closure_is_called_once_before_the_members_step() -> None:
    """As Lightning gives one, and torch's own optimizers take it."""
    models = [mlp(), mlp()]
    first, second = (create_for_model("muon+adamw", model, {"lr": 0.1, "others.lr": 0.1}) for model in models)
    calls = []

    def closure() -> float:
        calls.append(torch.is_grad_enabled())
        backward(models[0], 0)
        return 7.0

    with torch.no_grad():
        assert first.step(closure) == 7.0
    assert calls == [True]
    backward(models[1], 0)
    second.step()
    for one, other in zip(models[0].parameters(), models[1].parameters(), strict=True):
        assert torch.equal(one, other)


def test_a_joint_state_loads_and_its_groups_stay_the_members() -> None:
    model = mlp()
    joint = create_for_model("soap+adamw", model, {"lr": 0.1, "others.lr": 0.1})
    backward(model, 0)
    joint.step()
    other = create_for_model("soap+adamw", model, {"lr": 0.2, "others.lr": 0.2})
    other.load_state_dict(copy.deepcopy(joint.state_dict()))
    assert [group["lr"] for group in other.param_groups] == [0.1, 0.1]
    for group in other.param_groups:
        group["lr"] = 0.3
    assert all(group["lr"] == 0.3 for member in other.members for group in member.param_groups)  # type: ignore[attr-defined]
    twin = copy.deepcopy(other)
    assert [group["lr"] for group in twin.param_groups] == [0.3, 0.3]
    assert twin.members[0].param_groups[0] is twin.param_groups[0]  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="a joint optimizer has its members' groups"):
        other.add_param_group({"params": [nn.Parameter(torch.zeros(2))]})


def test_weight_decay_leaves_biases_alone_in_both_roles() -> None:
    optimizer = create_for_model(
        "muon", mlp(), {"lr": 0.1, "weight_decay": 0.5, "others.weight_decay": 0.25}, weight_decay_on="matrices"
    )
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.5, 0.25, 0.0]


@pytest.mark.parametrize("name", ["torch.optim:AdamW", "torch.optim:Muon+torch.optim:AdamW"])
def test_a_default_weight_decay_of_an_import_path_is_taken_off_biases_too(name: str) -> None:
    for group in create_for_model(name, mlp(), {"lr": 0.1}, weight_decay_on="matrices").param_groups:
        assert {p.ndim >= 2 for p in group["params"]} == {group["weight_decay"] > 0}
    without = create_for_model("torch.optim:Rprop", mlp(), {"lr": 0.1}, weight_decay_on="matrices")
    assert len(without.param_groups) == 1


def test_convolutions_are_flattened_where_the_library_does() -> None:
    model = build_image_model("resnet20", n_classes=10, image_size=32)
    optimizer = create_for_model("muon", model, {"lr": 0.1})
    model(torch.randn(2, 3, 32, 32)).square().mean().backward()
    before = [p.detach().clone() for p in model.parameters()]
    optimizer.step()
    assert all(not torch.equal(now, then) for now, then in zip(model.parameters(), before, strict=True))
    with pytest.raises(ValueError, match="Muon only supports 2D parameters"):
        create_for_model("torch.optim:Muon+adamw", model, {"lr": 0.1})


def test_what_cannot_be_constructed() -> None:
    with pytest.raises(ValueError, match="this model has none, only embeddings, norms, biases and an output layer"):
        create_for_model("muon", nn.Linear(3, 2), {"lr": 0.1})
    with pytest.raises(ValueError, match=r"in a study give it roles: .*in Python use admeta\.create_for_model"):
        admeta.create("muon", list(mlp().parameters()), lr=0.1)
    with pytest.raises(ValueError, match="in a study give it roles"):
        create_for_model("pytorch_optimizer:Muon", mlp(), {"lr": 0.1})
    with pytest.raises(admeta.ImportPathError, match="cannot be the optimizer of the other parameters"):
        admeta.get("soap+muon")
    with pytest.raises(admeta.ImportPathError, match="joins more than two optimizers"):
        admeta.get("+".join(["adamw"] * 5000))
    assert admeta.get("muon+lion").name == "muon+lion"
    assert "others.weight_decay" in admeta.get("muon+lion").default_space


def test_schedule_free_averages_in_a_joint_optimizer_too() -> None:
    model = mlp()
    optimizer = create_for_model("schedulefree+adamw", model, {"lr": 0.1, "others.lr": 0.1})
    for step in range(3):
        backward(model, step)
        optimizer.step()
        optimizer.zero_grad()
    training = model[0].weight.detach().clone()
    optimizer.eval()  # type: ignore[attr-defined]
    assert not torch.allclose(model[0].weight, training)
    optimizer.train()  # type: ignore[attr-defined]
    torch.testing.assert_close(model[0].weight, training)
