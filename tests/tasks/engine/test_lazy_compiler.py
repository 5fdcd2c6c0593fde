"""A run imports torch's compiler only where something is compiled; then the compiler is what it always is."""

from __future__ import annotations

import multiprocessing
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from tests.tasks.noise import write_noise

TRAIN = """
import sys
from pathlib import Path
from tasks.registry import parse_config
from tasks.runs import check, open_run

config, data = parse_config({{"epochs": 1, **{task}}}), Path({data!r})
check(config, data_dir=data)
for optimizer in {optimizers}:
    run = open_run(config, optimizer=optimizer, params={{"lr": 0.01}}, seed=0, data_dir=data)
    run.advance()
    run.close()
told = sorted(
    {{name.partition(".")[0] for name in sys.modules}} & {{"sympy", "torch"}}
    | {{name for name in sys.modules if name.startswith(("torch._dynamo.", "torch._inductor"))}}
)
"""
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["torch"])


def run(code: str) -> Any:
    """What the code tells, in a process that has imported torch alone."""
    ours, theirs = PROCESSES.Pipe(duplex=False)
    process = PROCESSES.Process(target=_execute, args=(code, theirs))
    process.start()
    theirs.close()
    try:
        told = ours.recv()
    finally:
        process.join()
    return told


def _execute(code: str, to: Connection) -> None:
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(code, names)
    to.send(names["told"])


@pytest.mark.parametrize(
    "task",
    [
        {"name": "digits"},
        {"name": "synthetic"},
        {"name": "image_folder", "data_dir": "pets", "image_size": 32, "batch_size": 8, "model": "resnet20"},
    ],
    ids=lambda task: task["name"],
)
def test_a_check_and_training_import_no_compiler(task: Mapping[str, Any], tmp_path: Path) -> None:
    write_noise(tmp_path / "pets", {"red": (55, 0, 0), "blue": (0, 0, 55)}, n_train=16, n_test=4)
    optimizers = ["sgd", "sgdm", "adam", "adamw", "radam", "admetar", "ranger", "adabelief"]
    assert run(TRAIN.format(task=task, optimizers=optimizers, data=str(tmp_path))) == ["torch"]


USES = {
    "compile": "answer = torch.compile(lambda x: x + 1, backend='eager')(torch.ones(1)).item() == 2",
    "import of a part": "import torch._dynamo.config as part; answer = part.recompile_limit > 0",
    "name of a part": "from torch._dynamo.utils import counters; answer = isinstance(counters, dict)",
    "attribute": "answer = torch._dynamo.config.recompile_limit > 0",
    "import of a name": "from torch._dynamo import reset; reset(); answer = True",
    "compiler.disable": "answer = torch.compiler.disable(recursive=False)(lambda: True)()",
    "disable of a module": "answer = torch._dynamo.disable(torch.nn.Linear(2, 2))(torch.ones(2)).shape == (2,)",
}


def test_a_look_at_all_modules_imports_nothing() -> None:
    """As `inspect.getmodule` does, which torch and transformers call while they are imported themselves."""
    assert run(
        "import sys, tasks.engine.device\n"
        "stand_in = sys.modules['torch._dynamo']\n"
        "told = [hasattr(stand_in, '__file__'), sys.modules['torch._dynamo'] is stand_in]"
    ) == [False, True]


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_whatever_else_is_asked_imports_it(use: str) -> None:
    code = f"""
import sys, torch
import tasks.engine.device
torch.optim.SGD([torch.nn.Parameter(torch.ones(1))]).step()
assert type(sys.modules["torch._dynamo"]).__name__ == "_StandIn"
{use}
import torch._dynamo
whole = sys.modules["torch._dynamo"]
told = [answer, torch._dynamo is whole, bool(whole.__file__), hasattr(whole, "config")]
"""
    assert run(code) == [True, True, True, True]


def test_what_was_disabled_before_is_not_traced_after() -> None:
    """Optimizers keep what the stand-in gave them; a compiled function that calls one has a break there."""
    code = """
import torch
import tasks.engine.device

@torch._dynamo.disable
def step(x):
    torch._dynamo.graph_break()
    return x * 2

assert not torch._dynamo.is_compiling()
before = step(torch.ones(1)).item()
graphs = []

def count(graph, inputs):
    graphs.append(graph)
    return graph.forward

compiled = torch.compile(lambda x: step(x + 1) + 1, backend=count)
told = [before, compiled(torch.ones(1)).item(), len(graphs)]
"""
    assert run(code) == [2.0, 5.0, 2]


def test_a_compiler_that_is_there_is_left() -> None:
    assert run(
        "import sys, torch._dynamo as before, tasks.engine.device, torch\n"
        "told = sys.modules['torch._dynamo'] is before and torch._dynamo is before"
    )
