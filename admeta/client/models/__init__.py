"""What REST answers and takes: the models that the service, the client and the command line share.

Imports neither the server nor torch, ray or optuna, so that the client stays light. The request for a new study is
`search.definition.StudyDefinition`.
"""

from __future__ import annotations

from admeta.client.models.base import Page, View
from admeta.client.models.best import BestView, ImportanceView
from admeta.client.models.catalog import OptimizerParameterView, OptimizerView, TaskView
from admeta.client.models.cluster import ActiveRunView, ClusterView, HealthView, NodeView, QueuedStudyView, VersionView
from admeta.client.models.comparison import ComparisonRow, ComparisonView, PairView, RateView, SpreadView, TargetView
from admeta.client.models.errors import ErrorView, FieldError
from admeta.client.models.events import EventView
from admeta.client.models.paper import (
    OurNumberView,
    PaperCellView,
    PaperNumberView,
    PaperStudyView,
    PaperTableCellsView,
    PaperTableView,
)
from admeta.client.models.runs import LogView, StudyRunView
from admeta.client.models.studies import CloneRequest, SearchView, StudyView
from admeta.client.models.tokens import NewTokenView, TokenRequest, TokenView
from admeta.client.models.trials import AttemptView, PointView, RunView, TrialView

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
