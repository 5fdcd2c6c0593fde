"""How full the workers were: the whole study's figure, and the one from when all of them run."""

from __future__ import annotations

import pytest

from benchmarks.scaling import Driven, Stint, busy_table, steady


def _stints(worker: int, *, first_s: float, n: int, each_s: float = 10.0, gap_s: float = 0.0) -> list[Stint]:
    """A worker's trials, each trained for all its time but the gap, which its record includes."""
    return [
        Stint(
            worker=("node", worker),
            begin_s=first_s + i * (each_s + gap_s),
            end_s=first_s + (i + 1) * (each_s + gap_s),
            train_s=each_s,
        )
        for i in range(n)
    ]


def test_all_workers_run_from_the_last_ones_first_trial_to_the_end_of_the_first_ones_last() -> None:
    begin_s, end_s, train_s = steady([*_stints(1, first_s=0, n=4), *_stints(2, first_s=15, n=3)])
    assert (begin_s, end_s) == (15, 40)
    assert train_s == pytest.approx(2 * 25)  # the first worker's trial from 10 to 20 counts from 15 on


def test_what_a_worker_waits_is_missing() -> None:
    stints = [*_stints(1, first_s=0, n=10, gap_s=2.5), *_stints(2, first_s=5, n=10, gap_s=2.5)]
    begin_s, end_s, train_s = steady(stints)
    assert train_s / (2 * (end_s - begin_s)) == pytest.approx(0.8)


def test_a_worker_that_was_done_before_the_last_one_began_leaves_no_time_in_which_all_ran() -> None:
    begin_s, end_s, train_s = steady([*_stints(1, first_s=0, n=1), *_stints(2, first_s=20, n=1)])
    assert end_s < begin_s
    assert train_s == 0


def _driven(*, n_workers: int, steady_s: float) -> Driven:
    return Driven(
        wall_s=200.0,
        span_s=125.0,
        train_s=200.0,
        driver_cpu_s=2.0,
        n_trials=20,
        n_workers=n_workers,
        start_s=5.0,
        steady_s=steady_s,
        steady_train_s=160.0,
    )


def test_the_table_tells_all_three_figures() -> None:
    row = busy_table({"SQLite": _driven(n_workers=2, steady_s=100.0)}, n_workers=2).splitlines()[-1]
    assert row == "| SQLite | 200.0 | 50.0% | 125.0 | 80.0% | 5.0 | 100.0 | 80.0% | 90% | 2.500 | 2.0 | 100.0 |"


@pytest.mark.parametrize(("n_workers", "steady_s"), [(1, 100.0), (2, 0.0)])
def test_the_table_tells_that_the_workers_never_all_ran(n_workers: int, steady_s: float) -> None:
    row = busy_table({"SQLite": _driven(n_workers=n_workers, steady_s=steady_s)}, n_workers=2).splitlines()[-1]
    assert f"| 80.0% | never, {n_workers} did |  |  | 90% |" in row
