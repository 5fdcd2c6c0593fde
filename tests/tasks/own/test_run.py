"""Runs of own training code: reports, resumes, ends, and what goes wrong in it."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from tasks import runs
from tasks.errors import CheckpointError, ConfigError, Diverged, EndedEarly, OutOfMemory, OwnCodeError
from tasks.own import PythonConfig
from tasks.own.run import PythonRun
from tests.tasks.own import functions

Metrics = dict[str, float]


def config(name: str, **fields: Any) -> PythonConfig:
    return PythonConfig(run=f"tests.tasks.own.functions:{name}", **{"epochs": 4, **fields})


def open_run(name: str, **fields: Any) -> PythonRun:
    made = runs.open_run(config(name, **fields), optimizer="adamw", params={"lr": 0.05}, seed=7, device="cpu")
    assert isinstance(made, PythonRun)
    return made


@pytest.fixture(autouse=True)
def _nothing_told() -> None:
    functions.told.clear()


def all_metrics(run: PythonRun) -> list[Metrics]:
    found = []
    while not run.done:
        found.append(dict(run.advance().metrics))
    return found


@pytest.mark.parametrize("stopped_after", [1, 3])
def test_a_resumed_loop_equals_an_uninterrupted_one(stopped_after: int) -> None:
    """`resume` keeps the weights, AdamW's state, the schedule, and the generator that shuffles and drops."""
    whole = open_run("line", schedule="cosine")
    expected = all_metrics(whole)
    weights = whole.state_dict()["model"]
    whole.close()
    first = open_run("line", schedule="cosine")
    got = [dict(first.advance().metrics) for _ in range(stopped_after)]
    state = first.state_dict()
    first.close()
    torch.manual_seed(0)
    second = open_run("line", schedule="cosine")
    second.load_state_dict(state)
    assert (second.epoch, second.step) == (stopped_after, 8 * stopped_after)
    assert got + all_metrics(second) == expected
    for name, tensor in second.state_dict()["model"].items():
        assert torch.equal(tensor, weights[name])
    second.close()


def test_what_an_evaluation_tells() -> None:
    run = open_run("line", schedule="cosine")
    assert run.step_status == "own code"
    evaluation = run.advance()
    assert (evaluation.epoch, evaluation.step) == (1, 8)
    assert evaluation.lr == pytest.approx(0.05 * 0.5 * (1 + math.cos(math.pi * 8 / 32)))
    assert evaluation.cost.train_s > 0
    assert evaluation.cost.gpu_s == 0
    environment = run.environment()
    assert environment["run"] == "tests.tasks.own.functions:line"
    assert len(environment["run_sha256"]) == 64
    run.close()


def test_the_same_seed_gives_the_same_run_and_another_does_not() -> None:
    values = []
    for seed in (1, 1, 2):
        run = PythonRun(config("line", epochs=1), optimizer="adamw", params={"lr": 0.05}, seed=seed, device="cpu")
        values.append(run.advance().metrics["val_loss"])
        run.close()
    assert values[0] == values[1] != values[2]


def test_a_function_that_calls_back_goes_on_from_what_it_saved() -> None:
    """It saves epochs 2 and 4, so that a run stopped after 3 goes on from 2, and repeats 3 exactly."""
    whole = open_run("reports")
    expected = all_metrics(whole)
    whole.close()
    first = open_run("reports")
    for _ in range(3):
        first.advance()
    state = first.state_dict()
    first.close()
    assert state["epoch"] == 2
    second = open_run("reports")
    second.load_state_dict(state)
    assert (second.epoch, second.step) == (2, 16)
    assert all_metrics(second) == expected[2:]
    assert second.test() == {"test_loss": 0.25}
    second.close()
    assert functions.told == []


def test_what_saves_nothing_begins_anew() -> None:
    run = open_run("forgets")
    run.advance()
    state = run.state_dict()
    run.close()
    assert state["epoch"] == 0
    again = open_run("forgets")
    again.load_state_dict(state)
    assert again.advance().metrics == {"val_loss": 1.0}
    assert again.step_status.startswith("own code, which has not called ctx.optimizer")
    again.close()


def test_a_run_that_is_ended_closes_its_generator() -> None:
    run = open_run("line")
    run.advance()
    run.close()
    run.close()
    assert functions.told == ["closed"]


def test_after_the_last_epoch_a_test_goes_on_to_the_functions_end() -> None:
    run = open_run("line", epochs=1)
    last = run.advance().metrics["val_loss"]
    assert run.done
    assert functions.told == []
    assert run.test() == {"test_loss": last}
    assert functions.told == ["tested", "closed"]
    run.close()


def test_a_function_may_end_before_its_epochs_do() -> None:
    run = open_run("ends_early")
    assert [run.advance().epoch for _ in range(2)] == [1, 2]
    with pytest.raises(EndedEarly):
        run.advance()
    assert run.done
    assert run.test() == {}


@pytest.mark.parametrize(
    ("name", "n_good", "reason"),
    [
        ("empty", 0, r"functions:empty ended without a report; it must yield an epoch's metrics, or call ctx\.report"),
        ("returns_metrics", 0, r"ended without a report; .* or call ctx\.report; it returned a dict, unread"),
        ("tells_a_long_integer", 0, r"ValueError: report: val_loss is a whole number beyond 1\.8e308"),
        ("raises", 1, r"RuntimeError: mat1 and mat2 shapes cannot be multiplied \(2x3 and 2x3\) \(functions\.py, line "
         r"\d+, in raises; functions\.py, line \d+, in bad_shapes\)"),
        ("returns_none_metrics", 0, "yielded a NoneType; it must yield an epoch's metrics as a dict"),
        ("tells_text", 0, r"TypeError: report: val_loss = low is a str, not a number .*py, line \d+, in tells"),
        ("tells_a_bad_name", 0, "the metric's name 'val loss' must be at most 100 letters"),
        ("tells_an_epoch_twice", 1, "epoch = 1 must come after 1, the last one"),
        ("tells_epoch_zero", 0, "epoch = 0 must come after 0, the last one; the first is 1"),
        ("raises_a_silent_error", 0, r"SilentError: \(its message cannot be read\) \(functions\.py, line"),
        ("asks_for_arguments", 0, "SystemExit: 2"),
        ("saves_a_module", 0, r"save: state\['model'\]\[0\] is a Linear; a state is made of tensors"),
    ],
)  # fmt: skip
def test_what_goes_wrong_in_the_code_is_told_with_its_lines(name: str, n_good: int, reason: str) -> None:
    run = open_run(name)
    for _ in range(n_good):
        run.advance()
    with pytest.raises(OwnCodeError, match=reason):
        run.advance()
    run.close()


def test_a_loss_that_is_not_finite_has_diverged() -> None:
    run = open_run("diverges")
    run.advance()
    with pytest.raises(Diverged, match="diverged at step 2: val_loss is nan"):
        run.advance()


def test_memory_that_runs_out_is_told_as_such() -> None:
    with pytest.raises(OutOfMemory, match="out of memory on cpu during training: CUDA"):
        open_run("runs_out_of_memory").advance()


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("absent", "has no 'absent'"),
        ("NOT_A_FUNCTION", "is a int; name a function"),
        ("Trainer", "is a type; name a function"),
        ("no_argument", r"must take one argument, the context: def no_argument\(ctx\)"),
        ("nn", "is a module; name a function"),
    ],
)
def test_a_study_is_checked_before_its_first_trial(name: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=f"^task.run: .*{reason}"):
        runs.check(config(name))


def test_another_functions_checkpoint_is_refused() -> None:
    run = open_run("forgets")
    state = run.state_dict()
    with pytest.raises(CheckpointError, match=r"its model is 'tests.tasks.own.functions:forgets'"):
        open_run("ends_early").load_state_dict(state)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"run": "os.system"}, "is not an import path"),
        ({"grad_clip": 1.0}, "grad_clip = 1.0 is for the engine's own loop"),
        ({"init_from": "a.pt"}, "init_from = a.pt is for the engine's own loop"),
        ({"model": "a\nb"}, "must be printable"),
        ({"settings": {"a": float("nan")}}, "finite"),
    ],
)
def test_what_a_configuration_refuses(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        PythonConfig.model_validate({"run": "a:b", **fields})


def test_a_configuration_is_named_after_its_function() -> None:
    made = PythonConfig.model_validate({"run": "a.b:train"})
    assert (made.model, made.imports()) == ("a.b:train", {"run": "a.b:train"})
    assert PythonConfig.model_validate(made.model_dump()) == made
    assert PythonConfig.model_validate({"run": "a.b:train", "model": "spirals"}).model == "spirals"
