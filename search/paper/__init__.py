"""Chen et al., ICML 2023, as data: its result tables, best settings, set-ups and grids.

Literal files in this package (results.yaml, settings.yaml, setups.yaml), read at the first call. What the paper says is
here; what the optimizers search by default is in admeta's registry, and what we measured is in the database.
"""

from search.paper.comparison import (
    FINETUNED,
    Cell,
    Measured,
    TableComparison,
    cell_texts,
    compare_table,
    count_ours,
    to_latex,
    to_markdown,
    variant_of,
)
from search.paper.setups import (
    OptimizerSetup,
    PaperModel,
    PaperSettings,
    Setup,
    all_settings,
    best_settings,
    model_id,
    paper_models,
    settings_tables,
    setup_of,
    setups,
)
from search.paper.tables import Column, PaperResult, Row, Table, paper_result, result_tables, results

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
    "TableComparison",
    "all_settings",
    "best_settings",
    "cell_texts",
    "compare_table",
    "count_ours",
    "model_id",
    "paper_models",
    "paper_result",
    "result_tables",
    "results",
    "settings_tables",
    "setup_of",
    "setups",
    "to_latex",
    "to_markdown",
    "variant_of",
]
