"""What we use of Optuna that is not public: all of it is named here, so that a new Optuna is checked against it."""

from __future__ import annotations

import ast
import importlib
import inspect
import tomllib
from importlib.metadata import version
from pathlib import Path

import optuna
import pytest
from optuna.storages import RDBStorage, _CachedStorage
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parents[3]
MODULES = {
    "optuna.storages._rdb": {"models"},
    "optuna.storages": {"_CachedStorage"},
    "optuna.study._multi_objective": {"_is_pareto_front"},
    "optuna._hypervolume": {"compute_hypervolume"},
}
"""Private modules, and private names of public ones, that product code imports."""
TABLES = {
    "StudyModel",
    "StudyDirectionModel",
    "StudyUserAttributeModel",
    "StudySystemAttributeModel",
    "TrialModel",
    "TrialUserAttributeModel",
    "TrialSystemAttributeModel",
    "TrialParamModel",
    "TrialValueModel",
    "TrialIntermediateValueModel",
    "TrialHeartbeatModel",
}
FOREST = {"_evaluator", "_trees", "_variances"}
"""Attributes of fANOVA's evaluator and of its forest that product code reads."""
DOCUMENTED = {"_asdict"}
"""Names of other libraries that are public in spite of their underscore: SQLAlchemy's row as a dictionary."""
OF_RAY = {"_actor_id"}
"""Private names of Ray's objects in modules that import Optuna, too."""
ATTRIBUTES = {"_trial_id", "_thread_local", "_cached_frozen_trial", "_get_trials"} | FOREST
"""Attributes of Optuna's objects that product code uses; `_trial_id` is an argument of public methods."""
BACKEND = {
    "_create_new_trial": ["self", "study_id", "template_trial"],
    "_set_trial_param": [
        "self",
        "trial_id",
        "param_name",
        "param_value_internal",
        "distribution",
        "previous_distribution",
    ],
}
"""Methods of RDBStorage that `_CachedStorage` calls and our storage takes the place of, or calls."""


def imported(tree: ast.AST) -> set[tuple[str, str]]:
    """Module and name of each import from Optuna in which either is private."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "optuna":
            found |= {(str(node.module), alias.name) for alias in node.names}
        if isinstance(node, ast.Import):
            found |= {(alias.name, "") for alias in node.names if alias.name.partition(".")[0] == "optuna"}
    return {pair for pair in found if any(part.startswith("_") for part in ".".join(pair).split("."))}


def private_attributes(tree: ast.AST) -> tuple[set[str], set[str]]:
    """Private attributes of anything but `self`, and those that the code defines itself."""
    used: set[str] = set()
    own: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            own.add(node.name)
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
            of_self = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
            (own if of_self else used).add(node.attr)
    return used, own


def test_no_other_private_name_is_used() -> None:
    names: dict[str, set[str]] = {}
    used: set[str] = set()
    own: set[str] = set()
    for package in ("search", "service", "tasks", "admeta"):
        for path in (ROOT / package).rglob("*.py"):
            tree = ast.parse(path.read_text())
            for module, name in imported(tree):
                names.setdefault(module, set()).add(name)
            found = private_attributes(tree)
            own |= found[1]
            if any(isinstance(n, ast.Import | ast.ImportFrom) and "optuna" in ast.unparse(n) for n in ast.walk(tree)):
                used |= found[0]
    expected = ATTRIBUTES | set(BACKEND)
    assert names == MODULES
    assert expected <= used
    assert used - own <= expected | DOCUMENTED | OF_RAY


@pytest.mark.parametrize("module", MODULES)
def test_they_exist(module: str) -> None:
    for name in MODULES[module]:
        assert hasattr(importlib.import_module(module), name) or importlib.import_module(f"{module}.{name}")


def test_the_tables_are_those_that_are_written_and_deleted() -> None:
    models = importlib.import_module("optuna.storages._rdb.models")
    own = {name for name, kind in vars(models).items() if name.endswith("Model") and hasattr(kind, "__tablename__")}
    assert own - {"VersionInfoModel"} == TABLES
    assert set(models.TrialModel.__table__.c.keys()) >= {"trial_id", "number", "study_id", "state", "datetime_start"}
    assert models.TrialValueModel.value_to_stored_repr(1.5)[0] == 1.5
    assert models.TrialIntermediateValueModel.intermediate_value_to_stored_repr(1.5)[0] == 1.5


@pytest.mark.parametrize("name", BACKEND)
def test_methods_have_the_parameters_that_we_give(name: str) -> None:
    assert list(inspect.signature(getattr(RDBStorage, name)).parameters) == BACKEND[name]
    assert f"_backend.{name}(" in inspect.getsource(_CachedStorage)


def test_trials_and_studies_have_the_attributes() -> None:
    storage = optuna.storages.InMemoryStorage()
    study = optuna.create_study(storage=storage)
    trial = study.ask()
    trial.report(0.5, 1)
    assert trial._cached_frozen_trial.intermediate_values == {1: 0.5}
    assert storage.get_trial(trial._trial_id).number == trial.number
    study._thread_local.cached_all_trials = None
    assert len(study.trials) == 1


def test_fanovas_forest_has_the_attributes() -> None:
    study = optuna.create_study()
    study.optimize(lambda trial: trial.suggest_float("lr", 0, 1) ** 2 + trial.suggest_float("beta", 0, 1), n_trials=20)
    evaluator = optuna.importance.FanovaImportanceEvaluator(seed=0)
    evaluator.evaluate(study)
    trees, variances = evaluator._evaluator._trees, evaluator._evaluator._variances
    assert all(tree.variance >= 0 for tree in trees)
    assert {len(of_trees) for of_trees in variances.values()} == {len(trees)}


def test_the_version_is_bounded() -> None:
    """A new minor version may rename what is private: it is let in once these tests have passed with it."""
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (needed,) = [r for r in map(Requirement, groups["server"]) if r.name == "optuna"]
    installed = Version(version("optuna"))
    assert installed in needed.specifier
    assert f"{installed.major}.{installed.minor + 1}" not in needed.specifier
