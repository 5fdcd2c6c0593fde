"""The paper's studies in small through the whole product: `admeta serve`, commands, Ray, SQL, checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from admeta.cli.app import run as run_command
from admeta.client import Client
from tests.search.paper.small_data import write_small_data
from tests.service.test_end_to_end import Served

pytestmark = [pytest.mark.ray, pytest.mark.slow]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("paper")
    (folder / "data").mkdir()
    write_small_data(folder / "data")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ADMETA_DATA", str(folder / "data"))
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        service = Served(folder / "home")
    yield service
    service.stop()


@pytest.fixture
def say(served: Served, capsys: pytest.CaptureFixture[str]) -> Callable[[str], tuple[int, str, str]]:
    def spoken(line: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = run_command([*line.split(), "--url", served.url])
        return code, *capsys.readouterr()

    return spoken


@pytest.mark.parametrize(
    ("study", "labels"),
    [
        ("cifar10-finetune-start", ["adam"]),
        ("cifar10-finetune", ["sgdm", "admetas"]),  # from the trial of the one before
        ("cola-bert-base", ["adamw", "radam", "ranger", "adabelief", "admetar"]),
    ],
)
def test_a_study_of_the_paper_runs_in_small(
    served: Served, say: Callable[[str], tuple[int, str, str]], study: str, labels: list[str]
) -> None:
    code, _, err = say(f"paper run {study} --smoke --wait --timeout 240")
    assert code == 0, err
    with Client(served.url) as client:
        found = client.study(f"paper-{study}-smoke")
        assert [search.label for search in found.searches] == labels
        for search in found.searches:
            assert (search.n_complete, search.n_failed) == (search.n_trials, 0)
            assert search.n_confirm_finished == search.n_confirm_runs
        assert all(table.n_ours == 0 for table in client.paper_tables())  # small numbers stand beside none of theirs


def test_a_search_begins_with_the_papers_best(
    served: Served, say: Callable[[str], tuple[int, str, str]], tmp_path: Path
) -> None:
    """The paper's ResNet-110 itself, without training: one batch an epoch on the small CIFAR-10."""
    file = tmp_path / "best.yaml"
    file.write_text(
        "name: best\n"
        "task: {name: cifar10, model: resnet110, epochs: 1, batch_size: 32, val_fraction: 0.5}\n"
        "optimizers: [{name: admetas}]\n"
        "budget: {trials_per_optimizer: 1}\n"
        "confirm: {top_k: 1, seeds: [0]}\n"
        "resources: {gpus: 0}\n"
    )
    code, _, err = say(f"submit {file} --space paper-best --wait --timeout 240")
    assert code == 0, err
    with Client(served.url) as client:
        (trial,) = client.trials("best")
        assert trial.params == {"lr": 0.05, "beta": 0.2}
        table = client.paper_table("cifar")
        (ours,) = [(i, cell) for i, row in enumerate(table.cells) for cell in row if cell.ours]
        assert table.rows[ours[0]] == ["AdmetaS"]
        assert ours[1].ours is not None
        assert (ours[1].ours.study, ours[1].ours.n) == ("best", 1)
    assert "94.12±0.17 / " in say("paper tables cifar")[1]
