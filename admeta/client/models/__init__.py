"""What REST answers and takes: the models that the service, the client and the command line share.

Imports neither the server nor torch, ray or optuna, so that the client stays light. The request for a new study is
`search.definition.StudyDefinition`.
"""

from __future__ import annotations

from admeta.client.models.base import ErrorView, FieldError, Page, View
from admeta.client.models.comparison import (
    BestView,
    ComparisonRow,
    ComparisonView,
    ImportanceView,
    PairView,
    RateView,
    SpreadView,
    TargetView,
)
from admeta.client.models.paper import (
    OurNumberView,
    PaperCellView,
    PaperNumberView,
    PaperStudyView,
    PaperTableCellsView,
    PaperTableView,
)
from admeta.client.models.server import (
    ActiveRunView,
    ClusterView,
    HealthView,
    NewTokenView,
    NodeView,
    OptimizerParameterView,
    OptimizerView,
    QueuedStudyView,
    TaskView,
    TokenRequest,
    TokenView,
    VersionView,
)
from admeta.client.models.studies import CloneRequest, EventView, SearchView, StudyView
from admeta.client.models.trials import AttemptView, LogView, PointView, RunView, StudyRunView, TrialView

__all__ = [
    "ActiveRunView",
    "AttemptView",
    "BestView",
    "CloneRequest",
    "ClusterView",
    "ComparisonRow",
    "ComparisonView",
    "ErrorView",
    "EventView",
    "FieldError",
    "HealthView",
    "ImportanceView",
    "LogView",
    "NewTokenView",
    "NodeView",
    "OptimizerParameterView",
    "OptimizerView",
    "OurNumberView",
    "Page",
    "PairView",
    "PaperCellView",
    "PaperNumberView",
    "PaperStudyView",
    "PaperTableCellsView",
    "PaperTableView",
    "PointView",
    "QueuedStudyView",
    "RateView",
    "RunView",
    "SearchView",
    "SpreadView",
    "StudyRunView",
    "StudyView",
    "TargetView",
    "TaskView",
    "TokenRequest",
    "TokenView",
    "TrialView",
    "VersionView",
    "View",
]
