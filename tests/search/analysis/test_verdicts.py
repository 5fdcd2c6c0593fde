"""Verdicts: better, equivalent, undecided; failures; pairs by seed; adaptive looks; by hand and by simulation."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from scipy import stats

from search.analysis import AnalysisError, Rules, Sample, compare, detectable_difference, moderated
from search.analysis.moderated import Group, contrasts
from search.analysis.sequential import Plan, decide
from search.analysis.verdicts import fisher_exact
from search.states import Direction, SignificanceTest, Verdict

MAXIMIZE = Rules(direction=Direction.MAXIMIZE)


def sample(*values: float, n_failed: int = 0) -> Sample:
    return Sample(values=dict(enumerate(values)), n_failed=n_failed)


def group(values: np.ndarray) -> Group:
    return Group(mean=float(values.mean()), variance=float(values.var(ddof=1)), n=(len(values),), df=len(values) - 1)


def test_two_groups_of_many_values_agree_with_students_t() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.normal(0, 1, 200), rng.normal(0.25, 1, 200)
    (found,) = contrasts([group(a), group(b)], [(0, 1)])
    reference = stats.ttest_ind(a, b)
    interval = reference.confidence_interval(0.95)
    assert found.p_value == pytest.approx(reference.pvalue, rel=0.1)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high), abs=0.02)


def test_a_groups_variance_is_moderated_by_the_others() -> None:
    """With eight groups of variance 1, one whose three values happen to be equal is not known to be exact."""
    others = [Group(mean=0.0, variance=1.0, n=(3,), df=2) for _ in range(8)]
    lucky = Group(mean=1.0, variance=1e-6, n=(3,), df=2)
    found = contrasts([*others, lucky], [(0, 8), (0, 1)])
    assert found[0].high - found[0].low > 0.6 * (found[1].high - found[1].low)


def test_an_unstable_optimizer_neither_hides_nor_spoils() -> None:
    quiet = [Group(mean=float(m), variance=1.0, n=(5,), df=4) for m in (0, 0, 0, 0, 0, 0, 0, 5)]
    wild = Group(mean=5.0, variance=400.0, n=(5,), df=4)
    with_it = contrasts([*quiet, wild], [*combinations(range(9), 2)])
    by_pair = {(c.a, c.b): c for c in with_it}
    assert by_pair[0, 7].decided  # the quiet ones are still told apart
    assert not by_pair[0, 8].decided  # five units are nothing at a standard deviation of 20
    alone = {(c.a, c.b): c for c in contrasts(quiet, [*combinations(range(8), 2)])}
    assert by_pair[0, 7].high - by_pair[0, 7].low < 1.25 * (alone[0, 7].high - alone[0, 7].low)


@pytest.mark.parametrize("std", [[1.0] * 9, [1.0] * 8 + [10.0], [1.0, 5.0], [1.0, 1.0]])
def test_the_family_error_is_about_five_percent(std: list[float]) -> None:
    rng = np.random.default_rng(3)
    pairs = [*combinations(range(len(std)), 2)]
    n_studies = 300
    wrong = sum(
        any(c.decided for c in contrasts([group(s * rng.standard_normal(3)) for s in std], pairs, n_draws=2000))
        for _ in range(n_studies)
    )
    assert wrong / n_studies < 0.05 + 3 * (0.05 * 0.95 / n_studies) ** 0.5


def test_better_in_both_directions_and_in_words() -> None:
    samples = {"sgdm": sample(0.90, 0.91, 0.92), "admetas": sample(0.95, 0.96, 0.97)}
    (pair,) = compare(samples, MAXIMIZE)
    assert (pair.verdict, pair.better) == (Verdict.BETTER, "admetas")
    assert pair.difference == pytest.approx(-0.05)
    assert pair.sentence.startswith("admetas is better than sgdm by 0.05 (95% interval 0.0")
    (turned,) = compare(samples, replace(MAXIMIZE, direction=Direction.MINIMIZE))
    assert turned.better == "sgdm"


def test_equivalent_within_a_margin() -> None:
    rng = np.random.default_rng(0)
    samples = {name: sample(*rng.normal(0.9, 0.001, 12)) for name in ("a", "b")}
    (pair,) = compare(samples, replace(MAXIMIZE, margin=0.005))
    assert pair.verdict is Verdict.EQUIVALENT
    assert "equivalent within 0.005" in pair.sentence
    (without,) = compare(samples, MAXIMIZE)
    assert without.verdict is Verdict.UNDECIDED


def test_undecided_tells_how_many_more_seeds() -> None:
    rng = np.random.default_rng(1)
    samples = {
        "a": sample(*(0.900 + 0.01 * z for z in (-1, 0, 1))),
        "b": sample(*(0.912 + 0.01 * z for z in (-1, 0, 1))),
    }
    (pair,) = compare(samples, MAXIMIZE)
    assert pair.verdict is Verdict.UNDECIDED
    assert pair.more is not None
    assert f"about {pair.more} more seeds each would decide it" in pair.sentence
    n, decided = 3 + pair.more, 0
    for _ in range(40):
        grown = {"a": sample(*rng.normal(0.900, 0.01, n)), "b": sample(*rng.normal(0.912, 0.01, n))}
        decided += compare(grown, MAXIMIZE)[0].verdict is Verdict.BETTER
    assert decided >= 20  # "about": with as many, at least half of such studies decide


def test_survivors_are_not_better() -> None:
    """Three of six diverged: the three that survived had the best values."""
    lucky, steady = sample(0.970, 0.971, 0.972, n_failed=3), sample(0.950, 0.951, 0.952, 0.953, 0.949, 0.948)
    (pair,) = compare({"lucky": lucky, "steady": steady}, MAXIMIZE)
    assert pair.verdict is Verdict.UNDECIDED
    assert pair.better is None
    assert "3 of 6 of lucky" in pair.sentence
    (worse,) = compare({"lucky": sample(0.93, 0.931, 0.932, n_failed=3), "steady": steady}, MAXIMIZE)
    assert worse.better == "steady"


def test_failing_more_often_is_worse() -> None:
    steady = sample(*(0.95 + 0.001 * i for i in range(10)))
    (pair,) = compare({"steady": steady, "wild": sample(0.96, n_failed=9)}, MAXIMIZE)
    assert pair.better == "steady"
    (nothing,) = compare({"steady": steady, "wild": Sample(values={}, n_failed=10)}, MAXIMIZE)
    assert (nothing.better, nothing.difference) == ("steady", None)


@pytest.mark.parametrize("counts", [(0, 6, 3, 6), (9, 10, 0, 10), (1, 3, 1, 3), (0, 3, 3, 3), (2, 7, 5, 6)])
def test_fisher_equals_twice_scipys_smaller_tail(counts: tuple[int, int, int, int]) -> None:
    a, n_a, b, n_b = counts
    table = [[a, n_a - a], [b, n_b - b]]
    smaller = min(stats.fisher_exact(table, alternative=side).pvalue for side in ("less", "greater"))
    assert fisher_exact(*counts) == pytest.approx(min(1.0, 2 * smaller))


def test_pairing_by_seed_finds_a_difference_that_the_seeds_hide() -> None:
    seeds = np.array([0.90, 0.93, 0.96, 0.91, 0.97])
    jitter = np.array([1, -1, 0, 1, -1]) * 1e-3
    samples = {"a": sample(*seeds), "b": sample(*(seeds + 0.01 + jitter)), "c": sample(*(seeds - jitter))}
    pairs = {(v.a, v.b): v for v in compare(samples, MAXIMIZE)}
    assert pairs["a", "b"].better == "b"
    assert pairs["a", "c"].better is None


def test_contrasts_against_one_optimizer() -> None:
    samples = {
        name: sample(value, value + 0.01, value - 0.01) for name, value in (("a", 0.9), ("b", 0.91), ("c", 0.92))
    }
    assert [(v.a, v.b) for v in compare(samples, replace(MAXIMIZE, against="b"))] == [("a", "b"), ("b", "c")]
    with pytest.raises(AnalysisError, match="'z', which has no results"):
        compare(samples, replace(MAXIMIZE, against="z"))


def test_welch_and_wilcoxon_stay() -> None:
    samples = {"a": sample(0.95, 0.96, 0.97), "b": sample(0.90, 0.91, 0.92)}
    (welch,) = compare(samples, replace(MAXIMIZE, test=SignificanceTest.WELCH))
    assert welch.p_adjusted == pytest.approx(stats.ttest_ind([0.95, 0.96, 0.97], [0.90, 0.91, 0.92]).pvalue)
    assert welch.better == "a"
    (wilcoxon,) = compare(samples, replace(MAXIMIZE, test=SignificanceTest.WILCOXON))
    assert (wilcoxon.p_adjusted, wilcoxon.better) == (0.25, None)
    assert "too small" not in wilcoxon.sentence


def test_no_spread_and_one_seed_are_said() -> None:
    (equal,) = compare({"a": sample(0.9, 0.9), "b": sample(0.8, 0.8)}, MAXIMIZE)
    assert equal.verdict is Verdict.UNDECIDED
    assert "spread is unknown" in equal.sentence
    (single,) = compare({"a": sample(0.9), "b": sample(0.8)}, MAXIMIZE)
    assert single.difference == pytest.approx(0.1)
    assert compare({"a": sample(0.9)}, MAXIMIZE) == []
    with pytest.raises(AnalysisError, match="alpha is 0"):
        compare({}, replace(MAXIMIZE, alpha=0))


def test_detectable_difference_is_found_four_times_in_five() -> None:
    difference = detectable_difference(MAXIMIZE, n_optimizers=2, n=5)
    rng = np.random.default_rng(2)
    found = sum(
        compare({"a": sample(*rng.normal(0, 1, 5)), "b": sample(*rng.normal(difference, 1, 5))}, MAXIMIZE)[0].better
        == "b"
        for _ in range(150)
    )
    assert 0.7 < found / 150 < 0.95


@pytest.mark.parametrize("against", [None, "o0"])
def test_detectable_difference_is_that_of_such_a_comparison(against: str | None) -> None:
    group = Group(mean=0.0, variance=4.0, n=(5,), df=4)
    pairs = [pair for pair in combinations(range(4), 2) if against is None or 0 in pair]
    expected = np.mean([contrast.detectable for contrast in contrasts([group] * 4, pairs)])
    rules = replace(MAXIMIZE, against=against)
    assert detectable_difference(rules, n_optimizers=4, n=5, std=2.0) == pytest.approx(expected, rel=0.02)
    with pytest.raises(AnalysisError, match="at least 2"):
        detectable_difference(rules, n_optimizers=4, n=1)


def test_looks_grow_to_the_last_and_spend_all_of_alpha() -> None:
    plan = Plan(3, 20)
    assert plan.looks == (3, 4, 5, 6, 8, 10, 13, 17, 20)
    assert sum(plan.until(len(plan.looks) - 1).spent) == pytest.approx(0.05)
    assert Plan(3, 3).looks == (3,)
    with pytest.raises(AnalysisError, match="first look is at 5 seeds and the last at 3"):
        Plan(5, 3)


def test_adaptive_confirmation_drops_what_is_behind_and_ends_when_decided() -> None:
    rng = np.random.default_rng(4)
    plan = Plan(3, 20)
    far = {"a": sample(*rng.normal(1.0, 0.01, 3)), "b": sample(*rng.normal(0.5, 0.01, 3))}
    near = {**far, "c": sample(*rng.normal(1.0, 0.01, 3))}
    decided = decide(far, MAXIMIZE, plan)
    assert (decided.open, decided.settled) == ((), ("b",))
    still = decide(near, MAXIMIZE, plan)
    assert set(still.open) == {"a", "c"}
    assert still.n_next == 4
    full = decide({name: sample(*rng.normal(0, 1, 20)) for name in "ab"}, MAXIMIZE, plan)
    assert full.open == ()


@pytest.mark.slow
def test_looking_often_keeps_the_family_error() -> None:
    rng = np.random.default_rng(5)
    plan, wrong, n_studies = Plan(3, 12), 0, 120
    for _ in range(n_studies):
        values = {name: list(rng.standard_normal(12)) for name in "abc"}
        n, open_ = plan.looks[0], tuple("abc")
        taken = dict.fromkeys("abc", n)
        while True:
            found = decide({name: sample(*values[name][: taken[name]]) for name in "abc"}, MAXIMIZE, plan)
            open_ = found.open
            if not open_ or found.n_next is None:
                break
            taken.update(dict.fromkeys(open_, found.n_next))
        wrong += any(v.verdict is Verdict.BETTER for v in found.verdicts)
    assert wrong / n_studies < 0.05 + 3 * (0.05 * 0.95 / n_studies) ** 0.5


@pytest.mark.parametrize("looks", [(1.0,), (0.4, 0.6)])
def test_a_threshold_for_many_pairs_is_that_of_each(monkeypatch: pytest.MonkeyPatch, looks: tuple[float, ...]) -> None:
    """By the tails of each pair, and by the largest of all pairs; equal but for the chance of 20,000 draws."""
    rng = np.random.default_rng(2)
    n = (3, 5)[-len(looks) :]
    groups = [replace(group(std * rng.standard_normal(5)), n=n) for std in np.exp(rng.normal(0, 0.5, 14))]
    pairs, spent = [*combinations(range(14), 2)], [0.05 * share for share in looks]
    each = contrasts(groups, pairs, alpha=spent)
    monkeypatch.setattr(moderated, "MANY_PAIRS", 0)
    moderated._contrasts.cache_clear()
    together = contrasts(groups, pairs, alpha=spent)
    ratio = [(b.high - b.low) / (a.high - a.low) for a, b in zip(each, together, strict=True)]
    assert np.median(ratio) == pytest.approx(1, abs=0.03)
    assert np.quantile(ratio, [0.05, 0.95]) == pytest.approx([1, 1], abs=0.15)
    p_values = np.array([(a.p_adjusted, b.p_adjusted) for a, b in zip(each, together, strict=True)])
    assert p_values[:, 1] == pytest.approx(p_values[:, 0], abs=0.1)
    assert [c.p_value for c in together] == pytest.approx([c.p_value for c in each], abs=0.02)
    moderated._contrasts.cache_clear()


def test_many_optimizers_keep_the_family_error() -> None:
    """Forty that are equal, as often as the threshold allows of fresh errors."""
    rng = np.random.default_rng(0)
    groups = [Group(mean=0.0, variance=1.0, n=(3,), df=2)] * 40
    pairs = [*combinations(range(40), 2)]
    a, b = np.array(pairs).T
    limits = np.array([c.high for c in contrasts(groups, pairs)])
    std = np.sqrt(moderated._draw_variances(groups, (), 4000, rng))
    errors = rng.standard_normal(std.shape) * std / np.sqrt(3)
    wrong = (np.abs(errors[a] - errors[b]) > limits[:, None]).any(axis=0).mean()
    assert wrong == pytest.approx(0.9 * 0.05, abs=3 * (0.045 * 0.955 / 4000) ** 0.5)


def test_a_hundred_optimizers_need_little_memory() -> None:
    """4,950 pairs of 20,000 draws: 0.8 GB an array, were they all held at once."""
    rng = np.random.default_rng(0)
    samples = {f"o{i}": sample(*rng.normal(0.9 + 0.02 * (i == 0), 0.001, 3)) for i in range(100)}
    tracemalloc.start()
    try:
        verdicts = compare(samples, MAXIMIZE)
        assert tracemalloc.get_traced_memory()[1] < 300e6
    finally:
        tracemalloc.stop()
    better = {v.better for v in verdicts if v.verdict is Verdict.BETTER}
    assert better == {"o0"}
