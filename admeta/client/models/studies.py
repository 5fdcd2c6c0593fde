"""A study with its progress and events, its trials, runs, attempts, curves and logs; requests to clone and extend it.

The request for a new study is `search.definition.StudyDefinition`.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from admeta.client.models.base import Finite, TrainedView, View

Tag = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,39}$")]


class SearchView(View):
    """Progress of one optimizer's search."""

    label: str
    optimizer: str
    optuna_study: str
    stage: str = Field(description="search, confirm, sensitivity, done, or stopped: its study ended before")
    n_trials: int = Field(
        description="Trials the search will run in all, those in place of lost ones included. Where its budget is in "
        "epochs or GPU hours: an estimate from what its trials have cost so far."
    )
    n_waiting: int
    n_running: int
    n_complete: int
    n_pruned: int
    n_failed: int
    n_confirm_runs: int = Field(description="Confirm runs the study will make for this optimizer.")
    n_confirm_finished: int
    n_sensitivity_runs: int = Field(default=0, description="Sensitivity runs, which are made once a trial is chosen.")
    n_sensitivity_finished: int = 0
    n_taken: int = Field(
        default=0,
        description="Trials whose settings a warm start took from earlier studies, or a step from those; 0 in a study "
        "with one: it began without.",
    )
    best_value: float | None = Field(description="Best validation value of a complete trial so far.")
    best_trial: int | None
    best_params: dict[str, Any] | None
    n_epochs: int = Field(default=0, description="Epochs that its trials have trained.")
    gpu_hours: float = Field(default=0.0, description="Hours that its trials have held a card.")
    max_epochs: int | None = Field(default=None, description="Its budget, where that is in epochs and not in trials.")
    max_gpu_hours: float | None = Field(default=None, description="The same in GPU hours.")

    @property
    def n_finished(self) -> int:
        """Trials of the search stage that have ended, in whatever way."""
        return self.n_complete + self.n_pruned + self.n_failed


class DetectableView(View):
    """The difference between two optimizers that a study shows with a probability of 80 %."""

    difference: float | None = Field(
        description="In the metric's unit; in standard deviations where `std` is null. Null: the study can show none."
    )
    std: float | None = Field(description="Standard deviation between seeds in earlier studies of this recipe.")
    sentence: str = Field(description="All of it in words.")


class ExtensionView(View):
    """A time that a study was extended after its end. The study's definition is the extended one."""

    at: datetime
    by: str | None = Field(description="Name of the access token; null on an open service.")
    changes: list[str] = Field(examples=[["40 trials of each optimizer, before 20"]], description="In words.")
    request: dict[str, Any] = Field(description="What was asked for.")
    state: str = Field(description="In which the study had ended.")
    reason: str | None = Field(description="Why it had ended so.")
    ended_at: datetime | None
    verdicts_seen: bool = Field(
        description="There were verdicts then: those of the extended study have half the alpha."
    )


class StudyView(View):
    """A study and how far it is."""

    id: str
    name: str
    task: str
    model: str | None
    state: str
    reason: str | None = Field(
        description="Why it FAILED, was CANCELLED or PAUSED; what it waits for or does before its first epoch; which "
        "searches were cut short or had no trial but failed ones, once it is COMPLETED."
    )
    metric: str
    direction: str
    priority: int
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    searches: list[SearchView]
    remaining_s: float | None = Field(
        default=None,
        description="Seconds that a RUNNING study will still take, from its latest runs; until three have ended, from "
        "those of the last study of its recipe or from its first epochs. In single reads only.",
    )
    notes: str = Field(default="", description="What somebody wrote about the study.")
    tags: list[str] = Field(default=[], description="Words to find it by.")
    definition: dict[str, Any] | None = Field(default=None, description="In single reads only.")
    recipe: str | None = Field(default=None, description="Hash of what makes results comparable.")
    data_fingerprint: str | None = Field(
        default=None,
        description="Of the files that the task names, from its first check on a worker; the recipe has it.",
    )
    warnings: list[str] = Field(default=[])
    extensions: list[ExtensionView] = Field(
        default=[], description="How it was extended after its end, the last time last; in single reads only."
    )
    detectable: DetectableView | None = Field(
        default=None, description="In the answer to a submission: what the study can show. Null for one optimizer."
    )

    def elapsed_s(self, now: datetime) -> float:
        """Seconds since its start, until its end where it has ended; without those between an end and an extension."""
        if self.started_at is None:
            return 0.0
        ended_s = sum((one.at - one.ended_at).total_seconds() for one in self.extensions if one.ended_at is not None)
        return max(0.0, ((self.finished_at or now) - self.started_at).total_seconds() - ended_s)


class StudyChanges(BaseModel):
    """What may be changed of a study at any time. A field that is left out stays as it is."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    notes: str | None = Field(default=None, max_length=10_000, description="Replaces the notes; empty: none.")
    tags: list[Tag] | None = Field(default=None, max_length=20, description="Replaces the tags; empty: none.")


class CloneRequest(BaseModel):
    """A study to make from another one's definition."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    name: str = Field(description="The new study's name.", examples=["digits-second"])
    changes: dict[str, Any] = Field(
        default={},
        description="Merged into the definition as a JSON Merge Patch (RFC 7396): objects key by key, null for the "
        "default, lists as a whole.",
        examples=[{"budget": {"trials_per_optimizer": 40}}],
    )


class ExtendRequest(BaseModel):
    """With what a study that has ended goes on. Numbers are totals: the same request again changes nothing more."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    trials: Annotated[int, Field(ge=1, le=100_000)] | None = Field(
        default=None, description="Trials of each optimizer in all."
    )
    trials_of: dict[str, Annotated[int, Field(ge=1, le=100_000)]] = Field(
        default={},
        max_length=100,
        description="By label, trials of one optimizer in all. Budgets are then unequal, and the comparison says so.",
    )
    seeds: Annotated[int, Field(ge=1, le=100)] | None = Field(
        default=None,
        description="Confirm seeds of each optimizer in all; with `until: decided` the most that one may have.",
    )
    optimizers: list[dict[str, Any] | str] = Field(
        default=[], max_length=100, description="Optimizers to add, as in a study's definition."
    )
    limits: dict[str, float | int | None] = Field(
        default={},
        description="Other limits of `budget` in place of the present ones: max_hours, gpu_hours, "
        "epochs_per_optimizer, gpu_hours_per_optimizer, target. Null: none.",
    )


class EventView(View):
    """Something that happened to a study; ids rise in the order in which events became true."""

    id: int
    at: datetime
    study: str = Field(description="The study's id.")
    kind: str = Field(examples=["study.state", "trial.finished", "metric"])
    data: dict[str, Any] = Field(description="Depends on the kind: run, label, trial, stage, seed, state, points, …")


class PointView(View):
    """One evaluation: a point of the curve."""

    epoch: int
    step: int
    value: float | None
    metrics: dict[str, Finite]
    lr: float | None


class AttemptView(View):
    """One attempt of a run: a start on a worker."""

    attempt: int
    state: str
    started_at: datetime
    finished_at: datetime | None
    node: str | None
    device: str | None
    resumed_from_epoch: int | None
    error: str | None
    environment: dict[str, Any] | None = Field(
        default=None,
        description="In single reads of a run only: device, versions, source commit, how the steps ran, the share of a "
        "card and why; null until the attempt has begun.",
    )


class RunView(View):
    """One training execution with one seed."""

    id: int
    stage: str
    seed: int
    state: str
    value: float | None
    test_metrics: dict[str, Finite]
    failure: str | None
    error: str | None
    epoch: int
    step: int
    train_s: float
    gpu_s: float
    peak_memory_bytes: int = Field(
        default=0, description="Most device memory held; without a GPU the process's peak. 0: not measured."
    )
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    attempts: list[AttemptView]


class TrialView(TrainedView):
    """One configuration = one Optuna trial, with its runs (search stage first, then confirm seeds)."""

    number: int
    label: str
    optimizer: str
    state: str
    value: float | None
    params: dict[str, Any] = Field(description="What the sampler drew.")
    settings: dict[str, Any] = Field(description="params and fixed of the optimizer: constructs it.")
    runs: list[RunView]
    curve: list[PointView] | None = Field(default=None, description="Of the search run; in single reads only.")

    def plot(self, ax: Any = None, *, metric: str | None = None) -> Any:
        """Draw its curve with matplotlib: see `admeta.client.plots.plot_trial`."""
        from admeta.client.plots import plot_trial

        return plot_trial(self, ax, metric=metric)


class StudyRunView(RunView, TrainedView):
    """A run with what it belongs to."""

    study: str = Field(description="The study's name.")
    label: str
    optimizer: str
    trial: int = Field(description="Of stage sensitivity, which belongs to no trial: the number of its value.")
    settings: dict[str, Any] = Field(description="Constructs the optimizer: cls(parameters, **settings).")
    logs: list[int] = Field(default=[], description="In single reads only: the attempts that left a log.")


class LogView(View):
    """A part of what an attempt of a run printed; REST sends the text, and the rest in headers."""

    run: int
    attempt: int
    text: str
    offset: int = Field(description="Where the next part begins, in bytes since the attempt began.")
    ended: bool = Field(description="Nothing will be added to this attempt's log.")
