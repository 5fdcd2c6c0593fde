"""Optimizers by import path and with roles, as a study definition states and stores them."""

from __future__ import annotations

import re
from typing import Any

import pytest
from pydantic import ValidationError

from search.definition import StudyDefinition, expand_names
from search.optimizer_search import OptimizerSearch

LR = {"type": "float", "low": 1e-4, "high": 1e-2, "log": True}
NADAM = {"name": "torch.optim:NAdam", "space": {"lr": LR}}


def study(*optimizers: Any) -> StudyDefinition:
    raw = {"name": "any", "task": {"name": "digits"}, "optimizers": list(optimizers)}
    return StudyDefinition.model_validate(expand_names(raw))


def parse(**raw: Any) -> OptimizerSearch:
    (found,) = study(raw).optimizers
    again = StudyDefinition.model_validate(study(raw).to_json()).optimizers[0]
    assert again == found  # what is stored gives the same search
    return found


def fault(**raw: Any) -> str:
    with pytest.raises(ValidationError) as caught:
        study(raw)
    return "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in caught.value.errors())


def test_an_import_path_takes_any_setting_and_is_labelled_by_its_class() -> None:
    found = parse(**NADAM, fixed={"decoupled_weight_decay": True, "betas": [0.9, 0.99]})
    assert (found.name, found.label) == ("torch.optim:NAdam", "NAdam")
    assert found.fixed == {"decoupled_weight_decay": True, "betas": [0.9, 0.99]}
    assert parse(**NADAM, label="mine").label == "mine"


@pytest.mark.parametrize(
    ("raw", "rule"),
    [
        ({"name": "torch.optim:NAdam"}, "named by its import path and has no spaces of its own; state one"),
        ({"name": "torch.optim:NAdam", "space": "finetune"}, "has no spaces of its own"),
        ({**NADAM, "fixed": {"a b": 1}}, "no such parameter"),
        ({**NADAM, "space": {"lr": {"type": "float", "low": -1, "high": 1}}}, r"lr = -1.*must be a finite number in"),
        (
            {**NADAM, "name": "torch.optim:NAdam.__init__"},
            "is not an import path; write the module",
        ),
        ({**NADAM, "name": "torch.optim:"}, "is not an import path"),
        ({**NADAM, "name": "../x:Y"}, "is not an import path"),
        ({**NADAM, "name": "torch.optim:LBFGS"}, "cannot train here: it computes the loss again within a step"),
        ({**NADAM, "name": "pytorch_optimizer:SophiaH"}, "cannot train here: it differentiates the gradient"),
        ({**NADAM, "name": "pytorch_optimizer:SAM"}, "cannot train here: it computes the loss again"),
        ({**NADAM, "name": "pytorch_optimizer:Lookahead"}, "cannot train here: it wraps another optimizer"),
        ({**NADAM, "name": "x" * 90 + ":Mine567890"}, "at most 100 characters"),
    ],
)
def test_what_is_refused(raw: dict[str, Any], rule: str) -> None:
    assert re.search(rule, fault(**raw)), fault(**raw)


def test_roles_become_one_space_with_prefixed_names() -> None:
    found = parse(
        name="torch.optim:Muon",
        space={"lr": LR},
        roles={"others": {"name": "adamw", "space": {"lr": LR}, "fixed": {"weight_decay": 0.1}}},
    )
    assert (found.name, found.label) == ("torch.optim:Muon+adamw", "Muon-adamw")
    assert found.space.keys() == {"lr", "others.lr"}
    assert found.fixed == {"others.weight_decay": 0.1, "others.betas": [0.9, 0.999], "others.eps": 1e-8}
    same = parse(
        name="torch.optim:Muon",
        roles={
            "matrices": {"space": {"lr": LR}},
            "others": {"name": "adamw", "space": {"lr": LR}, "fixed": {"weight_decay": 0.1}},
        },
    )
    assert same == found


def test_the_others_space_has_a_default_and_a_registered_optimizer_keeps_its_name() -> None:
    assert parse(name="muon").space.keys() == {"lr", "others.lr"}
    narrow = parse(name="muon", roles={"others": {"space": {"lr": LR}}})
    assert narrow.name == "muon"
    assert narrow.space["others.lr"] == parse(**NADAM).space["lr"]
    assert narrow.space["lr"] == parse(name="muon").space["lr"]
    held = parse(name="muon", roles={"others": {"fixed": {"lr": 1e-3}}})
    assert held.space.keys() == {"lr"}
    assert held.fixed["others.lr"] == 1e-3
    lion = parse(name="muon", roles={"others": "lion"})
    assert lion.name == "muon+lion"
    assert lion.space.keys() == {"lr", "others.lr", "others.weight_decay"}
    assert parse(name="muon+lion") == lion
    assert parse(name="adamw", roles={"others": {"space": {"lr": LR}}}).name == "adamw+adamw"
    free = parse(**NADAM, roles={"others": "adamw"})
    assert free.space.keys() == {"lr", "others.lr", "others.weight_decay"}
    free = parse(**NADAM, roles={"others": {"name": "adamw", "fixed": {"weight_decay": 0.0}}})
    assert free.space.keys() == {"lr", "others.lr"}
    free = parse(**{**NADAM, "roles": {"others": {"name": "pytorch_optimizer:Lion", "space": {"lr": LR}}}})
    assert free.name == "torch.optim:NAdam+pytorch_optimizer:Lion"
    assert study(free.model_dump(mode="json")).imports() == {
        "optimizers.0.name": "torch.optim:NAdam",
        "optimizers.0.roles.others.name": "pytorch_optimizer:Lion",
    }


@pytest.mark.parametrize(
    ("roles", "rule"),
    [
        ("adamw", "must be an object with 'others', 'matrices' or both"),
        ({"heads": {}}, "optimizers.0.roles.heads: is not a role; the roles are matrices and others"),
        ({"others": 1}, "optimizers.0.roles.others: must be an object"),
        ({"others": {"label": "x"}}, "optimizers.0.roles.others.label: is not a field of a role"),
        ({"matrices": {"name": "x"}}, "optimizers.0.roles.matrices.name: is not a field of a role"),
        (
            {"others": {"name": "adamv"}},
            "optimizers.0.roles.others.name: unknown optimizer 'adamv'; did you mean 'adam'",
        ),
        ({"others": "pytorch_optimizer:Lion"}, "'pytorch_optimizer:Lion' is named by its import path"),
        ({"others": "muon"}, "cannot be the optimizer of the other parameters"),
        ({"others": {"name": "adamw", "space": {"momentum": LR}}}, "others.momentum.*no such parameter"),
        (
            {"others": {"name": "adamw", "space": 3}},
            "optimizers.0.roles.others.space: must be an object or a space's name",
        ),
        ({"others": {"name": "adamw", "space": "wide"}}, "optimizer 'adamw' has no space named 'wide'"),
        ({"others": {"name": "adamw", "fixed": "x"}}, "optimizers.0.roles.others.fixed: must be an object"),
        ({"others": {"name": 5}}, "optimizers.0.roles.others.name: must be text"),
        ({"others": {"name": "adamw", "fixed": {"lr": "x"}}}, "others.lr = 'x'"),
        ({"matrices": {"fixed": []}}, "optimizers.0.roles.matrices.fixed: must be an object"),
        ({"matrices": {"space": {"lr": LR}}}, "is stated under 'roles.matrices' and next to 'roles'"),
    ],
)
def test_roles_that_are_refused(roles: Any, rule: str) -> None:
    assert re.search(rule, fault(**NADAM, roles=roles)), fault(**NADAM, roles=roles)
