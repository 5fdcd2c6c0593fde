"""What the results say: the comparison of a study, the best settings over all studies, which parameters mattered."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from admeta.client.models.base import View


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


class PairView(View):
    """Two optimizers of a study compared on their confirm runs' validation values."""

    a: str
    b: str
    test: str = Field(description="welch, or wilcoxon on pairs that share a seed.")
    difference: float | None = Field(description="Mean of a minus mean of b.")
    low: float | None = Field(description="95 % interval of the difference (Welch).")
    high: float | None
    p_value: float | None
    p_holm: float | None = Field(description="Corrected for all pairs of the study (Holm).")
    better: str | None = Field(description="The label shown to be better at the 5 % level after the correction.")
    note: str | None = Field(description="Why there is no p-value, or what it cannot show.")


class ComparisonRow(View):
    """One optimizer in the comparison of a study."""

    label: str
    optimizer: str
    rank: int | None
    trial: int | None
    settings: dict[str, Any] | None
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
    divergence: RateView = Field(description="Of the search stage's trials, without those lost to accidents.")
    target: TargetView | None = Field(description="Null where neither study nor task states a target.")
    expected_best: list[float] = Field(description="Expected best validation value of 1, 2, … trials (Dodge 2019).")
    train_s: float
    gpu_s: float
    optimizer_s: float


class ComparisonView(View):
    """The comparison of a study's optimizers, best first. Validation selects; test is only reported."""

    study: str
    task: str
    metric: str
    direction: str
    complete: bool = Field(description="False while the study still runs.")
    rows: list[ComparisonRow]
    pairs: list[PairView] = Field(description="Every two optimizers with confirm runs, in the order of the rows.")


class BestView(View):
    """The best settings known for a task and optimizer over all studies."""

    task: str
    model: str | None
    optimizer: str
    metric: str
    direction: str
    settings: dict[str, Any] = Field(description="Constructs the optimizer: cls(parameters, **settings).")
    search_value: float | None
    validation: SpreadView
    test: SpreadView
    test_metric: str | None
    study: str
    label: str
    trial: int
    evidence: str = Field(description="'confirmed' over several seeds, or 'single run' of the search stage.")
    init_from: str | None = Field(
        default=None,
        description="What training started from, STUDY/LABEL/TRIAL or a file; null: fresh weights, which come first.",
    )

    @property
    def params(self) -> dict[str, Any]:
        """The settings as a plain dict: `AdmetaR(model.parameters(), **best.params)`."""
        return dict(self.settings)


class ImportanceView(View):
    """How much each searched parameter mattered in one optimizer's search."""

    label: str
    method: str | None = Field(description="fanova or ped-anova.")
    shares: dict[str, float] = Field(description="By parameter, largest first, with sum 1; empty: see `reason`.")
    n_trials: int = Field(description="Complete trials it rests on.")
    reason: str | None = Field(default=None, description="Why nothing can be told yet.")
