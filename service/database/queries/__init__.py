"""What the service reads: all SQL that answers a request.

SQL does the counting, ordering and paging; nothing here loads a study's trials as a whole, and Optuna is not asked.
Only COMPLETE runs with a finite value compete.
"""

from service.database.queries.activity import Totals, active_runs, queued_studies, time_left, totals
from service.database.queries.best import BestResult, best, best_results, measured
from service.database.queries.chosen import sensitivity
from service.database.queries.comparison import comparison, detectable
from service.database.queries.lookup import find_study, study_state
from service.database.queries.plots import (
    AttemptSpan,
    Axis,
    Curves,
    History,
    RunChoice,
    attempt_spans,
    best_curves,
    pareto,
    search_history,
    study_curves,
    with_front,
)
from service.database.queries.profiles import Choice, profiles
from service.database.queries.recommend import config_of, recommendation
from service.database.queries.scale import scale
from service.database.queries.several import compare_studies
from service.database.queries.studies import get_study_view, gpu_seconds, list_studies, study_names
from service.database.queries.trials import (
    get_curves,
    get_run,
    get_run_curve,
    get_trial,
    last_failures,
    list_runs,
    list_trials,
    run_files,
    trial_files,
)

__all__ = [
    "AttemptSpan",
    "Axis",
    "BestResult",
    "Choice",
    "Curves",
    "History",
    "RunChoice",
    "Totals",
    "active_runs",
    "attempt_spans",
    "best",
    "best_curves",
    "best_results",
    "compare_studies",
    "comparison",
    "config_of",
    "detectable",
    "find_study",
    "get_curves",
    "get_run",
    "get_run_curve",
    "get_study_view",
    "get_trial",
    "gpu_seconds",
    "last_failures",
    "list_runs",
    "list_studies",
    "list_trials",
    "measured",
    "pareto",
    "profiles",
    "queued_studies",
    "recommendation",
    "run_files",
    "scale",
    "search_history",
    "sensitivity",
    "study_curves",
    "study_names",
    "study_state",
    "time_left",
    "totals",
    "trial_files",
    "with_front",
]
