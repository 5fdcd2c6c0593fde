"""Packing: the rule on made-up measurements, and real processes measured together."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tasks.engine.packing import Measurement, choose_packing, measure_together, total_samples_per_s
from tasks.errors import ConfigError, OutOfMemory, TaskError
from tasks.registry import parse_config

GIB = 2**30


def seen(total: float, n: int, *, memory_bytes: int = GIB) -> Sequence[Measurement]:
    one = Measurement(step_s=0.01, samples_per_s=total / n, memory_bytes=memory_bytes, setup_s=1.0, status="graph")
    return [one] * n


def test_stops_where_the_total_no_longer_rises() -> None:
    totals = {1: 100.0, 2: 180.0, 4: 250.0, 8: 255.0}
    packing = choose_packing(lambda n: seen(totals[n], n), card_bytes=80 * GIB)
    assert packing.trials_per_gpu == 4
    assert packing.gpus == 0.25
    assert packing.totals == totals
    assert packing.reason == "8 trials at once make +2% of the total of 4"


def test_memory_is_asked_before_trying() -> None:
    tried = []

    def measure(n: int) -> Sequence[Measurement]:
        tried.append(n)
        return seen(100.0 * n, n, memory_bytes=15 * GIB)

    packing = choose_packing(measure, card_bytes=80 * GIB)
    assert tried == [1, 2, 4]
    assert packing.trials_per_gpu == 4
    assert packing.reason == "8 trials of 15.0 GiB do not fit in 80.0 GiB"


def test_no_more_are_tried_than_could_ever_run() -> None:
    packing = choose_packing(lambda n: seen(100.0 * n, n), card_bytes=80 * GIB, at_most=5)
    assert list(packing.totals) == [1, 2, 4]
    assert packing.reason == "more than 4 were not tried"
    assert choose_packing(lambda n: seen(100.0, n), card_bytes=80 * GIB, at_most=0).trials_per_gpu == 1


def test_running_out_of_memory_is_a_measurement_too() -> None:
    def measure(n: int) -> Sequence[Measurement]:
        if n > 1:
            raise OutOfMemory(phase="training", device="cuda:0", detail="no room")
        return seen(100.0, n)

    assert choose_packing(measure, card_bytes=80 * GIB).trials_per_gpu == 1
    with pytest.raises(OutOfMemory):
        choose_packing(lambda n: measure(2), card_bytes=80 * GIB)


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
