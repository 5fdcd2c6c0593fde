"""The paper's numbers as data: complete, equal to the source where that is at hand, and consistent in themselves."""

from __future__ import annotations

import math
import os
import re
from pathlib import Path

import pytest

import admeta.registry
from search.paper import setups, tables
from search.space import CategoricalParameter, from_registry

CHECKOUT = Path(__file__).resolve().parents[3]
DATA = Path(os.environ.get("ADMETA_TEST_DATA", CHECKOUT.parent / "shared" / "data"))
TEX = DATA.parent / "paper" / "admeta-icml2023.tex"


def test_all_cells_are_there() -> None:
    counts = {name: len(tables.results(table=name)) for name in tables.result_tables()}
    assert counts == {
        "cifar": 8 * 4,
        "glue": 10 * 10,
        "squad_ner": 10 * 7,
        "audio": 5 * 4,
        "ablation": 16 + 10,
        "finetune": 4,
        "sgd_lr": 6,
    }
    settings = [of.table for of in setups.all_settings()]
    assert {name: settings.count(name) for name in setups.settings_tables()} == {
        "cifar": 4 * 8,
        "glue": 2 * 5 * 8,
        "squad_ner": 2 * 5 * 3,
        "audio": 5 * 2,
    }


def _printed(label: str) -> list[str]:
    """The cells of a table in the LaTeX source, in reading order, without the headings."""
    tex = TEX.read_text(encoding="utf-8")
    end = tex.index(f"\\label{{{label}}}")
    body = tex[tex.rindex("\\begin{tabular}", 0, end) : end]
    body = body[body.index("\\midrule") : body.index("\\bottomrule")].replace("lr=0.5", "").replace("$-$", " - ")
    body = re.sub(r"\\multi(?:row|column)\{\d\}\{[*l]\}|-DEMA|-LB|-LF|-1(?:10|0)|CIFAR-100?", " ", body)
    number = r"(?:\d+h)?(?:\d+m)?\d+s|-?\d+(?:\.\d+)?(?:e-\d)?(?:\$\\pm\$\d+\.\d+)?"
    return [cell.replace("$\\pm$", "±") for cell in re.findall(rf"(?<!\S)-(?!\S)|{number}", body)]


@pytest.mark.skipif(not TEX.exists(), reason=f"the paper's source is not at {TEX}; set ADMETA_TEST_DATA beside it")
@pytest.mark.parametrize(
    "table", [*tables.result_tables().values(), *setups.settings_tables().values()], ids=lambda t: t.label
)
def test_cells_equal_the_papers_source(table: tables.Table) -> None:
    ours = [token for row in table.rows for token in row.tokens()]
    if table.label == "tab:ablation":  # printed as two halves side by side; "\" marks an empty Δ
        half = len(table.rows) // 2
        pairs = zip(table.rows[:half], table.rows[half:], strict=True)
        ours = [token for pair in pairs for row in pair for token in row.tokens() if token != "-"]
    assert ours == _printed(table.label)


def _value(**where: str) -> float:
    return next(result.value for result in tables.results(**where) if result.variant is None)


def test_glue_average_is_the_mean_of_the_eight_tasks() -> None:
    metrics = {"mnli": "accuracy", "qqp": "f1", "qnli": "accuracy", "sst2": "accuracy"}
    metrics |= {"cola": "mcc", "stsb": "spearman", "mrpc": "f1", "rte": "accuracy"}
    for average in tables.results(metric="average"):
        where = {"model": average.model, "optimizer": average.optimizer}
        mean = sum(_value(task=task, metric=metric, **where) for task, metric in metrics.items()) / 8
        assert average.value == pytest.approx(mean, abs=0.51e-4)


def test_ablation_differences_are_against_what_the_notes_say() -> None:
    accuracy = {(r.optimizer, r.variant): r.value for r in tables.results(table="ablation", metric="accuracy")}
    for result in tables.results(table="ablation", metric="accuracy_difference"):
        against_dema = result.optimizer == "admetar" and result.variant in ("-LB", "-LF", "-LB-LF")
        base = accuracy[result.optimizer, "-DEMA" if against_dema else None]
        assert result.value == pytest.approx(accuracy[result.optimizer, result.variant] - base, abs=1e-9)


def test_tables_that_repeat_numbers_agree_but_for_sgd() -> None:
    for result in [*tables.results(table="sgd_lr"), *tables.results(table="ablation", metric="accuracy")]:
        if result.variant is None and result.optimizer != "sgd":
            main = tables.results(table="cifar", task=result.task, model=result.model, optimizer=result.optimizer)
            assert main[0].value == result.value
    assert [r.text for r in tables.results(task="cifar10", model="resnet110", optimizer="sgd")] == [
        "90.27±0.15",
        "90.22",
    ]


def test_values_are_fractions_and_seconds() -> None:
    result = tables.results(table="cifar", task="cifar10", model="resnet110", optimizer="admetas")[0]
    assert (result.value, result.std, result.split, result.metric) == (0.9412, 0.0017, "test", "accuracy")
    (time,) = tables.results(task="common_language", optimizer="admetar", metric="training_time")
    assert (time.value, time.text) == (8 * 3600 + 30 * 60 + 15, "8h30m15s")
    for each in tables.results():
        if not each.metric.startswith("training"):
            assert -1 < each.value < 1


def test_each_main_result_has_its_settings() -> None:
    for result in tables.results():
        if result.variant is None and result.task != "glue" and result.table != "finetune":  # it prints none there
            assert setups.best_settings(task=result.task, model=result.model, optimizer=result.optimizer), result


def test_settings_construct_the_optimizers() -> None:
    for settings in setups.all_settings():
        info = admeta.registry.get(settings.optimizer)
        expected = {"admetar": {"lr", "lambd"}, "admetas": {"lr", "beta"}}.get(settings.optimizer, {"lr"})
        assert settings.params.keys() == expected
        for name, value in settings.arguments.items():
            info.check(name, value)


def test_variants_are_settings_of_the_optimizer() -> None:
    for result in tables.results(table="ablation"):
        assert bool(result.changes) is (result.variant is not None)
        for name, value in result.changes.items():
            admeta.registry.get(result.optimizer).check(name, value)


def test_settings_outside_the_printed_grid_are_those_the_notes_name() -> None:
    outside = set()
    for settings in setups.all_settings():
        setup = setups.setup_of(task=settings.task, model=settings.model)
        assert setup is not None
        grid = setup.optimizers[settings.optimizer].grid
        for name, value in settings.params.items():
            if grid is not None and value not in grid[name]:
                outside.add((settings.task, settings.model, settings.optimizer, name, value))
    assert outside == {
        ("cifar100", "pyramidnet110", "sgd", "lr", 0.5),
        ("cifar100", "pyramidnet110", "sgdm", "lr", 0.5),
        ("superb_ks", "wav2vec2-base", "adamw", "lr", 3e-5),
        ("common_language", "wav2vec2-base", "adabelief", "lr", 2e-3),
        ("common_language", "wav2vec2-base", "admetar", "lr", 2e-3),
    }


@pytest.mark.parametrize(("setup", "space"), [("cifar", "paper"), ("superb", "paper_finetune")])
def test_registry_has_the_same_grids(setup: str, space: str) -> None:
    for name, optimizer in setups.setups()[setup].optimizers.items():
        assert optimizer.grid is not None
        known = from_registry(admeta.registry.get(name).paper_spaces[space])
        assert known.keys() == optimizer.grid.keys()
        for parameter, choices in optimizer.grid.items():
            registered = known[parameter]
            assert isinstance(registered, CategoricalParameter)
            assert sorted(registered.choices) == sorted(choices)  # type: ignore[type-var]


def test_tuning_budgets_were_unequal() -> None:
    grids = {name: of.grid or {} for name, of in setups.setups()["cifar"].optimizers.items()}
    budgets = {name: math.prod(map(len, grid.values())) for name, grid in grids.items()}
    assert budgets == {
        "sgd": 3, "sgdm": 3, "adam": 3, "radam": 3, "ranger": 3, "adabelief": 3, "admetar": 15, "admetas": 12,
    }  # fmt: skip


def test_models_by_our_names() -> None:
    assert setups.model_id("pyramidnet110_a84") == "pyramidnet110"
    assert setups.model_id("resnet110") == "resnet110"
    assert setups.model_id("resnet20") is None
    settings = setups.best_settings(task="cola", model="bert-base-uncased", optimizer="admetar")
    assert settings is not None
    assert settings.params == {"lr": 7e-4, "lambd": 0.02}
    assert setups.best_settings(task="cola", model="minilm", optimizer="admetar") is None
    assert setups.best_settings(task="cola", model="bert-base", optimizer="sgdm") is None


def test_mrpc_trains_for_five_epochs() -> None:
    epochs = {
        task: setup.training["epochs"]
        for task in ("mrpc", "rte", "cifar10")
        for setup in [setups.setup_of(task=task, model="resnet110" if task == "cifar10" else "bert-large")]
        if setup is not None
    }
    assert epochs == {"mrpc": 5, "rte": 3, "cifar10": 160}


def test_finetune_variant_is_another_setup() -> None:
    setup = setups.setup_of(task="cifar10", model="resnet110", variant="finetune")
    assert setup is not None
    assert setup.training["epochs"] == 40
    assert setups.setup_of(task="cifar10", model="resnet20") is None
