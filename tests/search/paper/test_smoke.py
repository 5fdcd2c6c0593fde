"""The paper's studies run to their end in small, with the optimizers and stages of the whole ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from search.paper.comparison import PaperStudy, paper_studies, smoke
from search.paper.setups import model_id
from search.states import RunState, Stage, StudyState
from tasks.config import TrialRef
from tasks.engine.task import release_data
from tests.search.paper.in_process import InProcess
from tests.search.paper.small_data import write_small_data

STUDIES = list(paper_studies().values())
BY_NAME = pytest.mark.parametrize("study", STUDIES, ids=[study.name for study in STUDIES])


@BY_NAME
def test_the_small_form_is_the_study_with_less_to_do(study: PaperStudy) -> None:
    whole, small = study.definition, smoke(study.definition)
    assert small.name == f"{whole.name}-smoke"
    assert small.optimizers == whole.optimizers
    assert small.objective == whole.objective
    assert small.sampler == whole.sampler
    assert (small.task.name, small.task.schedule) == (whole.task.name, whole.task.schedule)
    assert small.task.epochs == 1
    assert model_id(small.task.model) is None  # so that its results stand beside none of the paper's
    assert small.resources.gpus == 0
    if isinstance(whole.task.init_from, TrialRef):
        assert isinstance(small.task.init_from, TrialRef)
        assert small.task.init_from.study == f"{whole.task.init_from.study}-smoke"


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InProcess]:
    folder = tmp_path_factory.mktemp("paper")
    (folder / "data").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        release_data()
        write_small_data(folder / "data")
        made = InProcess(folder / "checkpoints", data_dir=folder / "data")
        yield made
        made.close()
        release_data()


def _of_each_form() -> list[PaperStudy]:
    """The first study of each small form: two of them train the same model where the paper's had two sizes."""
    first: dict[str, PaperStudy] = {}
    for study in STUDIES:
        small = smoke(study.definition)
        names = [spec.name for spec in small.optimizers]
        first.setdefault(repr((small.task, names, small.objective, small.budget, small.confirm)), study)
    return list(first.values())


@pytest.mark.slow
@pytest.mark.parametrize("study", [pytest.param(study, id=study.name) for study in _of_each_form()])
def test_every_small_form_runs_to_its_end(bench: InProcess, study: PaperStudy) -> None:
    """In the order of `paper_studies`, so that what starts from another's trial finds it."""
    definition = smoke(study.definition)
    ended = bench.run(definition)
    assert ended.state is StudyState.COMPLETED
    for search, spec in zip(bench.store.searches(ended.id), definition.optimizers, strict=True):
        runs = [run for run in bench.store.runs(ended.id) if run.search_id == search.id]
        assert {(run.state, run.failure) for run in runs} == {(RunState.COMPLETE, None)}, spec.label
        assert Counter(run.stage for run in runs) == Counter(
            {Stage.SEARCH: definition.budget.trials_per_optimizer, Stage.CONFIRM: definition.confirm.top_k}
        ), spec.label
        assert all(run.epoch == 1 and run.value is not None for run in runs)
        assert all(run.test_metrics for run in runs if run.stage is Stage.CONFIRM)
