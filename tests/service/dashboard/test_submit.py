"""Submitting from the page: the form's text, the check as one types, and the study."""

from __future__ import annotations

import gc
import html
import json
import re
import weakref
from typing import Any
from urllib.parse import urlencode

import pytest
import yaml
from fastapi.testclient import TestClient

import admeta.registry
import tasks.registry
from search.definition import StudyDefinition
from search.space import from_registry
from service.dashboard import form
from service.database import SqlStore
from service.database.engine import make_engine
from service.settings import Settings
from tests.service.database.test_verdicts import at_the_edge
from tests.service.fakes import ADDRESS

FORM = {"Content-Type": "application/x-www-form-urlencoded", "Origin": ADDRESS}
HTMX = {**FORM, "HX-Request": "true"}


def said(pages: TestClient, text: str) -> str:
    answer = pages.post("/submit/check", content=urlencode({"definition": text}), headers=HTMX)
    assert answer.status_code == 200
    return re.sub(r"<[^>]+>", "", answer.text)


def text_of(page: str) -> str:
    found = re.search(r"<textarea[^>]*>(.*?)</textarea>", page, re.DOTALL)
    assert found is not None
    return found[1].replace("&#34;", '"').replace("&#39;", "'")


def test_the_first_text_can_run_as_it_is(pages: TestClient) -> None:
    page = pages.get("/submit").text
    study = yaml.safe_load(text_of(page))
    assert [one["name"] for one in study["optimizers"]] == ["admetar", "admetas", "adamw", "sgdm"]
    assert "This study can run" in page
    assert "is shown with a probability of 80 %" in page


@pytest.mark.parametrize("task", sorted(tasks.registry.all_tasks()))
def test_every_task_has_a_form_whose_defaults_are_valid(pages: TestClient, task: str) -> None:
    page = pages.get(f"/submit?task={task}")
    assert page.status_code == 200
    study = yaml.safe_load(text_of(page.text))
    assert study["task"]["name"] == task
    if "can run" not in page.text:  # a task of files or of own code must be told where they are
        faults = re.findall(r'data-field="([^"]+)"', page.text)
        assert faults
        assert set(faults) <= {
            "task.data_dir",
            "task.dataset",
            "task.classes",
            "task.run",
            "task.data",
            "task.model",
            "task",
        }


def test_fields_have_the_definitions_own_defaults() -> None:
    defaults = StudyDefinition.model_validate(
        {"name": "x", "task": {"name": "digits"}, "optimizers": [{"name": "sgd"}]}
    )
    known = defaults.to_json()
    for section in form.study_sections():
        for field in (*section.fields, *section.more):
            value = known
            for key in field.path.split("."):
                value = value[key]
            if field.path == "budget.trials_per_optimizer":
                assert (value, field.text) == (20, "")  # it depends on the other limits, and the note says how
                continue
            assert field.read(field.text or "none") == value or (value is None and field.text == ""), field.path


def test_the_form_writes_what_was_filled(pages: TestClient) -> None:
    filled = {
        "shown_task": "digits", "name": "mine", "task.name": "digits", "task.model": "mlp", "task.epochs": "3",
        "optimizer": ["sgd", "admetas"], "space.admetas": "finetune", "objective.metric": "val_loss",
        "budget.trials_per_optimizer": "4", "budget.target": "", "confirm.seeds": "5, 6", "resources.gpus": "0.5",
        "max_failures": "2", "training_seed": "7",
    }  # fmt: skip
    answer = pages.post("/submit/compose", content=urlencode(filled, doseq=True), headers=HTMX)
    study = yaml.safe_load(text_of(answer.text))
    assert study["optimizers"] == [{"name": "sgd"}, {"name": "admetas", "space": "finetune"}]
    assert study["task"] | {"batch_size": 64} == {"name": "digits", "model": "mlp", "epochs": 3, "batch_size": 64}
    assert (study["objective"], study["training_seed"]) == ({"metric": "val_loss"}, 7)
    assert (study["confirm"]["seeds"], study["resources"]["gpus"]) == ([5, 6], 0.5)
    assert "max_failures" not in study  # its default, and not among the main fields
    assert "2 optimizers × 4 trials on digits, then 4 confirm runs: 12 runs" in answer.text
    assert 'id="task-fields"' not in answer.text
    whole = pages.post("/submit/compose", content=urlencode(filled, doseq=True), headers=FORM)  # without JavaScript
    assert text_of(whole.text) == text_of(answer.text)


def test_a_space_is_the_tasks_own_unless_one_is_chosen(pages: TestClient) -> None:
    """`default` is not what a task of a pretrained model searches where the study names no space."""
    filled = {
        "name": "x",
        "task.name": "cola",
        "optimizer": ["sgd", "adamw"],
        "space.sgd": "",
        "space.adamw": "default",
    }
    text = text_of(pages.post("/submit/compose", content=urlencode(filled, doseq=True), headers=HTMX).text)
    study = StudyDefinition.model_validate(yaml.safe_load(text))
    info = admeta.registry.get("adamw")
    assert study.optimizers[0].space == from_registry(admeta.registry.get("sgd").finetune_space)
    assert study.optimizers[1].space == from_registry(info.default_space) != from_registry(info.finetune_space)


PAPERS = {
    "shown_task": "cifar10",
    "name": "x",
    "task.name": "cifar10",
    "optimizer": "admetar",
    "space.admetar": "paper-best",
}


def test_a_search_begins_with_the_papers_best(pages: TestClient) -> None:
    filled = {**PAPERS, "task.model": "resnet110"}
    answer = pages.post("/submit/compose", content=urlencode(filled), headers=HTMX).text
    assert "This study can run" in answer
    study = yaml.safe_load(text_of(answer))
    assert study["optimizers"] == [{"name": "admetar", "space": "paper-best"}]
    assert StudyDefinition.model_validate(study).optimizers[0].first == [{"lr": 0.05, "lambd": 0.1}]
    whole = pages.post("/submit/compose", content=urlencode(filled), headers=FORM).text  # without JavaScript
    assert '<option value="paper-best" selected>' in whole


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (
            {"task.model": "resnet20"},
            "the paper has no settings of admetar on cifar10 with resnet20; its models on cifar10 are",
        ),
        ({"task.name": "digits", "shown_task": "digits"}, "the paper has no settings of admetar on digits with"),
        (
            {"task.model": "resnet110", "optimizer": "adamw", "space.adamw": "paper-best"},
            "it has settings of sgd, sgdm, adam",
        ),
    ],
)
def test_where_the_paper_prints_no_settings_the_form_says_so(
    pages: TestClient, changes: dict[str, str], told: str
) -> None:
    answer = pages.post("/submit/compose", content=urlencode({**PAPERS, **changes}), headers=HTMX)
    assert answer.status_code == 200
    assert 'data-field="optimizers.0.space"' in answer.text
    assert told in answer.text
    sent = pages.post("/submit", content=urlencode({"definition": text_of(answer.text)}), headers=FORM)
    assert (sent.status_code, told in sent.text) == (422, True)


def test_another_task_brings_its_own_fields(pages: TestClient) -> None:
    filled = {
        "shown_task": "digits",
        "name": "digits-1",
        "task.name": "cifar10",
        "task.model": "mlp",
        "optimizer": "sgd",
    }
    answer = pages.post("/submit/compose", content=urlencode(filled), headers=HTMX).text
    study = yaml.safe_load(text_of(answer))
    assert study["name"].startswith("cifar10-")
    assert study["task"] == {"name": "cifar10", "model": "resnet20", "epochs": 160, "batch_size": 128}
    assert '<input type="hidden" name="shown_task" value="cifar10">' in answer


def test_faults_are_told_field_by_field(pages: TestClient) -> None:
    text = "name: a b\ntask: {name: digits, epoch: 3}\noptimizers: [{name: sgdd}]\nbudget: {trials_per_optimizer: 0}\n"
    told = said(pages, text)
    for field in ("name = ", "task.epoch = 3", "optimizers.0.name", "budget.trials_per_optimizer = 0"):
        assert field in told
    assert "did you mean 'epochs'" in told.replace("&#39;", "'")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "it must hold one object"),
        ("name: [x", "the study is not YAML: line 1"),
        (
            "a: &a [x, x]\nb: &b [*a, *a]\n" + "".join(f"c{i}: &c{i} [{', '.join(['*b'] * 9)}]\n" for i in range(3)),
            "name",
        ),
        ("x: &x [*x]", "more than 100,000 values"),
        ("name: .nan", "must be a finite number"),
        (f"name: {'9' * 30}", "64 bits"),
        ("x" * 100_001, "at most 30,000"),
        ("name: !!binary aGk=", "JSON cannot express"),
        ("name: !!python/object/apply:os.system [id]", "is not YAML"),
        ("{}", "task: is required"),
        ("[" * 3000, "is not YAML"),
    ],
)
def test_no_text_breaks_it(pages: TestClient, text: str, told: str) -> None:
    assert told in said(pages, text)


def test_few_lines_cannot_become_endless(pages: TestClient) -> None:
    lines = ["a0: &a0 [x, x]"] + [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 12)]
    assert "more than 100,000 values" in said(pages, "\n".join(lines))


def test_a_study_is_submitted_once_and_shown(pages: TestClient) -> None:
    text = "name: by-form\ntask: {name: synthetic, model: idle}\noptimizers: [{name: sgd}]\n"
    answers = [
        pages.post("/submit", content=urlencode({"definition": text}), headers=FORM, follow_redirects=False)
        for _ in range(2)
    ]
    assert [answer.status_code for answer in answers] == [303, 303]
    assert answers[0].headers["location"] == answers[1].headers["location"]
    assert "by-form" in pages.get(answers[0].headers["location"]).text
    assert "has this name already" in said(pages, text)
    pages.post("/v1/studies/by-form/cancel", headers={"Origin": ADDRESS})
    pages.delete("/v1/studies/by-form", headers={"Origin": ADDRESS})


def test_what_is_no_study_comes_back_with_its_text(pages: TestClient) -> None:
    answer = pages.post("/submit", content=urlencode({"definition": "name: <b>"}), headers=FORM)
    assert answer.status_code == 422
    assert text_of(answer.text) == "name: &lt;b&gt;"
    assert 'data-field="task"' in answer.text


def test_another_name_for_the_same_again(pages: TestClient) -> None:
    study = yaml.safe_load(text_of(pages.get("/submit?again=digits-four").text))
    assert study["name"] == "digits-four-again"
    assert study["budget"]["target"] == 0.9
    assert pages.get("/submit?again=nowhere").status_code == 404
    assert pages.get("/submit?task=nowhere").status_code == 422


def test_the_wider_space_of_a_best_value_at_its_end(api: TestClient, settings: Settings) -> None:
    at_the_edge(SqlStore(make_engine(settings.database_url)))
    page = api.get("/studies/edge", headers={"Accept": "text/html"}).text
    assert "the best lr = 0.5 lies at the upper end of its space" in page
    link = re.search(r'href="(/submit\?again=\w+&amp;wider=true)"', page)
    assert link is not None
    study = yaml.safe_load(text_of(api.get(html.unescape(link[1])).text))
    assert study["name"] == "edge-wider"
    assert study["optimizers"][1]["space"]["lr"]["high"] == 5.0


def test_a_refused_form_is_a_page(pages: TestClient) -> None:
    many = urlencode([("x", "1")] * 600)
    assert pages.post("/submit", content=many, headers=FORM).status_code == 400
    assert pages.post("/submit/compose", content="task.name=nowhere", headers=HTMX).status_code == 422
    foreign = {**FORM, "Origin": "http://elsewhere.example"}
    assert pages.post("/submit", content="definition=x", headers=foreign).status_code == 403


RICH = {
    "name": "rich",
    "description": "searched by hand",
    "task": {"name": "digits", "epochs": 7, "schedule": {"name": "multistep", "milestones": [0.4]}, "split_seed": 3},
    "optimizers": [
        {"name": "sgdm", "label": "low", "space": {"lr": {"type": "float", "low": 0.001, "high": 0.01, "log": True}}},
        {"name": "sgdm", "label": "high", "space": {"lr": {"type": "float", "low": 0.1, "high": 1.0, "log": True}}},
        {"name": "adamw"},
    ],
    "sampler": {"name": "random", "seed": 5},
    "budget": {"trials_per_optimizer": 16, "max_hours": 2.5, "target": 0.9},
    "confirm": {"top_k": 2, "seeds": [4, 5]},
    "max_concurrent_trials": 3,
    "keep_checkpoints": 1,
}


def _again(**changes: list[str]) -> StudyDefinition:
    """What the form makes of a filled-in study when the named inputs are changed."""
    old = StudyDefinition.model_validate(RICH).to_json()
    sections = [form.task_fields(tasks.registry.get("digits").config), *form.study_sections()]
    return StudyDefinition.model_validate(form.compose({**form.fill(old, sections), **changes}, sections))


def test_a_study_that_goes_through_the_form_is_the_same() -> None:
    assert _again() == StudyDefinition.model_validate(RICH)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"budget.trials_per_optimizer": ["9"]}, {"budget": {**RICH["budget"], "trials_per_optimizer": 9}}),
        ({"budget.max_hours": [""]}, {"budget": {"trials_per_optimizer": 16, "target": 0.9}}),
        ({"description": [""]}, {"description": ""}),
        ({"optimizer": ["adamw", "adam"]}, {"optimizers": [{"name": "adamw"}, {"name": "adam"}]}),
        ({"sampler.name": ["qmc"]}, {"sampler": {"name": "qmc"}}),
        ({"keep_checkpoints": ["5"]}, {"keep_checkpoints": 5}),
        ({"task.split_seed": ["0"]}, {"task": {**RICH["task"], "split_seed": 0}}),
    ],
)
def test_a_changed_field_changes_nothing_else(changes: dict[str, list[str]], expected: dict[str, Any]) -> None:
    assert _again(**changes) == StudyDefinition.model_validate({**RICH, **expected})


def test_again_fills_the_form(pages: TestClient) -> None:
    page = pages.get("/submit?again=digits-four").text
    assert re.search(r'name="budget.trials_per_optimizer" value="16"', page)
    assert re.search(r'name="budget.target" value="0.9"', page)
    assert 'name="base"' in page
    checked = re.findall(r'value="(\w+)" checked', page)
    assert sorted(checked) == ["adamw", "admetar", "admetas", "sgdm"]


@pytest.mark.parametrize("base", ["{", "[]", "1", '{"task": 1}', '{"task": {"name": "x"}, "optimizers": 3}', "\\ud800"])
def test_a_base_that_no_page_sent_is_refused(pages: TestClient, base: str) -> None:
    answer = pages.post("/submit/compose", data={"task.name": "digits", "shown_task": "digits", "base": base})
    assert answer.status_code == 400


SHORT = """name: by-hand
task: digits
optimizers:
- admetar
- {name: sgdm, label: low, space: {lr: {type: float, low: 0.001, high: 0.01, log: true}}}
- {name: adamw, space: default}
budget: {trials_per_optimizer: 9}
"""


def _shown(pages: TestClient, text: str) -> dict[str, list[str]]:
    """The form that comes back with the check of a text, as a browser sends it; empty where none comes."""
    page = pages.post("/submit/check", content=urlencode({"definition": text}), headers=HTMX).text
    found: dict[str, list[str]] = {}
    for name, value in re.findall(r'<input (?:type="hidden"|id="[^"]+") name="([^"]+)" value="([^"]*)"', page):
        found[html.unescape(name)] = [html.unescape(value)]
    for name, options in re.findall(r'<select [^>]*name="([^"]+)"[^>]*>(.*?)</select>', page, re.DOTALL):
        chosen = re.search(r'value="([^"]*)" selected', options) or re.search(r"<option selected>([^<]*)", options)
        first = re.search(r'<option(?: value="([^"]*)")?>', options)
        found[name] = [chosen[1] if chosen else (first[1] or "") if first else ""]
    found["optimizer"] = re.findall(r'name="optimizer" value="(\w+)" checked', page)
    return found if "base" in found else {}


def test_the_form_shows_a_text_written_by_hand_and_changes_one_field_of_it(pages: TestClient) -> None:
    filled = _shown(pages, SHORT)
    assert filled["budget.trials_per_optimizer"] == ["9"]
    assert filled["optimizer"] == ["adamw", "admetar", "sgdm"]
    assert filled["space.adamw"] == ["default"]
    content = urlencode({**filled, "confirm.seeds": ["7"]}, doseq=True)
    composed = yaml.safe_load(text_of(pages.post("/submit/compose", content=content, headers=HTMX).text))
    expected = {**yaml.safe_load(SHORT), "confirm": {"seeds": [7]}}
    assert StudyDefinition.model_validate(composed) == StudyDefinition.model_validate(expected)
    assert set(composed) == set(expected), "what is at its default is not written"


def test_a_text_that_the_form_cannot_show_leaves_the_form_as_it_is(pages: TestClient) -> None:
    assert _shown(pages, SHORT + "# a comment\n") == {}
    assert _shown(pages, SHORT.replace("sgdm", "sgdmm")) == {}


def test_the_own_spaces_of_a_study_are_named_in_the_form(pages: TestClient) -> None:
    page = pages.post("/submit/check", content=urlencode({"definition": SHORT}), headers=HTMX).text
    assert re.search(r"SGD with Nesterov.*?as in the text.*?in the text: low: lr \[0.001, 0.01\] log", page, re.DOTALL)


def test_an_optimizer_that_the_form_does_not_offer_stays() -> None:
    sections = [form.task_fields(tasks.registry.get("digits").config), *form.study_sections()]
    foreign = {"name": "torch.optim:NAdam", "space": {"lr": {"type": "float", "low": 0.001, "high": 0.1}}}
    filled = form.fill({**RICH, "optimizers": [foreign, {"name": "adamw"}]}, sections)
    made = form.compose({**filled, "optimizer": ["adam"]}, sections)
    assert made["optimizers"] == [foreign, {"name": "adam"}]


def test_the_form_keeps_a_searched_recipe(pages: TestClient) -> None:
    batches = {"type": "categorical", "choices": [16, 32]}
    text = yaml.safe_dump({**yaml.safe_load(SHORT), "recipe": {"batch_size": batches}})
    content = urlencode({**_shown(pages, text), "confirm.seeds": ["7"]}, doseq=True)
    composed = yaml.safe_load(text_of(pages.post("/submit/compose", content=content, headers=HTMX).text))
    assert composed["recipe"] == {"batch_size": batches}
    sections = [form.task_fields(tasks.registry.get("digits").config), *form.study_sections()]
    stored = StudyDefinition.model_validate(composed).to_json()
    again = form.compose({**form.fill(stored, sections), "space.adamw": ["finetune"]}, sections)
    (adamw,) = (one for one in StudyDefinition.model_validate(again).optimizers if one.name == "adamw")
    assert {"lr", "recipe.batch_size"} <= adamw.space.keys()


def test_a_space_by_name_is_given_up_for_the_tasks_own() -> None:
    sections = [form.task_fields(tasks.registry.get("digits").config), *form.study_sections()]
    filled = form.fill({**RICH, "optimizers": [{"name": "adamw", "space": "default"}]}, sections)
    assert filled["space.adamw"] == ["default"]
    assert form.compose({**filled, "space.adamw": [""]}, sections)["optimizers"] == [{"name": "adamw"}]


def test_another_task_keeps_what_was_changed(pages: TestClient) -> None:
    changed = {"task.epochs": "33", "task.batch_size": "64", "shown_task": "digits", "task.name": "cifar10"}
    filled = urlencode({"name": "mine", "optimizer": "adamw", **changed})
    made = yaml.safe_load(text_of(pages.post("/submit/compose", content=filled, headers=HTMX).text))
    assert made["task"]["epochs"] == 33
    assert made["task"]["batch_size"] == 128, "the default of digits was not a choice"
    assert made["name"] == "mine"


def test_another_model_brings_its_own_defaults(pages: TestClient) -> None:
    form = {"shown_task": "cifar10", "shown_model": "resnet20", "task.name": "cifar10", "task.model": "vit_tiny"}
    form |= {"task.epochs": "160", "task.batch_size": "64", "task.label_smoothing": "0.0", "objective.metric": ""}
    answer = pages.post("/submit/compose", content=urlencode({"name": "cifar10-1", **form}), headers=HTMX).text
    made = yaml.safe_load(text_of(answer))
    assert made["task"] == {"name": "cifar10", "model": "vit_tiny", "epochs": 100, "batch_size": 64}
    assert made["name"] == "cifar10-1"
    assert '<input type="hidden" name="shown_model" value="vit_tiny">' in answer
    assert 'name="task.epochs" value="100"' in answer
    assert 'name="task.label_smoothing" value="0.1"' in answer


def test_models_that_a_form_names_take_no_memory() -> None:
    """A form may send any text as its model, again and again."""
    section = weakref.ref(form.task_fields(tasks.registry.get("cifar10").config, "no such model"))
    gc.collect()
    assert section() is None


def test_what_a_text_states_stays_with_another_model(pages: TestClient) -> None:
    stated = {"name": "mine", "task": {"name": "cifar10", "epochs": 160}, "optimizers": [{"name": "adamw"}]}
    form = {"base": json.dumps(stated), "shown_task": "cifar10", "shown_model": "resnet20", "task.name": "cifar10"}
    form |= {"name": "mine", "task.model": "vit_tiny", "task.epochs": "160", "optimizer": "adamw"}
    made = yaml.safe_load(text_of(pages.post("/submit/compose", content=urlencode(form), headers=HTMX).text))
    assert (made["task"]["model"], made["task"]["epochs"]) == ("vit_tiny", 160)


def test_a_refused_study_comes_back_with_text_and_form(pages: TestClient) -> None:
    taken = SHORT.replace("by-hand", "digits-four")
    answer = pages.post("/submit", content=urlencode({"definition": taken}), headers=FORM)
    assert answer.status_code == 409
    assert text_of(answer.text).strip() == html.escape(taken.strip(), quote=False)
    assert "exists with another definition" in answer.text
    assert 'name="budget.trials_per_optimizer" value="9"' in answer.text
    assert "data-unsaved" in answer.text
