"""The statistics by which optimizers are compared: pure functions on plain sequences.

Knows no database, no Ray and no torch; the service feeds it what the store remembers.
"""

from search.analysis.best import Draws, best_so_far, expected_best_curve
from search.analysis.checks import AnalysisError, Direction

__all__ = [
    "AnalysisError",
    "Direction",
    "Draws",
    "best_so_far",
    "expected_best_curve",
]
