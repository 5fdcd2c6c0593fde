"""The statistics by which optimizers are compared: pure functions on plain sequences.

Knows no database, no Ray and no torch; the service feeds it what the store remembers.
"""

from search.analysis.bands import BestOfN, ReachedBy, best_of_n, best_so_far, expected_best_curve, reached_by
from search.analysis.curves import (
    BandPoint,
    Edge,
    GoodRange,
    TargetTimes,
    good_range,
    median_band,
    time_to_target,
)
from search.analysis.profiles import (
    Friedman,
    PerformanceProfile,
    Ties,
    friedman,
    mean_ranks,
    performance_profiles,
    rank,
)
from search.analysis.sequential import Decision, Plan, decide, replay
from search.analysis.significance import (
    TwoSampleResult,
    compare_two,
    holm,
    paired_wilcoxon,
    welch,
)
from search.analysis.summary import AnalysisError, Rate, Spread, divergence_rate, finite_or_none, spread, typical_std
from search.analysis.verdicts import Looks, PairVerdict, Rules, Sample, compare, detectable_difference
from search.states import Direction, SignificanceTest, Verdict

__all__ = [
    "AnalysisError",
    "BandPoint",
    "BestOfN",
    "Decision",
    "Direction",
    "Edge",
    "Friedman",
    "GoodRange",
    "Looks",
    "PairVerdict",
    "PerformanceProfile",
    "Plan",
    "Rate",
    "ReachedBy",
    "Rules",
    "Sample",
    "SignificanceTest",
    "Spread",
    "TargetTimes",
    "Ties",
    "TwoSampleResult",
    "Verdict",
    "best_of_n",
    "best_so_far",
    "compare",
    "compare_two",
    "decide",
    "detectable_difference",
    "divergence_rate",
    "expected_best_curve",
    "finite_or_none",
    "friedman",
    "good_range",
    "holm",
    "mean_ranks",
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
