"""Over all studies: the best settings, what to use next, optimizers compared across tasks, the paper's tables."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, computed_field

from admeta.client.models.base import Finite, TrainedView, View
from admeta.client.models.comparison import ObjectiveView, ParetoTrialView, SpreadView


class RecipeView(View):
    """A recipe: what results have to have in common to be compared."""

    recipe: str = Field(description="Its hash.")
    model: str | None
    epochs: int | None = Field(description="Epochs of a full training.")
    study: str = Field(description="The last study of this recipe with a result.")


class BestView(TrainedView):
    """The best settings known for a task and optimizer over all studies of one recipe."""

    task: str
    model: str | None
    epochs: int | None = Field(default=None, description="Epochs of a full training.")
    recipe: str | None = Field(
        default=None,
        description="Hash of what makes results comparable: the task's configuration, its data and the objective. "
        "Results of other recipes are not compared with this one.",
    )
    other_recipes: list[RecipeView] = Field(
        default=[], description="Further recipes with results of this task and optimizer; ask for one with ?recipe=."
    )
    optimizer: str
    metric: str
    direction: str
    settings: dict[str, Any] = Field(description="Constructs the optimizer: cls(parameters, **settings).")
    task_config: dict[str, Any] = Field(
        default={},
        description="The whole recipe: the study's `task` with what the trial sets of it, as another study takes it.",
    )
    weight_decay_on: Literal["all", "matrices"] = Field(
        default="all", description="The recipe's: matrices takes the decay off biases and norms, as `code` does."
    )
    search_value: float | None
    validation: SpreadView
    test: SpreadView
    test_metric: str | None
    study: str
    label: str
    trial: int
    evidence: str = Field(description="'confirmed' over its seeds, '2 of 3 confirm runs failed', or 'single run'.")
    init_from: str | None = Field(
        default=None,
        description="What training started from, STUDY/LABEL/TRIAL or a file; null: fresh weights, which come first.",
    )
    objectives: list[ObjectiveView] = Field(
        default=[], description="Of its study, where it was searched for several; the values of `front` are of these."
    )
    front: list[ParetoTrialView] = Field(
        default=[], description="The other choices: the optimizer's Pareto front in that study, best metric first."
    )

    @property
    def params(self) -> dict[str, Any]:
        """The settings as a plain dict: `AdmetaR(model.parameters(), **best.params)`."""
        return dict(self.settings)

    @computed_field(description="Python that constructs the optimizer over `model`.")  # type: ignore[prop-decorator]
    @property
    def code(self) -> str:
        """Python that constructs the optimizer over `model`."""
        from admeta.registry import construction  # most commands do without the registry

        return construction(
            self.optimizer,
            self.settings,
            weight_decay_on=self.weight_decay_on,
            parametrization=self.task_config.get("parametrization", "standard"),
        )


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


class PaperTableView(View):
    """One of the paper's result tables."""

    name: str
    number: int = Field(description="In the paper.")
    caption: str
    n_cells: int = Field(description="Numbers that the paper prints in it.")
    n_ours: int = Field(description="Those for which there is a number of ours.")
    studies: list[str] = Field(description="Names of the studies that fill it, from GET /v1/paper/studies.")


class PaperNumberView(View):
    """A number that the paper prints."""

    text: str = Field(description="As printed: in percent, or a duration.")
    value: float = Field(description="Accuracies and the like as fractions; times in seconds.")
    std: float | None = Field(description="In the unit of value; the paper does not say over how many runs.")
    task: str
    model: str = Field(description="The paper's name of it.")
    optimizer: str
    metric: str = Field(description="Without the split's name before it.")
    split: str = Field(description="test or dev.")
    variant: str | None = Field(description="An ablation, or another departure from the optimizer's main result.")


class OurNumberView(View):
    """Our number for the same: over the confirm runs of the best trial, on the test set."""

    text: str = Field(description="In the paper's unit, with n.")
    mean: float
    std: float | None
    n: int
    model: str
    study: str
    label: str
    trial: int


class PaperCellView(View):
    """A cell of the paper's table."""

    paper: PaperNumberView | None = Field(description="Null where it prints none.")
    ours: OurNumberView | None = Field(description="Null where nothing was measured here.")
    difference: float | None = Field(description="Ours minus the paper's, in the unit of both.")


class PaperTableCellsView(PaperTableView):
    """One of the paper's result tables with its cells, in the paper's rows and columns."""

    columns: list[list[str]] = Field(description="The heading of each, one string a level.")
    rows: list[list[str]]
    cells: list[list[PaperCellView]]
    notes: list[str]


class PaperStudyView(View):
    """A study that measures what a table of the paper reports."""

    name: str
    study: str = Field(description="The name that it is submitted under.")
    table: str = Field(description="A name from GET /v1/paper/tables.")
    task: str
    model: str
    optimizers: list[str] = Field(description="Labels of its searches.")
    n_runs: int = Field(description="Trainings, search and confirm stages together.")
    after: str | None = Field(description="The study that must complete first, because this one starts from its trial.")
    notes: str = Field(description="Differences from the paper, and other remarks.")
    definition: dict[str, Any] | None = Field(
        default=None, description="What POST /v1/studies takes; null in the list of all."
    )
