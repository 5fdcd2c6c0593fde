"""Optimizers across tasks: the choice of tasks, what failures count as, distances, and what is said."""

from __future__ import annotations

import math

import numpy as np
import pytest

from search.analysis.across import Outcome, Task, across, largest_comparison, sentence
from search.states import Direction


def task(**outcomes: Outcome) -> Task:
    return Task(direction=Direction.MAXIMIZE, outcomes=outcomes)


def test_the_largest_comparison_has_most_results_on_two_tasks_or_more() -> None:
    assert largest_comparison({"t": "abcdefghi", "u": "abx", "v": "aby"}) == (["a", "b"], ["t", "u", "v"])
    assert largest_comparison({"t": "abcd", "u": "abcd", "v": "ab"}) == (["a", "b", "c", "d"], ["t", "u"])
    assert largest_comparison({"t": "abc", "u": "xyz"})[1] == ["u"]
    assert largest_comparison({"t": "a", "u": "b"}) == ([], [])
    assert largest_comparison({}) == ([], [])


def test_the_largest_comparison_of_many_different_sets_is_found_in_time() -> None:
    rng = np.random.default_rng(0)
    found = {f"t{i}": {f"o{j}" for j in range(40) if rng.random() < 0.5} | {"a", "b"} for i in range(300)}
    optimizers, tasks = largest_comparison(found)
    assert all(set(optimizers) <= found[name] for name in tasks)
    assert len(optimizers) * len(tasks) >= 600  # a and b are everywhere


def test_failures_come_last_by_their_share() -> None:
    one = task(
        good=Outcome(values=(0.5, 0.5)),
        lucky=Outcome(values=(0.9, 0.9), n_failed=1),
        worse=Outcome(values=(0.9,), n_failed=2),
        gone=Outcome(values=(), n_failed=3),
    )
    assert one.positions() == {"good": 0, "lucky": 1, "worse": 2, "gone": None}
    assert one.distances(0.1) == {"good": 0, "lucky": math.inf, "worse": math.inf, "gone": math.inf}
    assert across({"t": one, "u": one}).test.mean_ranks == {"good": 1, "lucky": 2, "worse": 3, "gone": 4}


def test_a_distance_is_in_standard_deviations_of_a_run() -> None:
    # Variances 0.02 of two runs; the median of chi-square with 1 degree of freedom is 0.4549.
    one = task(a=Outcome(values=(0.8, 1.0)), b=Outcome(values=(0.6, 0.8)))
    std = math.sqrt(0.02 / 0.454936)
    assert one.std() == pytest.approx(std, rel=1e-5)
    assert across({"t": one}).by_value["b"].ratios["t"] == pytest.approx(0.2 / std, rel=1e-5)
    assert across({"t": one}).by_value["b"].area == pytest.approx(1 - 0.2 / std / 4, rel=1e-5)


@pytest.mark.parametrize("n_seeds", [2, 3, 10])
def test_the_standard_deviation_is_right_and_one_unstable_optimizer_does_not_spoil_it(n_seeds: int) -> None:
    rng = np.random.default_rng(1)
    found = []
    for _ in range(400):
        outcomes = {f"o{i}": Outcome(values=tuple(rng.normal(i, 20 if i == 0 else 2, n_seeds))) for i in range(9)}
        found.append(task(**outcomes).std() or 0.0)
    assert np.median(found) == pytest.approx(2, rel=0.15)


def test_loss_counts_downwards() -> None:
    one = Task(
        direction=Direction.MINIMIZE, outcomes={"a": Outcome(values=(3.2, 3.3)), "b": Outcome(values=(3.1, 3.2))}
    )
    assert one.positions() == {"a": 1, "b": 0}
    assert one.distances(0.1) == pytest.approx({"a": 1.0, "b": 0.0})


def test_a_task_is_void_where_all_are_the_same() -> None:
    assert task(a=Outcome(values=(), n_failed=3), b=Outcome(values=(), n_failed=2)).is_void
    assert task(a=Outcome(values=(0.5, 0.5)), b=Outcome(values=(0.5,))).is_void
    assert not task(a=Outcome(values=(0.5,)), b=Outcome(values=(), n_failed=1)).is_void


def test_only_tasks_with_a_target_that_was_reached_are_in_the_profile_by_time() -> None:
    def timed(a: float | None, b: float | None) -> Task:
        return task(a=Outcome(values=(0.5,), time=a), b=Outcome(values=(0.6,), time=b))

    found = across({
        "fast": timed(10, 20), "missed": timed(math.inf, 5), "never": timed(math.inf, math.inf),
        "none": timed(None, None), "zero": timed(0, 1),
    })  # fmt: skip
    assert found.by_time["a"].ratios == {"fast": 1, "missed": math.inf}
    assert found.by_time["b"].area == pytest.approx((2 / 3 + 1) / 2)
    assert {key: reason.split(":")[0] for key, reason in found.without_time.items()} == {
        "never": "no optimizer reached the target",
        "none": "it has no target",
        "zero": "a run reached the target in no time",
    }
    assert set(found.without_value) == {"fast", "missed", "never", "none", "zero"}  # single runs
    assert found.by_value == {}


def test_what_is_said() -> None:
    a, b, c = (Outcome(values=(value,)) for value in (0.9, 0.8, 0.7))
    few = across({f"t{i}": task(a=a, b=b) for i in range(5)})
    assert sentence(few.test, few.groups).endswith("With 2 optimizers no order can be shown by fewer than 6 tasks.")
    assert few.groups == [["a", "b"]]
    many = across({f"t{i}": task(a=a, b=b, c=c) for i in range(8)})
    assert many.groups == [["a", "b"], ["b", "c"]]
    told = sentence(many.test, many.groups)
    assert "a is shown to rank better than c; mean ranks" in told
    assert "Nemenyi" not in told, "the difference may be that of the permutations"
    one = across({"t": task(a=a, b=b)})
    assert sentence(one.test, one.groups).startswith("Ranks are tested over two tasks")
    assert "nothing to compare" in sentence(across({}).test, [])
