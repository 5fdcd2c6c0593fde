"""The words that the service knows, for options: its own enums would load most of the server, or numpy.

A test holds each equal to the enum that its docstring names.
"""

from __future__ import annotations

from enum import StrEnum


class StudyStateName(StrEnum):
    """`search.records.StudyState`."""

    QUEUED = "QUEUED"
    RUNNING = "RUNNING"
    PAUSED = "PAUSED"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


class RunStateName(StrEnum):
    """`search.records.RunState`."""

    WAITING = "WAITING"
    RUNNING = "RUNNING"
    COMPLETE = "COMPLETE"
    PRUNED = "PRUNED"
    FAIL = "FAIL"


class StageName(StrEnum):
    """`search.records.Stage`."""

    SEARCH = "search"
    CONFIRM = "confirm"


class FailureName(StrEnum):
    """`search.records.FailureKind`."""

    DIVERGED = "diverged"
    OUT_OF_MEMORY = "out_of_memory"
    NO_METRIC = "no_metric"
    ERROR = "error"
    LOST = "lost"
    PREEMPTED = "preempted"
    CANCELLED = "cancelled"


class TestName(StrEnum):
    """`search.analysis.SignificanceTest`."""

    WELCH = "welch"
    WILCOXON = "wilcoxon"


class ImportanceMethodName(StrEnum):
    """`search.importance.ImportanceMethod`."""

    FANOVA = "fanova"
    PED_ANOVA = "ped-anova"


class ExportFormatName(StrEnum):
    """`service.export.ExportFormat`."""

    CSV = "csv"
    JSON = "json"
    PARQUET = "parquet"
    LATEX = "latex"


class ScopeName(StrEnum):
    """`service.database.tokens.Scope`."""

    READ = "read"
    WRITE = "write"
    ADMIN = "admin"
