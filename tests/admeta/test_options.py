"""What options mean and which combinations are refused: skipped steps, presets, foreign state, schedulers."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch.nn import Parameter
from torch.optim.lr_scheduler import CyclicLR, OneCycleLR

import admeta
from tests.admeta.cases import DEFAULTS, DEVICE, IMPLEMENTATIONS, Case, case_id

implementations = pytest.mark.parametrize("implementation", IMPLEMENTATIONS)


def make_params() -> list[Parameter]:
    draws = torch.Generator().manual_seed(0)
    return [Parameter(torch.randn(s, generator=draws, dtype=torch.float64).to(DEVICE)) for s in ((4, 3), (5,))]


def train(optimizer: torch.optim.Optimizer, params: list[Parameter], steps: range) -> None:
    for step in steps:
        draws = torch.Generator().manual_seed(step)
        for p in params:
            p.grad = (torch.randn(p.shape, generator=draws, dtype=torch.float64) + 0.2).to(p.device)
        optimizer.step()


@implementations
@pytest.mark.parametrize("options", [{}, {"preset": "authors"}], ids=["default", "authors"])
def test_a_skipped_step_moves_nothing_and_updates_the_state(options: dict[str, Any], implementation: str) -> None:
    params = make_params()
    before = [p.detach().clone() for p in params]
    optimizer = admeta.AdmetaR(params, weight_decay=0.5, **options, **IMPLEMENTATIONS[implementation])
    train(optimizer, params, range(5))
    assert all(torch.equal(p, b) for p, b in zip(params, before, strict=True))
    assert all(bool((optimizer.state[p]["exp_avg_sq"] > 0).all()) for p in params)
    train(optimizer, params, range(5, 6))
    assert not any(torch.equal(p, b) for p, b in zip(params, before, strict=True))


@pytest.mark.parametrize("name", ["admetar", "ranger", "adabelief"])
def test_a_beta2_that_never_lets_a_step_be_taken_is_refused(name: str) -> None:
    for beta2 in (0.5, 2 / 3):
        with pytest.raises(ValueError, match=r"no step is ever taken. Raise betas\[1\] above 0.6667"):
            admeta.create(name, make_params(), betas=(0.9, beta2), unrectified="skip")
    params = make_params()
    optimizer = admeta.create(name, params, betas=(0.9, 0.5), unrectified="sgd")
    before = [p.detach().clone() for p in params]
    train(optimizer, params, range(1))
    assert not any(torch.equal(p, b) for p, b in zip(params, before, strict=True))
    group = {"params": [Parameter(torch.zeros(1))], "betas": (0.9, 0.5), "unrectified": "skip"}
    with pytest.raises(ValueError, match="no step is ever taken"):
        optimizer.add_param_group(group)


@implementations
def test_rho_infinity_of_exactly_four_is_never_rectified(implementation: str) -> None:
    params = make_params()
    optimizer = admeta.AdmetaR(params, lr=1e-4, betas=(0.9, 0.6), preset="paper", **IMPLEMENTATIONS[implementation])
    train(optimizer, params, range(100))
    assert all(bool(torch.isfinite(p).all()) for p in params)


@pytest.mark.parametrize("cls", [admeta.AdmetaR, admeta.AdmetaS])
@pytest.mark.parametrize("preset", ["default", "paper", "paper_finetune", "authors", "released"])
def test_a_groups_preset_is_the_constructors(cls: Any, preset: Any) -> None:
    whole, split = make_params(), make_params()
    train(cls(whole, lr=1e-4, preset=preset, foreach=False), whole, range(13))
    groups = [{"params": [split[0]], "preset": preset}, {"params": [split[1]], "preset": preset, "nu_scale": 0.0}]
    optimizer = cls(groups, lr=1e-4, preset="paper_finetune", foreach=False)
    assert "preset" in groups[0]  # the caller's dictionary is left alone
    train(optimizer, split, range(13))
    assert torch.equal(whole[0], split[0])
    assert not torch.equal(whole[1], split[1]), "what a group states goes before its preset"


def test_presets_that_are_refused() -> None:
    with pytest.raises(admeta.UnknownPresetError, match="AdmetaR: unknown preset 'papers'; known presets: authors"):
        admeta.AdmetaR([{"params": make_params(), "preset": "papers"}])
    with pytest.raises(ValueError, match="Ranger has no presets"):
        admeta.Ranger([{"params": make_params(), "preset": "paper"}])


def test_defaults_are_seen_in_the_signature_and_presets_differ_from_them() -> None:
    import inspect

    assert "rho_min: 'float | FromPreset' = 5.0 or the preset's" in str(inspect.signature(admeta.AdmetaR.__init__))
    authors = admeta.AdmetaR(make_params(), preset="authors").defaults
    assert (authors["nu_scale"], authors["slow_step"], authors["raw_eps"]) == (10.0, 0.5, True)
    assert admeta.AdmetaR(make_params(), preset="released", raw_eps=False).defaults["raw_eps"] is False


@pytest.mark.parametrize("name", ["AdmetaR", "AdmetaS", "Ranger", "AdaBelief", "KernelAdam", "KernelRAdam"])
def test_docstrings_tell_the_defaults_and_wrappers_can_construct_from_them(name: str) -> None:
    import inspect
    import re

    cls = getattr(admeta, name)
    signature = inspect.signature(cls.__init__).parameters
    entries = re.sub(r"\n {12}", " ", cls.__doc__).splitlines()  # one a line
    told = [found.groups() for e in entries if (found := re.match(r" {8}(\w+): .*\(default: (.+?)\)\.$", e))]
    assert len(told) >= 8
    for option, value in told:
        default = signature[option].default
        assert value == repr(getattr(default, "value", default)), option
    made = cls(make_params())
    assert cls(make_params(), **made.defaults).defaults == made.defaults


def stored(optimizer: torch.optim.Optimizer, params: list[Parameter]) -> dict[str, Any]:
    train(optimizer, params, range(2))
    return copy.deepcopy(optimizer.state_dict())


def test_another_optimizers_state_is_refused() -> None:
    params = make_params()
    adam = stored(torch.optim.Adam(params), params)
    with pytest.raises(ValueError, match="AdmetaR can't load this state: its groups have no option 'dema'"):
        admeta.AdmetaR(params).load_state_dict(adam)
    for other in (torch.optim.SGD(params, lr=0.1, momentum=0.9), torch.optim.NAdam(params)):
        with pytest.raises(ValueError, match="can't load this state"):
            admeta.KernelAdam(params).load_state_dict(stored(other, params))
    state = stored(admeta.AdmetaR(params), params)
    with pytest.raises(ValueError, match="KernelAdam can't load this state"):
        admeta.KernelAdam(params).load_state_dict(state)


def test_state_that_lacks_what_its_options_need_is_refused() -> None:
    params = make_params()
    state = stored(admeta.AdmetaR(params, dema="off"), params)
    state["param_groups"][0]["dema"] = "full"
    with pytest.raises(ValueError, match="parameter 0 has no 'dema' among exp_avg, exp_avg_sq, slow, step"):
        admeta.AdmetaR(params).load_state_dict(state)


@implementations
@pytest.mark.parametrize(("option", "off", "on"), [("dema", "off", "full"), ("slow_step", None, 0.5)])
def test_an_option_that_needs_state_turned_on_in_mid_run(option: str, off: Any, on: Any, implementation: str) -> None:
    params = make_params()
    optimizer = admeta.AdmetaR(params, **{option: off}, **IMPLEMENTATIONS[implementation])
    train(optimizer, params, range(2))
    optimizer.param_groups[0][option] = on
    with pytest.raises(RuntimeError, match="turned on after the first step; set it before, or start again"):
        train(optimizer, params, range(1))
    optimizer.state.clear()
    train(optimizer, params, range(2))
    optimizer.param_groups[0][option] = off  # off again is fine, and the state can be loaded
    train(optimizer, params, range(2))
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))


@pytest.mark.filterwarnings("ignore:AdmetaS has no momentum")
@implementations
@pytest.mark.parametrize("case", DEFAULTS, ids=case_id)
def test_schedulers_that_cycle_momentum(case: Case, implementation: str) -> None:
    for make in (
        lambda o: OneCycleLR(o, max_lr=0.01, total_steps=9),
        lambda o: CyclicLR(o, base_lr=1e-3, max_lr=0.01, step_size_up=3),
    ):
        results = []
        for flags in (IMPLEMENTATIONS[implementation], {"foreach": False}):
            params = make_params()
            optimizer = case.create(params, lr=1e-3, **flags)
            schedule = make(optimizer)
            for step in range(9):
                if case.optimizer == "admetas" and step == 0:
                    with pytest.warns(UserWarning, match="Give them cycle_momentum=False"):
                        train(optimizer, params, range(1))
                else:
                    train(optimizer, params, range(step, step + 1))
                schedule.step() if step < 8 else None
            results.append([p.detach() for p in params])
        for got, wanted in zip(*results, strict=True):
            torch.testing.assert_close(got, wanted, rtol=1e-10, atol=1e-12)
