"""What the results of a study say: its comparison with others too, sensitivities, fronts, importances, sizes."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from admeta.client.models.base import TrainedView, View
from admeta.client.states import SignificanceTest, Verdict


class SpreadView(View):
    """Mean and sample standard deviation over seeds; std is null for n < 2."""

    mean: float | None
    std: float | None
    n: int
    n_failed: int


class RateView(View):
    """A share of runs with its 95 % interval (Wilson); null for n = 0."""

    count: int
    n: int
    rate: float | None
    low: float | None
    high: float | None


class ReachedView(View):
    """Share of runs that have met the target by each time, with a band that holds at all times together (95 %)."""

    times: list[float] = Field(description="Seconds of training at which a run met it, increasing.")
    share: list[float] = Field(description="From times[i] on, until the next.")
    low: list[float]
    high: list[float]
    before: float = Field(description="Upper bound before the first time.")


class TargetView(View):
    """When each of an optimizer's best runs first met the target on validation; null where it never did."""

    target: float
    n: int = Field(description="Runs counted: the confirm runs of the best trial, or its search run.")
    n_reached: int
    epochs: list[float | None]
    steps: list[float | None]
    train_s: list[float | None] = Field(description="Seconds of training until then, evaluation not counted.")
    median_steps: float | None = Field(description="Null where at least half of the runs missed.")
    median_train_s: float | None
    reached: ReachedView


class PairView(View):
    """Two optimizers of a study compared on their confirm runs' validation values: a verdict and what it rests on."""

    a: str
    b: str
    test: SignificanceTest
    difference: float | None = Field(description="Mean of a minus mean of b.")
    low: float | None = Field(description="Interval of the difference, simultaneous for all pairs (moderated).")
    high: float | None
    p_value: float | None
    p_adjusted: float | None = Field(description="Adjusted for all pairs of the study.")
    verdict: Verdict
    better: str | None = Field(description="The label that is better; null for the other verdicts.")
    more: int | None = Field(description="More seeds of each that would decide the pair, if the means stay.")
    margin: float | None = Field(description="Difference below which the study calls optimizers equivalent.")
    confidence: float = Field(description="Of the interval.")
    note: str | None = Field(description="Further facts, such as failed runs.")
    sentence: str = Field(description="The verdict in words.")


class EdgeView(View):
    """A parameter whose best value lies at an end of its search space, where trials get better towards that end."""

    label: str = Field(description="Of the optimizer in the definition.")
    parameter: str
    value: float = Field(description="Of the best trial.")
    end: str = Field(description="low or high.")
    bound: float = Field(description="The space's present end.")
    wider: float = Field(description="The same end of the wider space.")
    change: str = Field(description="The wider space as a change of the definition, PATH=VALUE.")
    sentence: str = Field(description="The warning in words.")


class BestOfNView(View):
    """Best validation value of 1, 2, … trials drawn at random from a search's, with a simultaneous 95 % band."""

    median: list[float | None] = Field(description="Null where half of such draws hold diverged trials only.")
    low: list[float | None] = Field(description="Null where the trials set no bound.")
    high: list[float | None]


class ComparisonRow(TrainedView):
    """One search of an optimizer in the comparison of a study; the only one, unless the study repeats searches.

    In `optimizers` of the comparison, all of them.
    """

    label: str
    listed_as: str = Field(default="", description="Label of its optimizer in the definition.")
    repeat: int = Field(default=0, description="How many searches of the same optimizer come before this one.")
    size: float | None = Field(
        default=None, description="In a study with `scale`: of the model. Ranks and verdicts are within one size."
    )
    baseline_of: str | None = Field(
        default=None, description="Of a trial at default settings, which searched nothing: its optimizer's label."
    )
    optimizer: str
    rank: int | None
    trial: int | None
    search_value: float | None = Field(description="Validation value by which the trial was selected.")
    validation: SpreadView
    test: SpreadView
    test_metric: str | None
    n_trials: int
    n_complete: int
    n_pruned: int
    n_failed: int
    n_diverged: int
    n_epochs: int = Field(default=0, description="Epochs that the search stage trained, of all its trials.")
    search_gpu_s: float = Field(default=0.0, description="GPU seconds of the search stage, of all its trials.")
    divergence: RateView = Field(description="Of the search stage's trials, without those lost to accidents.")
    target: TargetView | None = Field(default=None, description="Null where neither study nor task states a target.")
    expected_best: list[float] = Field(
        description="Expected best validation value of 1, 2, … trials (Dodge 2019), over all trials: a pruned one by "
        "its last value, a diverged one as the worst of the study."
    )
    best_of_n: BestOfNView
    train_s: float
    gpu_s: float
    optimizer_s: float


class ComparisonView(View):
    """The comparison of a study's optimizers, best first. Validation selects; test is only reported."""

    study: str
    task: str
    metric: str
    direction: str
    complete: bool = Field(description="Whether the study is COMPLETED; also false where it was cancelled or failed.")
    rows: list[ComparisonRow]
    optimizers: list[ComparisonRow] = Field(
        default=[],
        description="Where searches are repeated, a row an optimizer, best first: its searches together, each by the "
        "mean of its confirm runs, so that n counts searches. Empty where each optimizer has one search.",
    )
    pairs: list[PairView] = Field(
        description="Every two optimizers with confirm runs, in the order of the rows. Where searches are repeated, an "
        "optimizer counts by what its searches reached, and a and b are labels of the definition."
    )
    over_searches: dict[str, SpreadView] = Field(
        default={},
        description="By label in the definition, validation over the optimizer's searches, each by the mean of its "
        "confirm runs; empty where each optimizer has one search.",
    )
    remarks: list[str] = Field(
        default=[],
        description="What must be known beside the verdicts: unequal budgets, how sure those of an extended study are, "
        "which optimizers train with a recipe of their own, and that trials were searched for more than the metric.",
    )
    edges: list[EdgeView] = Field(default=[], description="What to search further; given once a search has ended.")
    wider: dict[str, Any] | None = Field(
        default=None, description="The study with the wider spaces, as POST /v1/studies takes it; null: no edge."
    )

    def plot(self, ax: Any = None) -> Any:
        """Draw it with matplotlib: see `admeta.client.plots.plot_comparison`."""
        from admeta.client.plots import plot_comparison

        return plot_comparison(self, ax)


class SensitivityPointView(View):
    """The runs at one value of the parameter."""

    value: float
    mean: float | None = Field(description="Of the metric; null where a run diverged.")
    std: float | None = Field(description="Between seeds; null for n < 2.")
    n: int
    n_diverged: int


class RangeEndView(View):
    """One end of the range in which the result is within the tolerance of the best."""

    at: float = Field(description="Interpolated; the last value that was trained where `is_open`.")
    factor: float | None = Field(description="Of the chosen value; null for a parameter that is not on a log scale.")
    is_open: bool = Field(description="The result is within the tolerance there, too: the range may go on.")
    inner: float | None = Field(description="The end lies between inner and outer, which need no interpolation (95 %).")
    outer: float | None = Field(description="Null: no value that was trained is surely outside.")


class SensitivityCurveView(View):
    """One search: its result over the parameter, the others at those of the trial that represents it."""

    label: str
    optimizer: str
    trial: int | None
    chosen: float | None = Field(description="The parameter's value in that trial.")
    log: bool = Field(description="Whether the parameter is on a log scale.")
    points: list[SensitivityPointView] = Field(description="By value.")
    best: float | None = Field(description="Of the interpolated curve.")
    best_at: float | None
    tolerance: float | None = Field(description="In the metric's unit.")
    low: RangeEndView | None
    high: RangeEndView | None
    width: float | None = Field(description="high / low, at least so much where an end is open; null: no log scale.")
    deviation: float | None = Field(
        description="Mean loss against the best over the values trained, in the metric's unit; 0: not sensitive "
        "(Wortsman et al., 2023). A divergence counts as the study's worst complete trial. Null: only divergences are "
        "worse than the best."
    )
    reason: str | None = Field(description="Why there is no range.")
    note: str | None = Field(description="What limits it.")
    sentence: str = Field(description="The range in words.")


class SensitivityView(View):
    """How much each optimizer's result depends on one parameter around its chosen value."""

    study: str
    metric: str
    direction: str
    parameter: str
    within: float = Field(description="Tolerance as a share of the best result's absolute value.")
    margin: float | None = Field(description="Tolerance in the metric's unit, in place of `within`.")
    std: float | None = Field(description="Of a run between seeds, typical of the study's confirm runs.")
    complete: bool = Field(description="False while the study still runs.")
    curves: list[SensitivityCurveView]

    def plot(self, ax: Any = None) -> Any:
        """Draw it with matplotlib: see `admeta.client.plots.plot_sensitivity`."""
        from admeta.client.plots import plot_sensitivity

        return plot_sensitivity(self, ax)


class ObjectiveView(View):
    """What trials are judged by, and whether more or less of it is better."""

    metric: str = Field(description="A validation metric, or a cost of the run, such as train_s.")
    direction: str


class ParetoTrialView(TrainedView):
    """A complete trial of the search stage by all objectives; `settings` is given for those on a front."""

    label: str = Field(description="Of its search.")
    trial: int
    values: list[float] = Field(description="One for each objective, in their order.")
    on_front: bool = Field(
        description="No other trial of its optimizer is at least as good in all objectives and better in one."
    )
    leads: bool = Field(description="No trial of any optimizer of the study is.")


class ParetoFrontView(View):
    """The trials of one optimizer by all objectives."""

    label: str = Field(description="Of the optimizer in the definition.")
    optimizer: str
    hypervolume: float | None = Field(
        description="Share of the box between `ideal` and `reference` that its front dominates, from 0 to 1. Null: no "
        "trial, or all trials of the study are equal in an objective."
    )
    trials: list[ParetoTrialView] = Field(description="Best first by the first objective; the front among them.")


class ParetoView(View):
    """The Pareto front of each of a study's optimizers."""

    study: str
    objectives: list[ObjectiveView] = Field(description="The study's metric comes first.")
    searched: bool = Field(
        description="Whether the study searched for these; otherwise its trials happen to have them."
    )
    complete: bool = Field(description="False while the study still runs.")
    ideal: list[float] = Field(description="The best value of each objective among all trials; empty without any.")
    reference: list[float] = Field(description="The worst value of each, from which a hypervolume is measured.")
    hypervolume: float | None = Field(description="As that of an optimizer, of all of them together.")
    fronts: list[ParetoFrontView] = Field(description="In the order of the definition.")

    def plot(self, ax: Any = None) -> Any:
        """Draw it with matplotlib: see `admeta.client.plots.plot_pareto`."""
        from admeta.client.plots import plot_pareto

        return plot_pareto(self, ax)


class ComparedRowView(TrainedView):
    """One search of a study that is compared with others."""

    label: str
    optimizer: str
    rank: int | None = Field(description="In its study; null where no trial is complete.")
    trial: int | None
    search_value: float | None
    validation: SpreadView
    test: SpreadView


class ComparedStudyView(View):
    """A study beside others, with what its results depend on."""

    id: str
    name: str
    state: str
    task: str
    model: str | None
    epochs: int | None
    metric: str
    direction: str
    recipe: str | None = Field(description="Verdicts are between studies of one recipe only.")
    best: str | None = Field(description="Label of the search in the first place; null before a trial is complete.")
    rows: list[ComparedRowView] = Field(description="Best first.")


class DifferenceView(View):
    """A field in which the definitions of studies differ."""

    field: str = Field(examples=["optimizers.admetar.space.lr"])
    values: list[Any] = Field(description="One for each study, in their order; null where it does not have the field.")


class StudiesComparisonView(View):
    """Two to eight studies side by side, in the order in which they were asked for."""

    studies: list[ComparedStudyView]
    differences: list[DifferenceView]
    pairs: list[PairView] = Field(
        description="The best of every two studies, then searches of the same label; a and b are STUDY/LABEL. Adjusted "
        "for every two searches of all the studies."
    )
    no_verdicts: str | None = Field(description="Why there are none.")


class ImportanceView(View):
    """How much each searched parameter mattered in one optimizer's search."""

    label: str
    method: str | None = Field(description="fanova or ped-anova.")
    shares: dict[str, float] = Field(description="By parameter, largest first, with sum 1; empty: see `reason`.")
    intervals: dict[str, tuple[float, float]] = Field(
        default={}, description="By parameter, a 90 % interval of its share, from the trees or from resampled trials."
    )
    n_trials: int = Field(
        description="Trials that it uses: complete, pruned (by their last value) and diverged ones (as the worst)."
    )
    n_complete: int = Field(default=0, description="Those of them that are complete.")
    reason: str | None = Field(default=None, description="Why there is no result yet.")


class BestValueView(View):
    """Where one parameter was best at one size of the model."""

    size: float
    value: float
    low: float = Field(description="One standard error below.")
    high: float = Field(description="One standard error above.")
    n_trials: int = Field(description="Complete trials.")
    is_best_trial: bool = Field(
        description="Whether it is the best trial's value, since the trials show no minimum within their range."
    )


class ParameterFitView(View):
    """One parameter's best value over size, the line through it, and the prediction; null below three sizes."""

    parameter: str
    log: bool = Field(description="The line: value = c · size^slope; else value = c + slope · ln(size).")
    best: list[BestValueView] = Field(description="By size.")
    slope: float | None
    slope_low: float | None = Field(description="Of its 95 % interval.")
    slope_high: float | None
    predicted: float | None
    low: float | None = Field(description="Of its 95 % interval, if the line holds to within 10 %.")
    high: float | None
    excess: float | None = Field(
        description="How much farther the values lie from the line than their errors explain; above 1 the interval is "
        "so much wider."
    )
    sentence: str


class SweepView(View):
    """What the trials at the predicted size show of the prediction."""

    parameter: str = Field(description="That was varied around the predicted settings.")
    results: list[tuple[float, float]] = Field(description="Its value and the metric of each complete trial, by value.")
    predicted: float | None = Field(description="Its predicted value; null where that trial is not complete.")
    predicted_result: float | None = Field(description="The metric of the predicted settings.")
    best_result: float
    best: float = Field(description="Its value where the metric is best, by a curve through the trials.")
    low: float | None = Field(description="Of the 95 % interval of `best`; null: it is the best trial's value.")
    high: float | None
    ratio: float | None = Field(description="`predicted` over `best`.")
    refuted: bool | None = Field(
        description="Whether the intervals of the prediction and of `best` have no value in common; null: not known."
    )
    sentence: str


class SpeedupView(View):
    """How much sooner an optimizer has the final result of the reference at one size."""

    size: float
    target: float = Field(description="Mean final value of the reference's best settings.")
    epochs: float | None = Field(description="Until it was reached, interpolated; null: never. Median over its runs.")
    speedup: float | None = Field(description="The reference's epochs over these.")
    low: float | None = Field(description="Of the slowest run; null: one never reached it.")
    high: float | None = Field(description="Of the fastest run.")
    n: int = Field(description="Runs.")


class ScaleSearchView(View):
    """One optimizer's search at one size."""

    size: float
    label: str
    verifies: bool = Field(description="Whether its trials verify the prediction.")
    n_complete: int
    value: float | None = Field(description="The chosen trial's mean over its confirm runs, or else its value.")


class ScaleCurveView(View):
    """One optimizer over the sizes of a study."""

    label: str = Field(description="In the definition.")
    optimizer: str
    searches: list[ScaleSearchView]
    fits: list[ParameterFitView]
    sweep: SweepView | None = Field(description="Null: nothing was verified yet.")
    speedups: list[SpeedupView] = Field(description="By size; empty for the reference itself.")


class ScaleView(View):
    """A study's ladder of sizes: the best settings over size, their prediction, and speed-ups over one optimizer."""

    study: str
    metric: str
    direction: str
    field: str = Field(description="Of the task.")
    values: list[float]
    predict: float
    against: str = Field(description="Label of the optimizer whose final result the others are timed to.")
    complete: bool
    curves: list[ScaleCurveView]
