"""The words that the service knows, for options: its own enums would load most of the server, or numpy.

A test holds each equal to the enum that its docstring names.
"""

from __future__ import annotations

from enum import StrEnum


class StudyStateName(StrEnum):
    """`search.states.StudyState`."""

    QUEUED = "QUEUED"
    RUNNING = "RUNNING"
    PAUSED = "PAUSED"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


class RunStateName(StrEnum):
    """`search.states.RunState`."""

    WAITING = "WAITING"
    RUNNING = "RUNNING"
    COMPLETE = "COMPLETE"
    PRUNED = "PRUNED"
    FAIL = "FAIL"


class StageName(StrEnum):
    """`search.states.Stage`."""

    SEARCH = "search"
    CONFIRM = "confirm"


class FailureName(StrEnum):
    """`search.states.FailureKind`."""

    DIVERGED = "diverged"
    OUT_OF_MEMORY = "out_of_memory"
    NO_METRIC = "no_metric"
    ERROR = "error"
    LOST = "lost"
    PREEMPTED = "preempted"
    CANCELLED = "cancelled"


class TestName(StrEnum):
    """`search.states.SignificanceTest`."""

    WELCH = "welch"
    WILCOXON = "wilcoxon"


class ImportanceMethodName(StrEnum):
    """`search.states.ImportanceMethod`."""

    FANOVA = "fanova"
    PED_ANOVA = "ped-anova"


class ExportFormatName(StrEnum):
    """`search.states.ExportFormat`."""

    CSV = "csv"
    JSON = "json"
    PARQUET = "parquet"
    LATEX = "latex"


class ScopeName(StrEnum):
    """`search.states.Scope`."""

    READ = "read"
    WRITE = "write"
    ADMIN = "admin"
