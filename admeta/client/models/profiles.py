"""Optimizers compared across tasks."""

from __future__ import annotations

from pydantic import Field

from admeta.client.models.base import Finite, View


class ProfileView(View):
    """A performance profile: on what share of the tasks, rho, an optimizer is within tau of the best one."""

    tau: list[float]
    rho: list[float] = Field(description="rho[i] holds from tau[i] up to tau[i + 1].")
    area: float = Field(description="Mean of rho over tau, between 0 and 1.")


class ProfileOptimizerView(View):
    """One optimizer of a comparison across tasks."""

    name: str = Field(description="The optimizer; with its label, ablation or preset where that is not the default.")
    mean_rank: float | None = Field(
        description="1 is the best; equal ones share their mean rank, failed ones the last. Null without a ranked task."
    )
    by_time: ProfileView | None = Field(
        description="tau: its time to the target over the fastest one's, from 1 to 4; the area is AlgoPerf's score. "
        "Null where no task has a target that was reached."
    )
    by_value: ProfileView | None = Field(
        description="tau: how far its mean is behind the best one's, in standard deviations of a run between seeds, "
        "from 0 to 4. Null where no task has runs with two seeds."
    )


class ProfileTaskView(View):
    """A task of the comparison: one recipe, or a workload of outside curves."""

    task: str
    model: str | None = None
    epochs: int | None = None
    data: str | None = Field(default=None, description="The data folder that the recipe names.")
    init_from: str | None = Field(default=None, description="What training starts from; null: fresh weights.")
    recipe: str | None = None
    metric: str | None = None
    direction: str
    studies: list[str] = Field(default=[], description="Names of the studies that its results are from.")
    target: float | None = Field(description="Validation value of the time to target; null where nobody states one.")
    std: float | None = Field(default=None, description="Standard deviation of a run between seeds.")
    without_time: str | None = Field(default=None, description="Why the task is not in the profile by time.")
    without_value: str | None = Field(default=None, description="Why the task is not in the profile by value.")
    note: str | None = None


class ProfileResultView(View):
    """What one optimizer reached on one task."""

    task: str
    model: str | None = None
    recipe: str | None = None
    optimizer: str
    rank: float
    mean: float | None = Field(default=None, description="Validation, over the runs that did not fail.")
    std: float | None = None
    n: int = Field(description="Runs that did not fail; of outside curves the number of studies.")
    n_failed: int = 0
    n_searches: int = 1
    n_trials: int | None = Field(
        default=None, description="Trials of these searches; null where budgets count their cost."
    )
    time: Finite = Field(description="Median time to the target; null where half of the runs missed it.")
    n_reached: int | None = None
    ratio: Finite = Field(description="That time over the fastest optimizer's; null for a miss.")
    distance: Finite = Field(
        default=None, description="Standard deviations behind the best mean; null with a failed run."
    )


class LeftOutView(View):
    """What is not in the comparison, and why."""

    kind: str = Field(description="study, recipe, task or optimizer.")
    name: str
    reason: str


class RankTestView(View):
    """Friedman's test of equal ranks over the tasks, by permutation, with the critical difference of mean ranks."""

    n_tasks: int
    statistic: float | None = Field(description="Friedman's chi-square, corrected for ties.")
    p_value: float | None = Field(description="By 20,000 permutations of the ranks within tasks.")
    critical_difference: float | None = Field(
        description="Mean ranks that differ by more are shown to be different at 5 %: Nemenyi's, or that of the "
        "permutations where it is larger."
    )
    groups: list[list[str]] = Field(
        description="Optimizers that are not shown to be different, best first: all where Friedman's p is above 0.05."
    )


class ProfilesView(View):
    """Optimizers compared across tasks, best mean rank first. Validation decides; results only meet within a recipe."""

    group: str | None = Field(default=None, description="Of outside curves: version and rules.")
    sentence: str = Field(description="What is shown, in words.")
    time: str = Field(description="Unit of time: seconds (of training, without evaluation) or steps.")
    optimizers: list[ProfileOptimizerView]
    tasks: list[ProfileTaskView]
    results: list[ProfileResultView]
    ranks: RankTestView
    left_out: list[LeftOutView] = Field(default=[], description="Studies, recipes and optimizers, with the reason.")
