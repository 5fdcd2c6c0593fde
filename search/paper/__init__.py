"""Chen et al., ICML 2023, as data: its result tables, best settings, set-ups and grids.

Literal files in this package (results.yaml, settings.yaml, setups.yaml), read at the first call. What the paper says is
here; what the optimizers search by default is in admeta's registry, and what we measured is in the database.
"""

from search.paper.beside import Cell, Measured, TableBeside, beside, count_ours, texts, to_latex, to_markdown
from search.paper.results import PaperResult, paper_result, result_tables, results
from search.paper.settings import PaperSettings, all_settings, best_settings, settings_tables
from search.paper.setups import OptimizerSetup, PaperModel, Setup, model_id, paper_models, setup_of, setups
from search.paper.tables import Column, Row, Table
from search.paper.variants import FINETUNED, variant_of

__all__ = [
    "FINETUNED",
    "Cell",
    "Column",
    "Measured",
    "OptimizerSetup",
    "PaperModel",
    "PaperResult",
    "PaperSettings",
    "Row",
    "Setup",
    "Table",
    "TableBeside",
    "all_settings",
    "beside",
    "best_settings",
    "count_ours",
    "model_id",
    "paper_models",
    "paper_result",
    "result_tables",
    "results",
    "settings_tables",
    "setup_of",
    "setups",
    "texts",
    "to_latex",
    "to_markdown",
    "variant_of",
]
