"""What REST answers and takes: the models that the service, the client and the command line share.

Imports neither the server nor torch, ray or optuna, so that the client stays light. The request for a new study is
`search.definition.StudyDefinition`.
"""

from __future__ import annotations

from service.models.base import Page, View
from service.models.best import BestView, ImportanceView
from service.models.catalog import OptimizerParameterView, OptimizerView, TaskView
from service.models.cluster import ActiveRunView, ClusterView, HealthView, NodeView, QueuedStudyView, VersionView
from service.models.comparison import ComparisonRow, ComparisonView, PairView, RateView, SpreadView, TargetView
from service.models.errors import ErrorView, FieldError
from service.models.events import EventView
from service.models.paper import (
    OurNumberView,
    PaperCellView,
    PaperNumberView,
    PaperStudyView,
    PaperTableCellsView,
    PaperTableView,
)
from service.models.runs import LogView, StudyRunView
from service.models.studies import CloneRequest, SearchView, StudyView
from service.models.tokens import NewTokenView, TokenRequest, TokenView
from service.models.trials import AttemptView, PointView, RunView, TrialView

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
