# Generated from admeta/client/asynchronous/client.py by `make client`; edit that file.
"""The client's methods: one for each request of the REST API, and a few that follow a study or a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Any, Self, TypedDict, Unpack

import httpx

from admeta.client.blocking.connection import (
    Connection,
    Following,
    Items,
    wait_for_end,
)
from admeta.client.errors import ClientError
from admeta.client.exchange import Request, ask, change, check, create, get, parse, part
from admeta.client.models import (
    BestView,
    ClusterView,
    ComparisonView,
    HealthView,
    ImportanceView,
    NewTokenView,
    OptimizerView,
    PaperStudyView,
    PaperTableCellsView,
    PaperTableView,
    ParetoView,
    PointView,
    ProfilesView,
    RecommendationView,
    ScaleView,
    SensitivityView,
    StudiesComparisonView,
    StudyRunView,
    StudyView,
    TaskView,
    TokenView,
    TrialView,
    VersionView,
)

if TYPE_CHECKING:
    from search.definition import StudyDefinition


class WaitOptions(TypedDict, total=False):
    """Options of `wait`, which documents them."""

    progress: bool
    poll_s: float
    timeout_s: float | None
    retry_timeout_s: float
    on_update: Callable[[StudyView], None] | None
    on_absence: Callable[[ClientError], None] | None


class Client(Following):
    """A connection to a service. A request that is safe to send twice is sent again when the connection breaks.

    Args:
        url: the service's address; default: ADMETA_URL, else http://127.0.0.1:8000.
        token: an access token; default: ADMETA_TOKEN, else none.
        timeout_s: longest wait for the answer to one request, in seconds.
        transport: another way to send requests, for tests.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        token: str | None = None,
        timeout_s: float = 30.0,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self._connection = Connection(url, token=token, timeout_s=timeout_s, transport=transport)
        self.url = self._connection.route.url

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._connection.close()

    def submit(
        self,
        definition: StudyDefinition | Mapping[str, Any],
        *,
        space: str | None = None,
        idempotency_key: str | None = None,
    ) -> Submission:
        """Submit a study. The same definition again returns the existing study.

        Args:
            definition: a study definition, or the same as JSON values.
            space: named search space of every optimizer that names none; `paper-best`: start with the paper's best
                settings.
            idempotency_key: the service answers a key that it has seen as it did before. Default: a new key for this
                call and its repetitions.

        Raises:
            ClientError: 422 for a definition that breaks a rule (see `fields`), 409 for a name that is taken.
        """
        body = definition if isinstance(definition, Mapping) else definition.to_json()
        return self._submit("/v1/studies", body, idempotency_key, {"space": space})

    def clone(
        self, study: str, name: str, *, changes: Mapping[str, Any] | None = None, idempotency_key: str | None = None
    ) -> Submission:
        """Submit a study's definition under another name.

        Args:
            study: id or name of the study to start from.
            name: name of the new study.
            changes: a JSON Merge Patch: objects are merged key by key, None restores a default, lists are replaced.
            idempotency_key: as for `submit`.

        Raises:
            ClientError: as for `submit`.
        """
        body = {"name": name, "changes": dict(changes or {})}
        return self._submit(f"/v1/studies/{part(study)}/clone", body, idempotency_key)

    def studies(
        self,
        *,
        name: str | None = None,
        state: str | None = None,
        task: str | None = None,
        optimizer: str | None = None,
        tag: str | None = None,
        limit: int | None = None,
    ) -> Items[StudyView]:
        """Studies, newest first.

        Args:
            name: only those whose name contains this text; case does not matter.
            state: only in this state, for example RUNNING.
            task: only of this task.
            optimizer: only those that search this optimizer.
            tag: only those with this tag.
            limit: at most this many; None: all.
        """
        query = {"name": name, "state": state, "task": task, "optimizer": optimizer, "tag": tag}
        return self._connection.read_pages(StudyView, "/v1/studies", query=query, limit=limit)

    def study(self, study: str) -> StudyView:
        """A study by id or name, with its definition."""
        return self._connection.read(StudyView, get(f"/v1/studies/{part(study)}"))

    def annotate(self, study: str, *, notes: str | None = None, tags: Sequence[str] | None = None) -> StudyView:
        """Change a study's notes and tags.

        Args:
            study: id or name.
            notes: replaces the notes; None: they stay.
            tags: replace the tags; None: they stay.

        Raises:
            ClientError: 422 for a tag that is not a short word of letters, digits and . _ : -
        """
        changes = {"notes": notes, "tags": None if tags is None else list(tags)}
        body = {name: value for name, value in changes.items() if value is not None}
        return self._connection.read(StudyView, change("PATCH", f"/v1/studies/{part(study)}", body))

    def cancel(self, study: str) -> StudyView:
        """Cancel a study: running trials are stopped, finished ones are kept.

        Raises:
            ClientError: 409 when it has already ended.
        """
        return self._connection.read(StudyView, change("POST", f"/v1/studies/{part(study)}/cancel"))

    def pause(self, study: str) -> StudyView:
        """Pause a study: running trials are checkpointed and stopped.

        Raises:
            ClientError: 409 unless it is QUEUED or RUNNING.
        """
        return self._connection.read(StudyView, change("POST", f"/v1/studies/{part(study)}/pause"))

    def resume(self, study: str) -> StudyView:
        """Resume a paused study.

        Raises:
            ClientError: 409 unless it is PAUSED.
        """
        return self._connection.read(StudyView, change("POST", f"/v1/studies/{part(study)}/resume"))

    def extend(
        self,
        study: str,
        *,
        trials: int | None = None,
        trials_of: Mapping[str, int] | None = None,
        seeds: int | None = None,
        optimizers: Sequence[Mapping[str, Any] | str] = (),
        limits: Mapping[str, float | None] | None = None,
        idempotency_key: str | None = None,
    ) -> StudyView:
        """Let a study that has ended go on. Numbers are totals, so that the same call again changes nothing more.

        Args:
            study: id or name.
            trials: of each optimizer.
            trials_of: of some, by label; the comparison then says that budgets are unequal.
            seeds: confirm seeds of each optimizer; with `until: decided` the most that one may have.
            optimizers: to add, as in a study's definition.
            limits: of the budget, in place of the present ones, by name; None: no limit.
            idempotency_key: as for `submit`.

        Returns:
            The study, QUEUED; as it was, where nothing more is asked for.

        Raises:
            ClientError: 409 until it has ended and its last run has stopped, 422 for a number below the present one.
        """
        asked = {
            "trials": trials,
            "trials_of": dict(trials_of or {}),
            "seeds": seeds,
            "optimizers": list(optimizers),
            "limits": dict(limits or {}),
        }
        path = f"/v1/studies/{part(study)}/extend"
        return self._connection.read(StudyView, create(path, asked, idempotency_key=idempotency_key))

    def delete(self, study: str) -> None:
        """Delete a study that has ended, with all its results and checkpoints.

        Raises:
            ClientError: 409 until it has ended and its last run has stopped.
        """
        self._connection.send(change("DELETE", f"/v1/studies/{part(study)}"))

    def wait(
        self,
        study: str,
        *,
        progress: bool = False,
        poll_s: float = 1.0,
        timeout_s: float | None = None,
        retry_timeout_s: float = 600.0,
        on_update: Callable[[StudyView], None] | None = None,
        on_absence: Callable[[ClientError], None] | None = None,
    ) -> StudyView:
        """Wait for a study to end: COMPLETED, FAILED or CANCELLED.

        Args:
            study: id or name.
            progress: show a progress bar for each optimizer on stderr, or lines where stderr is not a terminal.
            poll_s: seconds between two requests.
            timeout_s: longest wait for the end of the study, in seconds; None: no limit.
            retry_timeout_s: longest time, in seconds, that the service may be unreachable after it has answered once.
            on_update: called with the study whenever it has changed.
            on_absence: called with the error when the service stops answering, once for each absence.

        Returns:
            The study as it is after its end.

        Raises:
            TimeoutError: the study has not ended in time.
            ClientError: the service refused, or was unreachable for too long.
        """
        updates = [on_update] if on_update else []
        absences = [on_absence] if on_absence else []
        with ExitStack() as stack:
            if progress:
                from admeta.client.terminal.progress import shown

                display = stack.enter_context(shown())
                updates.insert(0, display.show)
                absences.insert(0, display.away)
            return wait_for_end(
                self._connection,
                study,
                poll_s=poll_s,
                timeout_s=timeout_s,
                retry_timeout_s=retry_timeout_s,
                on_update=updates,
                on_absence=absences,
            )

    def trials(
        self,
        study: str,
        *,
        label: str | None = None,
        state: str | None = None,
        order: str | None = None,
        limit: int | None = None,
    ) -> Items[TrialView]:
        """Trials of a study with their runs.

        Args:
            study: id or name.
            label: only of this optimizer's search.
            state: only in this state, for example COMPLETE.
            order: number, or best: best validation value first.
            limit: at most this many; None: all.
        """
        query = {"label": label, "state": state, "order": order}
        return self._connection.read_pages(TrialView, f"/v1/studies/{part(study)}/trials", query=query, limit=limit)

    def trial(self, study: str, label: str, number: int) -> TrialView:
        """One trial, with its curve."""
        return self._connection.read(TrialView, get(_trial(study, label, number)))

    def cancel_trial(self, study: str, label: str, number: int) -> TrialView:
        """Cancel one trial; the study continues without it.

        Raises:
            ClientError: 409 when none of its runs is waiting or training.
        """
        return self._connection.read(TrialView, change("POST", f"{_trial(study, label, number)}/cancel"))

    def runs(
        self,
        study: str,
        *,
        label: str | None = None,
        trial: int | None = None,
        stage: str | None = None,
        state: str | None = None,
        failure: str | None = None,
        order: str | None = None,
        limit: int | None = None,
    ) -> Items[StudyRunView]:
        """Runs of a study, of all stages.

        Args:
            study: id or name.
            label: only of this optimizer's search.
            trial: only of trials with this number.
            stage: search, confirm or sensitivity.
            state: only in this state, for example RUNNING.
            failure: only those with this failure, for example diverged.
            order: id: in the order of their creation; best: best validation value first.
            limit: at most this many; None: all.
        """
        query = {"label": label, "trial": trial, "stage": stage, "state": state, "failure": failure, "order": order}
        return self._connection.read_pages(StudyRunView, f"/v1/studies/{part(study)}/runs", query=query, limit=limit)

    def run(self, run: int) -> StudyRunView:
        """One run with its attempts, by its id."""
        return self._connection.read(StudyRunView, get(f"/v1/runs/{run}"))

    def curve(self, run: int) -> list[PointView]:
        """The evaluations of a run, in their order."""
        return self._connection.read_list(PointView, get(f"/v1/runs/{run}/curve"))

    def comparison(self, study: str, *, test: str | None = None) -> ComparisonView:
        """The optimizers of a study, best first.

        Args:
            study: id or name.
            test: moderated (the default), welch, or wilcoxon on runs paired by seed.
        """
        return self._connection.read(ComparisonView, get(f"/v1/studies/{part(study)}/comparison", {"test": test}))

    def compare(self, studies: Sequence[str], *, test: str | None = None) -> StudiesComparisonView:
        """Two to eight studies side by side: their results, how their definitions differ, and verdicts between them.

        Args:
            studies: ids or names.
            test: as for `comparison`.
        """
        query = {"study": list(studies), "test": test}
        return self._connection.read(StudiesComparisonView, get("/v1/comparison", query))

    def importance(self, study: str, *, method: str | None = None) -> list[ImportanceView]:
        """How much each searched parameter mattered, for each optimizer's search."""
        return self._connection.read_list(
            ImportanceView, get(f"/v1/studies/{part(study)}/importance", {"method": method})
        )

    def scale(self, study: str) -> ScaleView:
        """The best settings over the sizes of a study with `scale`, their prediction, and speed-ups over one optimizer.

        Args:
            study: id or name.
        """
        return self._connection.read(ScaleView, get(f"/v1/studies/{part(study)}/scale"))

    def sensitivity(
        self,
        study: str,
        *,
        parameter: str | None = None,
        within: float | None = None,
        margin: float | None = None,
    ) -> SensitivityView:
        """How much each optimizer's result depends on one parameter around its chosen value.

        `to_dataframe(sensitivity.curves)` has a row for each search, and `to_dataframe(sensitivity.curves[0].points)`
        one for each value of the parameter.

        Args:
            study: id or name.
            parameter: default: the one that the study's definition names, or else lr.
            within: tolerance as a share of the absolute value of the best result; default: 0.01.
            margin: tolerance in the metric's unit, in its place.
        """
        query = {"parameter": parameter, "within": within, "margin": margin}
        return self._connection.read(SensitivityView, get(f"/v1/studies/{part(study)}/sensitivity", query))

    def pareto(self, study: str, *, objectives: Sequence[str] = ()) -> ParetoView:
        """The Pareto front of each optimizer of a study, by its metric and by what else a trial is judged by.

        `to_dataframe(pareto.fronts[0].trials)` has a row for each complete trial.

        Args:
            study: id or name.
            objectives: costs of a run, such as train_s or peak_memory_bytes, or other metrics; default: what the study
                was searched for, or else train_s.
        """
        query = {"objective": list(objectives)}
        return self._connection.read(ParetoView, get(f"/v1/studies/{part(study)}/pareto", query))

    def export(self, study: str, file: IO[bytes], *, form: str = "csv") -> None:
        """Write a study's results to a file as csv, json, parquet, latex or markdown, while they are received.

        Raises:
            ClientError: the service refused, or the connection broke; the file then has a part of the results.
        """
        with self._connection.stream(get(f"/v1/studies/{part(study)}/export", {"format": form})) as response:
            for chunk in response.iter_bytes():
                file.write(chunk)

    def best(
        self,
        *,
        task: str,
        optimizer: str,
        model: str | None = None,
        metric: str | None = None,
        recipe: str | None = None,
    ) -> BestView:
        """The best known settings for a task and an optimizer: `AdmetaR(model.parameters(), **best.params)`.

        Args:
            task: a task's name.
            optimizer: an optimizer's name.
            model: only studies of this model.
            metric: default: the task's own.
            recipe: only studies of this recipe, a hash or its beginning. Default: the recipe with most epochs.

        Raises:
            ClientError: 404 (`no_result`) where no trial of the optimizer on the task has finished yet.
        """
        query = {"task": task, "optimizer": optimizer, "model": model, "metric": metric, "recipe": recipe}
        return self._connection.read(BestView, get("/v1/best", query))

    def recommend(
        self, *, task: str | Mapping[str, Any], model: str | None = None, gpu_hours: float = 0.0
    ) -> RecommendationView:
        """Which optimizer, settings and recipe to use now, how sure that is, and what hours are best spent on.

        `submit(found.plan)` spends them so, where there is a plan.

        Args:
            task: a task's name, or the task as in a study's definition.
            model: default: the task's own.
            gpu_hours: that could be spent before the settings are used.
        """
        asked = {"task": task if isinstance(task, str) else dict(task), "model": model, "gpu_hours": gpu_hours}
        return self._connection.read(RecommendationView, ask("/v1/recommend", asked))

    def profiles(
        self,
        *,
        studies: Sequence[str] = (),
        recipes: Sequence[str] = (),
        tasks: Sequence[str] = (),
        tag: str | None = None,
        optimizers: Sequence[str] = (),
        time: str | None = None,
    ) -> ProfilesView:
        """Optimizers compared across tasks, by recipe: performance profiles, and mean ranks with Friedman's test.

        `to_dataframe(profiles.results)` has a row for each task and optimizer.

        Args:
            studies: only these, by id or name.
            recipes: only these, by hash or its beginning.
            tasks: only these.
            tag: only studies with this tag.
            optimizers: compare these, by their names in an answer. Default: those with most results.
            time: what the time to a target is counted in, seconds (default) or steps.

        Raises:
            ClientError: 404 for a study, recipe or optimizer that is not there.
        """
        query = {
            "study": list(studies),
            "recipe": list(recipes),
            "task": list(tasks),
            "tag": tag,
            "optimizer": list(optimizers),
            "time": time,
        }
        return self._connection.read(ProfilesView, get("/v1/profiles", query))

    def tasks(self) -> list[TaskView]:
        """The tasks that a study can name."""
        return self._connection.read_list(TaskView, get("/v1/tasks"))

    def task(self, name: str) -> TaskView:
        """One task: its models, metrics, and the schema of a study's `task`."""
        return self._connection.read(TaskView, get(f"/v1/tasks/{part(name)}"))

    def optimizers(self) -> list[OptimizerView]:
        """The optimizers that a study can name."""
        return self._connection.read_list(OptimizerView, get("/v1/optimizers"))

    def optimizer(self, name: str) -> OptimizerView:
        """One optimizer: its parameters, rules, defaults and search spaces."""
        return self._connection.read(OptimizerView, get(f"/v1/optimizers/{part(name)}"))

    def paper_tables(self) -> list[PaperTableView]:
        """The paper's result tables, and for how many of their numbers the service has one of its own."""
        return self._connection.read_list(PaperTableView, get("/v1/paper/tables"))

    def paper_table(self, name: str) -> PaperTableCellsView:
        """One of the paper's tables, cell by cell: its number, ours, and the difference."""
        return self._connection.read(PaperTableCellsView, get(f"/v1/paper/tables/{part(name)}"))

    def paper_studies(self) -> list[PaperStudyView]:
        """The studies that measure what the paper's tables report."""
        return self._connection.read_list(PaperStudyView, get("/v1/paper/studies"))

    def paper_study(self, name: str, *, form: str = "full") -> PaperStudyView:
        """One of the paper's studies, with its definition to submit.

        Args:
            name: as `paper_studies` gives it.
            form: full, or smoke: a small form that shows that it runs.
        """
        return self._connection.read(PaperStudyView, get(f"/v1/paper/studies/{part(name)}", {"form": form}))

    def cluster(self) -> ClusterView:
        """The machines, the runs on them, and the studies that wait."""
        return self._connection.read(ClusterView, get("/v1/cluster"))

    def health(self) -> HealthView:
        """Whether the service works, and its version. An unhealthy service is an answer, too."""
        response = self._connection.send_once(get("/healthz"))
        if response.status_code == httpx.codes.SERVICE_UNAVAILABLE:
            with suppress(ClientError):  # another program answers
                return parse(HealthView, response)
        return parse(HealthView, check(response, self._connection.route))

    def version(self) -> VersionView:
        """The versions of the service and of its main packages."""
        return self._connection.read(VersionView, get("/v1/version"))

    def create_token(
        self, name: str, *, scope: str = "read", expires_in_s: float | None = None, idempotency_key: str | None = None
    ) -> NewTokenView:
        """Create an access token. Only this answer contains the token. Needs the scope admin.

        Args:
            name: what it is for, or who has it.
            scope: read, write or admin.
            expires_in_s: seconds until it expires; None: it is valid until it is revoked.
            idempotency_key: as for `submit`.
        """
        body = {"name": name, "scope": scope, "expires_in_s": expires_in_s}
        return self._connection.read(NewTokenView, create("/v1/tokens", body, idempotency_key=idempotency_key))

    def tokens(self) -> list[TokenView]:
        """All access tokens, without the tokens themselves. Needs the scope admin."""
        return self._connection.read_list(TokenView, get("/v1/tokens"))

    def revoke_token(self, token_id: str) -> TokenView:
        """Revoke an access token at once. Needs the scope admin."""
        return self._connection.read(TokenView, Request(method="DELETE", path=f"/v1/tokens/{part(token_id)}"))

    def _submit(
        self,
        path: str,
        body: Mapping[str, Any],
        idempotency_key: str | None,
        query: Mapping[str, str | None] | None = None,
    ) -> Submission:
        response = self._connection.send(create(path, body, query=query, idempotency_key=idempotency_key))
        created = response.status_code == httpx.codes.CREATED
        return Submission(client=self, study=parse(StudyView, response), created=created)


@dataclass(frozen=True, kw_only=True)
class Submission:
    """A study that was submitted; `created` is False where the same study existed already."""

    study: StudyView
    created: bool
    client: Client = field(repr=False)

    def wait(self, **options: Unpack[WaitOptions]) -> StudyView:
        """The study once it has ended; the options are those of the client's `wait`."""
        return self.client.wait(self.study.id, **options)


def _trial(study: str, label: str, number: int) -> str:
    return f"/v1/studies/{part(study)}/trials/{part(label)}/{number}"
