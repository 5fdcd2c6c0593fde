"""The statistics by which optimizers are compared: pure functions on plain sequences.

Knows no database, no Ray and no torch; the service feeds it what the store remembers.
"""

from search.analysis.bands import BestOfN, best_of_n, best_so_far, expected_best_curve, reached_by
from search.analysis.curves import GoodRange, TargetTimes, good_range, median_band, time_to_target
from search.analysis.profiles import Ties, friedman, performance_profiles, rank
from search.analysis.sequential import Decision, Plan, decide, replay
from search.analysis.significance import holm, paired_wilcoxon, welch
from search.analysis.summary import AnalysisError, divergence_rate, spread, typical_std
from search.analysis.verdicts import PairVerdict, Rules, Sample, compare, detectable_difference

__all__ = [
    "AnalysisError",
    "BestOfN",
    "Decision",
    "GoodRange",
    "PairVerdict",
    "Plan",
    "Rules",
    "Sample",
    "TargetTimes",
    "Ties",
    "best_of_n",
    "best_so_far",
    "compare",
    "decide",
    "detectable_difference",
    "divergence_rate",
    "expected_best_curve",
    "friedman",
    "good_range",
    "holm",
    "median_band",
    "paired_wilcoxon",
    "performance_profiles",
    "rank",
    "reached_by",
    "replay",
    "spread",
    "time_to_target",
    "typical_std",
    "welch",
]
