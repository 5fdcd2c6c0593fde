"""Every page and its data without a browser: what it says, what it refuses, and that nothing foreign gets in."""

from __future__ import annotations

import csv
import hashlib
import io
import re
from dataclasses import replace
from importlib import resources
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import event

from admeta.client import terminal
from admeta.client.terminal.tables import studies
from search.records import RunOutcome
from search.states import FailureKind, RunState, Scope, Stage, StudyState
from service.app import create_app
from service.dashboard.pages import in_page_words
from service.database import SqlStore, queries
from service.database.engine import make_engine
from service.database.tokens import create_token
from service.settings import Settings
from tests.service.database.fill import definition, leased, run
from tests.service.fakes import ADDRESS, FakeSupervisor, settings_in

PAGES = [
    "/",
    "/studies/digits-four",
    "/studies/digits-four/searches/admetar",
    "/studies/digits-four/trials/sgdm/10",
    "/studies/digits-four/trials/admetar/7",
    "/studies/ladder",
    "/studies/running",
    "/studies/waiting",
    "/studies/waiting/searches/sgdm",
    "/studies/broken",
    "/compare?study=digits-four&study=running&study=cifar10-resnet110",
    "/results",
    "/profiles",
    "/explorer",
    "/submit",
    "/cluster",
]


@pytest.mark.parametrize("path", PAGES)
def test_a_page_has_no_script_or_style_of_its_own_and_escapes_what_it_shows(pages: TestClient, path: str) -> None:
    page = pages.get(path)
    assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert "unsafe" not in page.headers["content-security-policy"]
    assert "<img" not in page.text
    assert not re.search(r"<style|\sstyle=|<script(?! defer src=\"/assets/)|\son\w+=\"|https?://", page.text)


def test_a_page_that_the_browser_has_keeps_its_policy(pages: TestClient) -> None:
    tag = pages.get("/studies/digits-four").headers["etag"]
    again = pages.get("/studies/digits-four", headers={"If-None-Match": tag})
    assert again.status_code == 304
    assert "content-security-policy" not in again.headers


def test_hostile_text_is_shown_as_text(pages: TestClient) -> None:
    for path in ("/studies/broken", "/studies/digits-four/trials/sgdm/10"):
        assert "&lt;img src=x onerror=alert(1)&gt; {{ 7 * 7 }}" in pages.get(path).text


def test_the_ranking_says_who_leads_and_how_sure(pages: TestClient) -> None:
    text = pages.get("/studies/digits-four").text
    first, *_ = re.findall(r'class="label c\d" href="[^"]*">(\w+)<', text)
    assert first == "admetar"
    assert "0.9553 ± 0.003" in text
    assert "behind, p = " in text


def test_overview_filters(pages: TestClient) -> None:
    def names(query: str) -> list[str]:
        return re.findall(r'<h2><a href="/studies/\w+">([^<]+)<', pages.get(f"/?{query}").text)

    assert names("q=DIGITS&state=&task=&optimizer=") == ["digits-four"]
    assert names("state=QUEUED") == ["waiting"]
    assert names("optimizer=adamw") == ["ladder", "digits-four"]
    assert len(names("")) == 6
    assert "No study fits these filters" in pages.get("/?q=%25").text


def test_an_empty_service_says_what_to_do(api: TestClient) -> None:
    assert "admeta submit" in api.get("/").text


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/studies/nowhere", 404),
        ("/studies/digits-four/searches/nowhere", 404),
        ("/studies/digits-four/trials/sgdm/99", 404),
        ("/studies/digits-four/trials/sgdm/x", 422),
        ("/?state=SLEEPING", 422),
        ("/?cursor=%3Cimg%3E", 422),
        ("/assets/nowhere.js", 404),
        ("/assets/..%2froutes.py", 404),
        ("/%3Cimg%20src=x%3E", 404),
    ],
)
def test_refusals_are_pages_for_people_and_json_for_programs(pages: TestClient, path: str, status: int) -> None:
    page = pages.get(path)
    assert (page.status_code, page.headers["content-type"]) == (status, "text/html; charset=utf-8")
    assert "<img" not in page.text
    assert page.headers.get("content-encoding") == "gzip" or int(page.headers["content-length"]) == len(page.content)
    assert pages.get(path, headers={"Accept": "*/*"}).json()["hint"]


def test_where_tokens_are_needed_every_page_asks_for_one(settings: Settings) -> None:
    app = create_app(replace(settings, require_token=True), supervisor=FakeSupervisor())
    with TestClient(app, base_url="http://search.example.org", headers={"Accept": "text/html"}) as door:
        for path in ("/", "/studies/x", "/assets/live.js"):
            assert door.get(path).status_code == 401, path
        assert door.get("/studies/x/curves.json", headers={"Accept": "*/*"}).json()["error"] == "token_missing"


def test_curves_by_hand(pages: TestClient) -> None:
    found = pages.get("/studies/digits-four/curves.json").json()
    assert found["x"] == [float(epoch) for epoch in range(1, 13)]
    assert found["metrics"] == ["val_accuracy", "train_loss", "val_loss"]
    best = found["series"][0]
    assert (best["label"], best["n_runs"]) == ("admetar", 3)
    confirm = pages.get("/studies/digits-four/trials/admetar/7/runs.json").json()[1:]
    assert best["median"][-1] == sorted(run["value"][-1] for run in confirm)[1]
    assert best["low"][-1] < best["median"][-1] < best["high"][-1]


def test_curves_before_anything_is_confirmed_are_those_of_the_search(pages: TestClient) -> None:
    (admetar, _) = pages.get("/studies/running/curves.json").json()["series"]
    assert (admetar["n_runs"], admetar["median"][-1]) == (1, 0.9)


def test_curves_by_other_axes_and_metrics(pages: TestClient) -> None:
    found = pages.get("/studies/digits-four/curves.json?runs=all&axis=seconds&metric=val_loss").json()
    assert (found["axis"], found["metric"]) == ("seconds", "val_loss")
    assert [one["n_runs"] for one in found["series"]] == [12] * 4
    assert all(len(one["median"]) == len(found["x"]) <= 200 for one in found["series"])
    assert pages.get("/studies/waiting/curves.json").json()["x"] == []


@pytest.mark.parametrize(
    ("path", "n_rows"),
    [
        ("curves.csv", 4 * 12),
        ("expected.csv", 4 * 16),
        ("searches/admetar/history.csv", 16),
        ("trials/admetar/7/runs.csv", 4 * 12),
    ],
)
def test_data_as_csv(pages: TestClient, path: str, n_rows: int) -> None:
    answer = pages.get(f"/studies/digits-four/{path}")
    assert "attachment" in answer.headers["content-disposition"]
    assert len(list(csv.DictReader(io.StringIO(answer.text)))) == n_rows


def test_a_trial_with_more_runs_needs_no_more_queries(pages: TestClient) -> None:
    counts = [0]
    event.listen(pages.app.state.engine, "before_cursor_execute", lambda *_: counts.append(counts.pop() + 1))  # type: ignore[attr-defined]
    found = []
    for trial in ("admetar/7", "admetar/1"):  # of four runs, and of one
        before = counts[0]
        assert pages.get(f"/studies/digits-four/trials/{trial}/runs.json").status_code == 200
        found.append(counts[0] - before)
    assert found[0] <= found[1] + 1


def test_history_knows_pruned_trials_and_the_running_best(pages: TestClient) -> None:
    found = pages.get("/studies/digits-four/searches/admetar/history.json").json()
    assert [found["state"][n] for n in (3, 7, 10)] == ["PRUNED", "COMPLETE", "FAIL"]
    assert found["best"][-1] == max(v for v, s in zip(found["value"], found["state"], strict=True) if s == "COMPLETE")
    assert sorted(found["params"]) == ["lambd", "lr"]


def test_assets_are_kept_by_version(pages: TestClient) -> None:
    for address in re.findall(r'"(/assets/[^"]+)"', pages.get("/studies/digits-four").text):
        assert "immutable" in pages.get(address).headers["cache-control"]
        assert pages.get(address.split("?")[0]).headers["cache-control"] == "no-cache"


def test_vendored_files_are_what_their_list_says() -> None:
    folder = Path(str(resources.files("service.dashboard"))) / "static/vendor"
    listed = dict(re.findall(r"^\| `(\S+)` .*`([0-9a-f]{64})` \|$", (folder / "VENDORED.md").read_text(), re.MULTILINE))
    there = {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in folder.iterdir() if p.name != "VENDORED.md"}
    assert listed == there


def test_a_studys_page_tells_what_the_study_is(pages: TestClient) -> None:
    text = re.sub(r"<[^>]+>", " ", pages.get("/studies/digits-four").text)
    for told in ("20 epochs, batches of 64", "sampler tpe (seed=0", "pruner asha", "64 of 64 trials used"):
        assert told in text
    assert "trained with seed 100, the best trial of each optimizer again with seeds 0 1 2" in text
    assert "a search ends when val_accuracy reaches 0.9" in text
    assert "1 CPU a trial" in text
    assert "lr [0.003, 0.1] log" in text, "the search space of admetar"


def test_a_search_whose_trials_all_failed_is_told_with_its_log(pages: TestClient, filled_home: Path) -> None:
    engine = make_engine(settings_in(filled_home).database_url)
    store = SqlStore(engine)
    lease, (search, _) = leased(store, definition("all-failed"))
    outcome = RunOutcome(state=RunState.FAIL, failure=FailureKind.DIVERGED, error="Traceback\nError: loss is NaN")
    for number in range(2):
        run(store, lease, search, number, outcome)
    store.set_study_state(lease, StudyState.FAILED)
    engine.dispose()
    text = pages.get("/studies/all-failed").text
    assert "All trials of admetar failed." in text
    assert "Error: loss is NaN" in text
    assert re.search(r"/trials/admetar/1#log", text)


def test_pages_and_tables_show_what_a_warm_start_took(
    api: TestClient, settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    store = SqlStore(make_engine(settings.database_url))
    lease, (admetar, _) = leased(store, definition("warm", warm_start={"from": "everything"}))
    source = {"study": "earlier", "label": "admetar", "trial": 3}
    key = {"trial_number": 0, "stage": Stage.SEARCH, "seed": 100, "params": {"lr": 0.1}}
    store.create_run(lease, admetar.id, taken_from=[source, {**source, "trial": 4}], **key)
    for path in ("/studies/warm", "/studies/warm/searches/admetar"):
        shown = re.sub(r"<[^>]+>", "", api.get(path, headers={"Accept": "text/html"}).text)
        assert "1 from earlier studies" in shown
    trial = api.get("/studies/warm/trials/admetar/0", headers={"Accept": "text/html"}).text
    assert "By the warm start taken from earlier/admetar/3, near earlier/admetar/4" in trial
    terminal.console().print(studies.searches(queries.get_study_view(store.engine, "warm")))
    terminal.console().print(studies.trial_list(queries.list_trials(store.engine, "warm").items, metric="value"))
    searched, listed = capsys.readouterr().out.split("trial ", 1)
    assert "0/4, 1 from earlier studies" in searched
    assert re.split(r"  +", listed.splitlines()[1].strip())[-2:] == [
        "taken from earlier/admetar/3, near earlier/admetar/4",
        "lr=0.1",
    ]


def test_pages_show_a_recipe_that_was_searched(api: TestClient, settings: Settings) -> None:
    batches = {"type": "categorical", "choices": [16, 32]}
    study = definition("own", recipe={"batch_size": batches, "weight_decay_on": {**batches, "choices": ["matrices"]}})
    store = SqlStore(make_engine(settings.database_url))
    lease, (admetar, _) = leased(store, study)
    drawn = {"lr": 0.1, "lambd": 0.1, "recipe.batch_size": 16, "recipe.weight_decay_on": "matrices"}
    run(store, lease, admetar, 0, RunOutcome(state=RunState.COMPLETE, value=0.9), params=drawn)

    def page(path: str) -> str:
        return api.get(path, headers={"Accept": "text/html"}).text

    shown = page("/studies/own")
    assert "Each optimizer has its own batch_size, weight_decay_on. A verdict compares optimizers together" in shown
    assert "20 epochs, cosine schedule, each optimizer&#39;s own batch_size, weight_decay_on" in shown
    assert re.search(r'data-name="Best settings"><a [^>]*>[^<]*recipe.batch_size=16', shown)
    trial = page("/studies/own/trials/admetar/0")
    assert re.search(r"recipe.<wbr>batch_<wbr>size</th><td [^>]*>16</td><td [^>]*>searched<", trial)
    assert re.search(r'id="task-yaml">task:\n  name: digits\n.*\n  batch_size: 16\n', trial, re.DOTALL)
    assert "weight_decay_on=&#39;matrices&#39;" in trial
    assert "batch_size=16" in page("/results")


def test_the_buttons_of_a_study(pages: TestClient) -> None:
    raw = definition("by-buttons").to_json()
    raw["budget"]["max_hours"] = 1.5
    study = pages.post("/v1/studies", json=raw).json()["id"]
    for action, state in [("pause", "PAUSED"), ("resume", "QUEUED"), ("resume", "QUEUED"), ("cancel", "CANCELLED")]:
        answer = pages.post(f"/studies/{study}/{action}", follow_redirects=False)
        assert (answer.status_code, answer.headers["location"]) == (303, f"/studies/{study}")
        assert pages.get(f"/v1/studies/{study}").json()["state"] == state
    text = pages.get(f"/studies/{study}").text
    assert 'name="trials" min="4" max="100000" value="4"' in text
    assert "<option>adan</option>" in text
    assert "<option>sgdm</option>" not in text
    assert 'name="max_hours" min="1.5" step="any" value="1.5"' in text
    asked = {"trials": "6", "seeds": "3", "optimizer": "adan", "max_hours": "1.5"}
    assert pages.post(f"/studies/{study}/extend", data=asked, follow_redirects=False).status_code == 303
    assert "CANCELLED: 6 trials of each optimizer, before 4; adan added" in pages.get(f"/studies/{study}").text
    refused = pages.post(f"/studies/{study}/extend", data={"trials": "7"})
    assert (refused.status_code, "Wait for its end, or cancel it: what has finished is kept" in refused.text) == (
        409,
        True,
    )
    pages.post(f"/studies/{study}/cancel")
    refused = pages.post(f"/studies/{study}/extend", data={"trials": "two"})
    assert (refused.status_code, "trials" in refused.text) == (422, True)
    pages.post(f"/studies/{study}/annotate", data={"notes": "too high\r\nby far", "tags": "a, b"})
    view = pages.get(f"/v1/studies/{study}").json()
    assert (view["notes"], view["tags"]) == ("too high\nby far", ["a", "b"])
    assert "by-buttons" in pages.get("/?tag=b").text
    refused = pages.post(f"/studies/{study}/annotate", data={"tags": "n/o"})
    assert (refused.status_code, refused.headers["content-type"]) == (422, "text/html; charset=utf-8")
    assert "tags.0" in refused.text
    assert pages.post(f"/studies/{study}/rename").status_code == 422
    refused = pages.post("/studies/waiting/delete")
    assert refused.status_code == 409
    assert "Cancel it first." in refused.text
    assert pages.post(f"/studies/{study}/delete", follow_redirects=False).headers["location"] == "/"
    assert pages.get(f"/studies/{study}").status_code == 404


def test_who_may_only_read_sees_no_buttons(filled_home: Path) -> None:
    settings = replace(settings_in(filled_home), require_token=True)
    engine = make_engine(settings.database_url)
    tokens = {scope: create_token(engine, name="page", scope=scope).token for scope in (Scope.READ, Scope.WRITE)}
    engine.dispose()
    with TestClient(create_app(settings, supervisor=FakeSupervisor()), base_url=ADDRESS) as client:
        for scope, token in tokens.items():
            headers = {"Accept": "text/html", "Authorization": f"Bearer {token}"}
            page = client.get("/studies/waiting", headers=headers).text
            assert ('action="/studies' in page) is (scope is Scope.WRITE)
            for path in ("/", "/studies/digits-four", "/cluster"):
                page = client.get(path, headers=headers).text
                assert (">New study<" in page, "Again, with" in page) == (
                    scope is Scope.WRITE,
                    scope is Scope.WRITE and path == "/studies/digits-four",
                )
            assert ('id="send"' in client.get("/submit", headers=headers).text) is (scope is Scope.WRITE)
            assert client.post("/studies/waiting/resume", headers=headers, follow_redirects=False).status_code == (
                303 if scope is Scope.WRITE else 403
            )


def test_an_error_as_a_page_names_no_address_of_the_api(pages: TestClient) -> None:
    page = pages.get("/studies/digits-four/trials/admetar/999")
    assert page.status_code == 404
    assert "/v1/" not in page.text
    assert "The list of studies leads to all of them." in page.text


def test_a_finished_bar_is_full(pages: TestClient) -> None:
    """A search that its budget ended early has run all that it will."""
    page = pages.get("/studies/cifar10-resnet110").text
    assert '<rect class="complete" x="0" width="100.0%"' in page


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/studies/nowhere", 404),
        ("/studies/digits-four/searches/nothing", 404),
        ("/studies/digits-four/trials/sgdm/99", 404),
        ("/nowhere", 404),
        ("/submit?task=nothing", 422),
        ("/submit?again=nothing", 404),
        ("/?state=nothing", 422),
        ("/?cursor=nothing", 422),
        ("/profiles?time=nothing", 422),
    ],
)
def test_messages_of_pages_name_no_addresses_of_the_api(pages: TestClient, path: str, status: int) -> None:
    answer = pages.get(path)
    assert answer.status_code == status
    assert not re.search(r"/v1/|/docs|next_cursor", re.sub(r'="[^"]*"', "", answer.text))


def test_a_message_in_page_words_keeps_what_a_page_can_use() -> None:
    rule = "must be a task's name, or an object with at least a 'name'; GET /v1/tasks lists the tasks"
    assert in_page_words(rule) == "must be a task's name, or an object with at least a 'name'"
    assert in_page_words("Correct it. GET /v1/optimizers lists them. Or ask.") == "Correct it. Or ask."


def test_a_trial_that_stands_for_its_optimizer_tells_the_verdicts_on_it(pages: TestClient) -> None:
    comparison = pages.get("/v1/studies/digits-four/comparison", headers={"Accept": "application/json"}).json()
    first = comparison["rows"][0]
    page = pages.get(f"/studies/digits-four/trials/{first['label']}/{first['trial']}").text
    for pair in comparison["pairs"]:
        assert (f"<li>{pair['sentence']}.</li>" in page) is (first["label"] in (pair["a"], pair["b"]))
    other = next(number for number in range(3) if number != first["trial"])
    assert " is better than " not in pages.get(f"/studies/digits-four/trials/{first['label']}/{other}").text


def test_charts_are_drawn_after_what_they_draw_with_is_loaded() -> None:
    """Data that came at once found no Svg: the figure of the mean ranks stayed empty, on a busy machine only."""
    head = (resources.files("service.dashboard") / "templates" / "parts.html").read_text(encoding="utf-8")
    assert head.index("uPlot.js") < head.index("svg.js") < head.index("'charts.js'")
