"""How many runs a study may have at a time when it shares the cluster with others.

Higher priority goes first; studies of one priority share equally; what one of them leaves idle the others may use.
Pure arithmetic: the store says what the others need, Ray what there is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from search.records import CompetingStudy


@dataclass(frozen=True, kw_only=True)
class Capacity:
    """CPUs and GPUs: of a cluster, or held by a run."""

    cpus: float
    gpus: float

    def less(self, other: Capacity, *, times: float = 1.0) -> Capacity:
        return Capacity(cpus=self.cpus - times * other.cpus, gpus=self.gpus - times * other.gpus)

    def slots(self, each: Capacity) -> int:
        """Runs of that size that fit; 0 where none does."""
        slots = (self.cpus + 1e-6) / each.cpus
        if each.gpus > 0:
            slots = min(slots, (self.gpus + 1e-6) / each.gpus)
        return max(0, math.floor(slots))


def slots_for(each: Capacity, *, priority: int, cluster: Capacity, competitors: Sequence[CompetingStudy]) -> int:
    """Runs that a study of this priority may have now.

    Args:
        each: what one of its runs holds.
        cluster: all there is.
        competitors: the other studies at work, with the runs each has or wants now.

    Returns:
        At least its fair share: what the higher priorities leave, divided by the studies of its own. More where those
        do not use theirs. At least 1 where nobody is before it, as a cluster may still be growing.
    """
    left = cluster
    for competitor in competitors:
        if competitor.priority > priority:
            left = left.less(Capacity(cpus=competitor.cpus, gpus=competitor.gpus), times=competitor.n_runs)
    equals = [competitor for competitor in competitors if competitor.priority == priority]
    share = math.ceil(left.slots(each) / (1 + len(equals)))
    for competitor in equals:
        left = left.less(Capacity(cpus=competitor.cpus, gpus=competitor.gpus), times=competitor.n_runs)
    first = not any(competitor.priority > priority for competitor in competitors)
    return max(share, left.slots(each), 1 if first else 0)
