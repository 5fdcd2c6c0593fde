"""The statistics by which optimizers are compared: pure functions on plain sequences.

Knows no database, no Ray and no torch; the service feeds it what the store remembers.
"""

from search.analysis.best import Draws, best_so_far, expected_best_curve
from search.analysis.checks import AnalysisError, finite_or_none
from search.analysis.curves import BandPoint, Ended, median_band
from search.analysis.profiles import PerformanceProfile, Ties, mean_ranks, performance_profiles, rank
from search.analysis.significance import (
    PairComparison,
    TwoSampleResult,
    compare_all,
    holm,
    paired_wilcoxon,
    welch,
)
from search.analysis.summary import Rate, Spread, divergence_rate, spread
from search.analysis.targets import TargetTimes, time_to_target
from search.states import Direction, SignificanceTest

__all__ = [
    "AnalysisError",
    "BandPoint",
    "Direction",
    "Draws",
    "Ended",
    "PairComparison",
    "PerformanceProfile",
    "Rate",
    "SignificanceTest",
    "Spread",
    "TargetTimes",
    "Ties",
    "TwoSampleResult",
    "best_so_far",
    "compare_all",
    "divergence_rate",
    "expected_best_curve",
    "finite_or_none",
    "holm",
    "mean_ranks",
    "median_band",
    "paired_wilcoxon",
    "performance_profiles",
    "rank",
    "spread",
    "time_to_target",
    "welch",
]
