"""What REST answers: the response models, shared by the service, the client and the command line.

Imports neither the server nor torch, ray or optuna, so that the client stays light. The request for a new study is
`search.definition.StudyDefinition`.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field

Item = TypeVar("Item")


class View(BaseModel):
    """Base of every answer. Unknown fields are kept out; numbers that are not finite become null."""

    model_config = ConfigDict(frozen=True, ser_json_inf_nan="null")


class ErrorView(View):
    """Every error: what went wrong, which value and rule, and the next step."""

    error: str = Field(description="A short machine-readable name.", examples=["study_not_found"])
    detail: str = Field(description="What is wrong, with the value and the rule.")
    hint: str = Field(description="What to do next.")
    fields: list[FieldError] = Field(default=[], description="422 only: each field at fault.")


class FieldError(View):
    """One field of a request body that breaks a rule."""

    field: str = Field(examples=["optimizers.0.space.lr.low"])
    value: Any = None
    rule: str


class Page(View, Generic[Item]):
    """A page of a list; `next_cursor` is null on the last one."""

    items: list[Item]
    next_cursor: str | None = None


class SearchView(View):
    """Progress of one optimizer's search."""

    label: str
    optimizer: str
    optuna_study: str
    stage: str = Field(description="search, confirm or done")
    n_trials: int = Field(description="Trials the search will run in all.")
    n_waiting: int
    n_running: int
    n_complete: int
    n_pruned: int
    n_failed: int
    n_confirm_runs: int = Field(description="Confirm runs the study will make for this optimizer.")
    n_confirm_finished: int
    best_value: float | None = Field(description="Best validation value of a complete trial so far.")
    best_trial: int | None
    best_params: dict[str, Any] | None


class StudyView(View):
    """A study and how far it is."""

    id: str
    name: str
    task: str
    model: str | None
    state: str
    reason: str | None = Field(description="Why it FAILED or was CANCELLED.")
    metric: str
    direction: str
    priority: int
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    searches: list[SearchView]
    definition: dict[str, Any] | None = Field(default=None, description="In single reads only.")
    warnings: list[str] = []


class PointView(View):
    """One evaluation: a point of the curve."""

    epoch: int
    step: int
    value: float | None
    metrics: dict[str, float | None]
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


class RunView(View):
    """One training execution with one seed."""

    id: int
    stage: str
    seed: int
    state: str
    value: float | None
    test_metrics: dict[str, float | None]
    failure: str | None
    error: str | None
    epoch: int
    step: int
    train_s: float
    gpu_s: float
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    attempts: list[AttemptView]


class TrialView(View):
    """One configuration = one Optuna trial, with its runs (search stage first, then confirm seeds)."""

    number: int
    label: str
    optimizer: str
    state: str
    value: float | None
    params: dict[str, Any] = Field(description="What the sampler drew.")
    settings: dict[str, Any] = Field(description="params and fixed: constructs the optimizer.")
    runs: list[RunView]
    curve: list[PointView] | None = Field(default=None, description="Of the search run; in single reads only.")


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


class ImportanceView(View):
    """How much each searched parameter mattered in one optimizer's search."""

    label: str
    method: str | None = Field(description="fanova or ped-anova.")
    shares: dict[str, float] = Field(description="By parameter, largest first, with sum 1; empty: see `reason`.")
    n_trials: int = Field(description="Complete trials it rests on.")
    reason: str | None = Field(default=None, description="Why nothing can be told yet.")


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


class TaskView(View):
    """A task that studies can name."""

    name: str
    title: str
    description: str
    models: list[str]
    metrics: dict[str, str]
    default_metric: str
    config_schema: dict[str, Any]


class OptimizerParameterView(View):
    """A parameter of an optimizer."""

    name: str
    default: Any
    rule: str
    doc: str


class OptimizerView(View):
    """An optimizer that studies can name."""

    name: str
    title: str
    description: str
    source: str
    parameters: list[OptimizerParameterView]
    default_space: dict[str, Any]
    fixed: dict[str, Any]
    spaces: dict[str, Any] = Field(description="Other named spaces: finetune, paper, …")


class HealthView(View):
    """Whether the service and what it rests on work."""

    status: str
    version: str
    database: str
    ray: str


class NodeView(View):
    """A machine of the Ray cluster."""

    id: str
    host: str
    address: str
    alive: bool
    cpus: float
    cpus_free: float
    gpus: float
    gpus_free: float


class ActiveRunView(View):
    """A run that trains now, and where."""

    run: int
    study: str = Field(description="The study's name.")
    label: str
    trial: int
    stage: str
    seed: int
    node: str | None = Field(description="A node's address.")
    device: str | None
    started_at: datetime


class QueuedStudyView(View):
    """A study that waits for its turn."""

    id: str
    name: str
    priority: int
    created_at: datetime


class ClusterView(View):
    """The machines, what runs on them, and what waits."""

    ray: str = Field(description="ok, starting, or what is wrong; the nodes are known only while it is ok.")
    nodes: list[NodeView]
    runs: list[ActiveRunView] = Field(description="Latest first; 500 at most.")
    queue: list[QueuedStudyView] = Field(description="In the order in which they will start; 100 at most.")


class EventView(View):
    """Something that happened to a study; ids rise in the order in which events became true."""

    id: int
    at: datetime
    study: str = Field(description="The study's id.")
    kind: str = Field(examples=["study.state", "trial.finished", "metric"])
    data: dict[str, Any] = Field(description="What there is to say: run, label, trial, stage, seed, state, points, …")


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


class TokenRequest(BaseModel):
    """A token to make."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    name: str = Field(min_length=1, max_length=100, description="What it is for, or who has it.")
    scope: Literal["read", "write", "admin"] = "read"
    expires_in_s: float | None = Field(
        default=None, gt=0, le=10 * 365 * 86_400, description="Seconds that it works; null: until it is revoked."
    )


class TokenView(View):
    """An access token, without the token itself."""

    id: str
    name: str
    scope: str = Field(description="read, write or admin; each may do what those before it may.")
    prefix: str = Field(description="How the token begins, to know it by.")
    active: bool = Field(description="Neither revoked nor expired.")
    created_at: datetime
    expires_at: datetime | None
    last_used_at: datetime | None = Field(description="To the minute.")
    revoked_at: datetime | None


class NewTokenView(TokenView):
    """A token just made. It is shown here only: the service keeps no more than its hash."""

    token: str = Field(examples=["adm_…"])
