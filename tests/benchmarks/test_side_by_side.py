"""Real processes measured together."""

from __future__ import annotations

import pytest

from benchmarks.side_by_side import measure_together, total_samples_per_s
from tasks.errors import ConfigError, TaskError
from tasks.registry import parse_config


@pytest.mark.slow
def test_processes_are_measured_together() -> None:
    config = parse_config({"name": "digits"})
    two = measure_together(config, n_processes=2, optimizer="sgdm", params={"lr": 0.05}, device="cpu", seconds=0.2)
    assert len(two) == 2
    assert total_samples_per_s(two) == pytest.approx(sum(64 / one.step_s for one in two))
    assert all(one.memory_bytes == 0 and one.status == "eager: no GPU" for one in two)


def test_a_process_that_fails_says_why() -> None:
    config = parse_config({"name": "digits", "batch_size": 5000})
    with pytest.raises(TaskError, match="measured process failed: batch_size × accumulation is 5000") as caught:
        measure_together(config, n_processes=1, optimizer="sgdm", params={"lr": 0.05}, device="cpu", seconds=0.1)
    assert not isinstance(caught.value, ConfigError)
