"""Which models are stacked, by which kernels, and what is compiled of them."""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import nn

from tasks.engine.cohort import Cohort
from tasks.errors import CannotStackError
from tasks.registry import parse_config
from tasks.text.task import compiled_width
from tasks.text.tokens import BUCKET, bucket_widths
from tests.tasks.engine.models import Reading, import_path
from tests.tasks.engine.slots import JOBS, alone, assert_equal, config, join, train, write_reviews

log = logging.getLogger(__name__)


class Noting(nn.Module):
    """A model that notes which attention kernels its stacked passes may take."""

    may_take: ClassVar[set[tuple[bool, bool]]] = set()

    def __init__(self, n_classes: int) -> None:
        super().__init__()
        self.linear = nn.Linear(64, n_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if torch._C._functorch.is_batchedtensor(x):
            memory_efficient, cudnn = (
                torch.backends.cuda.mem_efficient_sdp_enabled(),  # type: ignore[no-untyped-call]
                torch.backends.cuda.cudnn_sdp_enabled(),  # type: ignore[no-untyped-call]
            )
            self.may_take.add((memory_efficient, cudnn))
        out: torch.Tensor = self.linear(x.flatten(1))
        return out


def test_a_stack_takes_no_attention_kernel_that_vmap_breaks(cohort_of: Callable[..., Cohort]) -> None:
    """On a card the memory-efficient kernel has no backward pass under vmap, and cuDNN's asks for another layout."""
    cfg = config(model=f"{__name__}:Noting")
    join(cohort_of(cfg, n_slots=2), cfg, JOBS[0]).advance()
    assert Noting.may_take == {(False, False)}
    assert torch.backends.cuda.mem_efficient_sdp_enabled()  # type: ignore[no-untyped-call]


def test_what_cannot_be_stacked_says_why(cohort_of: Callable[..., Cohort]) -> None:
    cfg = config(model=import_path(Reading))
    with pytest.raises(CannotStackError, match=r"the model cannot be stacked .*data-dependent control flow"):
        join(cohort_of(cfg, n_slots=2), cfg, JOBS[0])
    with pytest.raises(CannotStackError, match="accumulation is 2"):
        cohort_of(config(accumulation=2), n_slots=2)
    with pytest.raises(CannotStackError, match="deterministic"):
        cohort_of(config(deterministic=True), n_slots=2)
    with pytest.raises(CannotStackError, match="not trained by the engine"):
        cohort_of(parse_config({"name": "synthetic"}), n_slots=2)
    cohort = cohort_of(config(), n_slots=2)
    with pytest.raises(CannotStackError, match="differs from the cohort's in batch_size"):
        join(cohort, config(batch_size=32), JOBS[0])
    join(cohort, config(), JOBS[0]).advance()  # a refusal leaves the slot free


def test_texts_of_different_widths_are_padded_to_one(
    no_noise: None, cohort_of: Callable[..., Cohort], tmp_path: Path
) -> None:
    write_reviews(tmp_path, n_train=160)
    cfg = parse_config({"name": "text_classification", "model": "tiny", "batch_size": 8, "epochs": 1})
    cohort = cohort_of(cfg, n_slots=2, data_dir=tmp_path)
    jobs = (JOBS[1], JOBS[3])
    members = [join(cohort, cfg, job) for job in jobs]
    widths = [
        [batch["input_ids"].shape[-1] for batch in member._task.train_batches(seed=seed, epoch=0)]
        for member, (_, _, seed) in zip(members, jobs, strict=True)
    ]
    assert widths[0] != widths[1]
    for ours, job in zip(train(cohort, *members), jobs, strict=True):
        assert_equal(ours, alone(cfg, job, data_dir=tmp_path).advance(), rel=1e-3)


@pytest.mark.parametrize(("most", "expected"), [(128, 16), (64, 8), (100, 16), (384, 48), (512, 64), (8, 8)])
def test_texts_that_are_compiled_have_eight_widths_at_most(most: int, expected: int) -> None:
    """dynamo compiles no more shapes; and no width is more than the one that the longest row is padded to anyway."""
    longest = int(bucket_widths(np.asarray([most]))[0])
    found = {width: compiled_width(width, most=most) for width in range(BUCKET, longest + 1, BUCKET)}
    assert len(set(found.values())) <= torch._dynamo.config.recompile_limit
    assert max(found.values()) == longest
    assert all(0 <= wide - width < expected for width, wide in found.items())
    assert all(wide % expected == 0 for wide in found.values() if wide < longest)


def test_the_texts_of_a_compiled_cohort_are_padded_further(
    no_noise: None, cohort_of: Callable[..., Cohort], tmp_path: Path
) -> None:
    """To multiples of 16 of 128 tokens, which changes no result."""
    write_reviews(tmp_path, n_train=80)
    fields = {"name": "text_classification", "model": "tiny", "batch_size": 8, "epochs": 1}
    cfg = parse_config({**fields, "acceleration": "compile"})
    cohort = cohort_of(cfg, n_slots=2, data_dir=tmp_path)
    members = [join(cohort, cfg, job) for job in (JOBS[1], JOBS[3])]
    task = members[0]._task
    batches = [next(iter(task.train_batches(seed=seed, epoch=0))) for seed in range(6)]
    assert {task.align([batch])[0]["attention_mask"].shape[-1] % 16 for batch in batches} == {0}
    assert {batch["attention_mask"].shape[-1] % 16 for batch in batches} == {0, 8}
    for ours, job in zip(train(cohort, *members), (JOBS[1], JOBS[3]), strict=True):
        assert_equal(ours, alone(cfg, job, data_dir=tmp_path).advance(), rel=1e-3)


COMPILES = """
import json, sys, torch
from tasks.engine.cohort import Cohort
from tasks.engine.stacked_model import StackedTask
from tasks.registry import parse_config
from torch._dynamo.utils import counters  # it sets a folder for compiled code itself

device = sys.argv[1]
config = parse_config({"name": "digits", "model": "mlp", "epochs": 1, "acceleration": "compile"})
member = Cohort(config, n_slots=2, device=device).open(config, optimizer="sgdm", params={"lr": 0.1}, seed=0)
if device == "cuda":
    member.advance()
else:  # where a cohort does not compile
    [batch, *_] = member._task.train_batches(seed=0, epoch=0)
    model = member._stack._model
    rows = {name: torch.stack([tensor, tensor]) for name, tensor in batch.items()}
    StackedTask(member._task, model, compiled=True).loss(model, rows).sum().backward()
print(json.dumps(counters["inductor"]))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "device",
    [
        pytest.param("cpu", marks=pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")),
        pytest.param(
            "cuda",
            marks=[
                pytest.mark.gpu,
                pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA card"),
            ],
        ),
    ],
)
def test_the_next_process_does_not_compile_again(device: str, tmp_path: Path) -> None:
    """A cohort of the same shapes finds on its node what the first one compiled."""
    environment = {name: value for name, value in os.environ.items() if name != "TORCHINDUCTOR_CACHE_DIR"}
    environment["XDG_CACHE_HOME"] = str(tmp_path)
    counts, took_s = [], []
    for _ in range(2):
        begin = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-c", COMPILES, device], env=environment, capture_output=True, text=True, check=True
        )
        took_s.append(time.perf_counter() - begin)
        counts.append(json.loads(done.stdout.splitlines()[-1]))
    first, second = counts
    assert first["fxgraph_cache_miss"] > 0
    assert second["fxgraph_cache_hit"] == first["fxgraph_cache_miss"]
    assert "fxgraph_cache_miss" not in second
    assert any((tmp_path / "admeta-search" / "inductor").iterdir())
    log.warning("%s: the first process took %.1f s, the second %.1f s", device, *took_s)
