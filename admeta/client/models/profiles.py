"""Over all studies: optimizers compared across tasks, and what to use next."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from admeta.client.models.base import Finite, View
from admeta.client.models.comparison import SpreadView


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


class RecommendRequest(BaseModel):
    """What a recommendation is asked for."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    task: Annotated[str, Field(max_length=100)] | dict[str, Any] = Field(
        description="A name from GET /v1/tasks, or an object as in a study's definition, which some tasks need.",
        examples=["cifar10"],
    )
    model: Annotated[str, Field(max_length=200)] | None = Field(default=None, description="Default: the task's own.")
    gpu_hours: Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)] = Field(
        default=0.0,
        description="Hours that could be spent before the settings are used. Where the records show no card, hours of "
        "one trial after the other.",
    )

    @property
    def task_fields(self) -> dict[str, Any]:
        """The task as in a study's definition."""
        task = {"name": self.task} if isinstance(self.task, str) else dict(self.task)
        return task if self.model is None else {**task, "model": self.model}


class CandidateView(View):
    """An optimizer that a recommendation was chosen from."""

    optimizer: str
    validation: SpreadView | None = Field(
        description="Of its best settings in the recipe; null where only studies of other tasks speak for it."
    )
    evidence: str = Field(description="As in `best`; how often it was the best, where other tasks speak for it.")
    probability: float | None = Field(
        description="That its settings have the best mean of all candidates, from the spread between seeds. Null where "
        "that is not known, and for settings with failed runs."
    )
    difference: float | None = Field(description="Its mean less that of the recommended one, in the metric's unit.")
    low: float | None = Field(description="Of an interval that holds for all candidates together (95 %).")
    high: float | None
    settings: dict[str, Any]
    study: str | None


class CostView(View):
    """What trainings of this task and model have cost."""

    epoch_s: float = Field(description="Seconds of an epoch; of a card where cards were used.")
    training_hours: float = Field(description="Hours of a full training.")
    trial_hours: float = Field(description="Hours of a trial of a search, many of which were stopped early.")
    in_gpu_hours: bool = Field(description="False: no card was used, and hours are those of a worker.")
    n_runs: int = Field(description="Runs that this is from.")


class RecommendationView(View):
    """Which optimizer, settings and recipe to use now, how sure that is, and what further hours are best spent on."""

    task: str
    model: str
    metric: str
    direction: str
    source: str = Field(
        description="recipe: results of this task, model and recipe; alike: studies of other recipes; paper: the "
        "settings that the paper prints; defaults: the registry's. With the last two nothing is known of which "
        "optimizer is better."
    )
    recipe: str | None = Field(description="Hash of the recipe; null where no study has it.")
    epochs: int | None
    optimizer: str
    settings: dict[str, Any] = Field(description="Constructs the optimizer: cls(parameters, **settings).")
    task_config: dict[str, Any] = Field(description="The recipe, as a study's `task`.")
    code: str = Field(description="Python that constructs the optimizer over `model`.")
    probability: float | None = Field(description="That it is the best of the candidates; null where not known.")
    how_sure: str = Field(description="In words, with the numbers behind it.")
    candidates: list[CandidateView]
    cost: CostView | None = Field(description="Null where no run of this task and model was recorded.")
    spend: str = Field(description="search, seeds or nothing: what the hours are best spent on.")
    why: str
    plan: dict[str, Any] | None = Field(
        description="A study's definition that spends the hours so, for POST /v1/studies; null for nothing."
    )
    plan_hours: float | None = Field(description="Hours that it takes at most, by the cost; null where not known.")
