"""What the service reads: pages of studies and trials, the comparison, the best settings.

SQL does the counting, ordering and paging; nothing here loads a study's trials as a whole, and Optuna is not asked.
Only COMPLETE runs with a finite value compete.
"""

from service.database.queries.best import best
from service.database.queries.comparison import comparison
from service.database.queries.runs import get_run, get_run_curve, list_runs, run_place
from service.database.queries.studies import get_study_view, list_studies
from service.database.queries.trials import get_curve, get_trial, list_trials

__all__ = [
    "best",
    "comparison",
    "get_curve",
    "get_run",
    "get_run_curve",
    "get_study_view",
    "get_trial",
    "list_runs",
    "list_studies",
    "list_trials",
    "run_place",
]
