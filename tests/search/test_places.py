"""Where runs train: whole cards, shares of one, cohorts and own processes, as they fail and restart. No Ray."""

from __future__ import annotations

from search.assignment import Assignment, Pace, Report
from search.coordinator import Idle
from search.packing import CardKind, Packing
from search.places import ALONE, OUT_OF_COHORT
from search.records import Point, RunOutcome
from search.states import FailureKind, RunState, Stage
from tests.search.memory_store import MemoryStore
from tests.search.workers import Cluster, coordinator_for, define


def packing_of_one_card(store: MemoryStore, now_s: list[float], *, most: int = 4) -> Packing:
    """One card, on the store's facts and a clock that the test sets."""
    kinds = [CardKind(name="L4", n_cards=1, most=most)]
    return Packing(kinds, known=store.card_facts("shape"), release="1", clock=lambda: now_s[0])


def shows(total: float, n: int) -> Pace:
    """An epoch of one second beside as many runs, which train so many samples a second together."""
    return Pace(card="a", samples_per_s=total / n, train_s=1.0, eval_s=0.0, memory_bytes=1, card_bytes=100)


def test_out_of_memory_beside_others_has_one_more_try_alone() -> None:
    store = MemoryStore()
    study = store.add_study(define())
    crowded = (FailureKind.OUT_OF_MEMORY, "out of memory on cuda")
    failures = {("adamw", 0, Stage.SEARCH, 100): [crowded], ("sgdm", 1, Stage.SEARCH, 100): [crowded, crowded]}
    cluster = Cluster(coordinator_for(store, study, gpus=0.25, slots=4), failures=failures)
    cluster.run()
    adamw, sgdm = store.searches(study.id)
    by_trial = {(r.search_id, r.trial_number): r for r in store.runs(study.id) if r.stage is Stage.SEARCH}
    assert by_trial[adamw.id, 0].state is RunState.COMPLETE
    assert by_trial[sgdm.id, 1].state is RunState.FAIL
    assert by_trial[sgdm.id, 1].failure is FailureKind.OUT_OF_MEMORY
    tries = {(a.label, a.trial_number): [] for a in cluster.started}
    for a in cluster.started:
        if a.stage is Stage.SEARCH:
            tries[a.label, a.trial_number].append(a.gpus)
    assert tries["adamw", 0] == tries["sgdm", 1] == [0.25, 1.0]
    assert {a.placement for a in cluster.started if a.gpus == 1.0} == {ALONE}
    assert all(t == [0.25] for key, t in tries.items() if key not in {("adamw", 0), ("sgdm", 1)})


def test_out_of_memory_with_a_card_of_its_own_is_not_tried_again() -> None:
    store = MemoryStore()
    study = store.add_study(define())
    failures = {("adamw", 0, Stage.SEARCH, 100): [(FailureKind.OUT_OF_MEMORY, "out of memory on cuda")]}
    cluster = Cluster(coordinator_for(store, study, gpus=1.0), failures=failures)
    cluster.run()
    failed = [run for run in store.runs(study.id) if run.state is RunState.FAIL]
    assert [(run.attempt, run.failure) for run in failed] == [(1, FailureKind.OUT_OF_MEMORY)]


def test_nothing_new_starts_while_a_run_waits_for_a_whole_card() -> None:
    store = MemoryStore()
    study = store.add_study(define())
    coordinator = coordinator_for(store, study, gpus=0.5, slots=4)
    for ticket in ("a", "b"):
        assert isinstance(coordinator.next(ticket), Assignment)
        coordinator.begin(ticket)
    coordinator.fail("a", kind=FailureKind.OUT_OF_MEMORY, error="out of memory on cuda")
    offered = [coordinator.next(ticket) for ticket in ("c", "d", "e", "f", "g", "h")]
    assert isinstance(offered[0], Assignment)
    assert offered[0].gpus == 1.0
    assert offered[1:] == [Idle.WAIT] * 5
    coordinator.begin("c")
    assert isinstance(coordinator.next("i"), Assignment)


def test_a_cohort_without_memory_is_given_up_once_its_other_runs_have_ended() -> None:
    """It costs no failure. The runs that follow share the card as the packing says, and their records say why."""
    store = MemoryStore()
    study = store.add_study(define(max_failures=0))
    packing = packing_of_one_card(store, [0.0])
    coordinator = coordinator_for(store, study, gpus=0.25, slots=4, packing=packing, cohort=4)
    for ticket in ("a", "b", "c"):
        assignment = coordinator.next(ticket)
        assert isinstance(assignment, Assignment)
        assert (assignment.cohort, assignment.slot) == (4, None)
        coordinator.begin(ticket)
    for ticket in ("a", "b"):
        coordinator.fail(ticket, kind=FailureKind.OUT_OF_MEMORY, error="out of memory on cuda. Run fewer")
    assert coordinator.next("d") is Idle.WAIT
    coordinator.tell_why_waiting()
    assert "no cohort: out of memory on cuda; 2 trials a card, growing" in (store.get_study(study.id).reason or "")
    assert coordinator.report("c", Report(points=[], end=RunOutcome(state=RunState.COMPLETE, value=1.0)))
    again = coordinator.next("e")
    assert isinstance(again, Assignment)
    assert (again.trial_number, again.attempt, again.cohort, again.share) == (0, 2, 1, 0.5)
    assert again.placement == "no cohort: out of memory on cuda; 2 trials a card, growing"
    assert all(run.n_failures == 0 for run in store.runs(study.id))


def test_a_run_that_leaves_its_cohort_has_a_process_of_its_own_and_the_others_stay() -> None:
    """It costs no failure. Should it find no memory beside the cohort, the study goes on without one."""
    store = MemoryStore()
    study = store.add_study(define(max_failures=0))
    coordinator = coordinator_for(store, study, gpus=0.25, slots=2, cohort=4)
    for ticket in ("a", "b"):
        coordinator.next(ticket)
        coordinator.begin(ticket)
    coordinator.leave_cohort("a", reason="several at once")
    coordinator.interrupt("b", reason="another diverged")
    coordinator.leave_cohort("a", reason="cancelled meanwhile")
    alone, stays = (coordinator.next(ticket) for ticket in ("c", "d"))
    assert isinstance(alone, Assignment)
    assert isinstance(stays, Assignment)
    assert (alone.attempt, alone.cohort, alone.gpus, alone.placement) == (2, 1, 0.25, OUT_OF_COHORT)
    assert (stays.attempt, stays.cohort, stays.gpus) == (2, 4, 0.25)
    for ticket in ("c", "d"):
        coordinator.begin(ticket)
    coordinator.fail("c", kind=FailureKind.OUT_OF_MEMORY, error="out of memory on cuda. Run fewer")
    assert coordinator.next("e") is Idle.WAIT
    assert coordinator.report("d", Report(points=[], end=RunOutcome(state=RunState.COMPLETE, value=1.0)))
    again = coordinator.next("e")
    assert isinstance(again, Assignment)
    assert (again.trial_number, again.cohort) == (alone.trial_number, 1)
    assert all(run.n_failures == 0 for run in store.runs(study.id))


def test_the_next_driver_knows_which_runs_have_left_their_cohort() -> None:
    """Whether the last one had started them again or not; the others go on in a cohort."""
    store = MemoryStore()
    study = store.add_study(define(max_failures=0))
    coordinator = coordinator_for(store, study, slots=3, cohort=4)
    for ticket in ("a", "b", "c"):
        coordinator.next(ticket)
        coordinator.begin(ticket)
    for ticket in ("a", "b"):
        coordinator.leave_cohort(ticket, reason="several at once")
    coordinator.next("d")
    coordinator.begin("d")
    left = {run.id for run in store.runs(study.id)[:2]}
    for owner in ("second", "third"):
        coordinator = coordinator_for(store, study, owner=owner, slots=4, cohort=4)
        started = [coordinator.next(ticket) for ticket in "efgh"]
        assert {one.run_id for one in started if isinstance(one, Assignment) and one.cohort == 1} == left
        assert {one.placement for one in started if isinstance(one, Assignment) and one.cohort == 1} == {OUT_OF_COHORT}
        assert [one.cohort for one in started if isinstance(one, Assignment)].count(4) == 2


def test_the_next_driver_knows_that_the_study_gave_its_cohort_up() -> None:
    store = MemoryStore()
    study = store.add_study(define(max_failures=0))
    coordinator = coordinator_for(store, study, gpus=0.25, slots=4, cohort=4)
    coordinator.next("a")
    coordinator.begin("a")
    coordinator.give_up_cohort("a", reason="the model cannot be stacked (vmap). Look")
    coordinator = coordinator_for(store, study, owner="second", gpus=0.25, slots=4, cohort=4)
    started = [coordinator.next(ticket) for ticket in "bcde"]
    assert [one.cohort for one in started if isinstance(one, Assignment)] == [1] * 4
    words = "no cohort: the model cannot be stacked (vmap)"
    assert {one.placement for one in started if isinstance(one, Assignment)} == {words}


def test_the_next_driver_knows_which_runs_need_a_whole_card() -> None:
    """Unless the cluster has none now, or each of its runs has a whole one anyway."""
    store = MemoryStore()
    study = store.add_study(define(max_failures=3))
    coordinator = coordinator_for(store, study, gpus=0.25, slots=2)
    for ticket in ("a", "b"):
        coordinator.next(ticket)
        coordinator.begin(ticket)
    coordinator.fail("b", kind=FailureKind.OUT_OF_MEMORY, error="out of memory on cuda")
    for gpus, holds in ((0.25, [0.25, 1.0]), (1.0, [1.0, 1.0]), (0.0, [0.0, 0.0])):
        coordinator = coordinator_for(store, study, owner=f"of {gpus}", gpus=gpus, slots=2)
        started = [coordinator.next(ticket) for ticket in "cd"]
        found = sorted((one.run_id, one.gpus) for one in started if isinstance(one, Assignment))
        assert [amount for _, amount in found] == holds


def test_cards_get_more_runs_by_what_the_studys_own_runs_show() -> None:
    """The reason, the facts in the store, the runs' shares; the next study begins with what was found."""
    store, now_s = MemoryStore(), [0.0]
    study = store.add_study(define(budget={"trials_per_optimizer": 20}))
    coordinator = coordinator_for(store, study, slots=16, packing=packing_of_one_card(store, now_s))

    def start(*tickets: str) -> list[Assignment]:
        given = [coordinator.next(ticket) for ticket in tickets]
        for ticket, one in zip(tickets, given, strict=True):
            if not isinstance(one, Idle):
                coordinator.begin(ticket)
        return [one for one in given if isinstance(one, Assignment)]

    def report_all(total: float, *tickets: str) -> None:
        now_s[0] += 1.0
        for ticket in tickets:
            point = Point(epoch=int(now_s[0]), step=1, value=0.5, metrics={"val_score": 0.5})
            coordinator.report(ticket, Report(points=[point], pace=shows(total, len(tickets))))

    first = start("a", "b", "c")
    assert [one.gpus for one in first] == [0.25, 0.25]
    assert [one.share for one in first] == [0.5, 0.5]
    coordinator.tell_why_waiting()
    assert "2 trials a card, growing" in (store.get_study(study.id).reason or "")
    report_all(1000.0, "a", "b")
    assert not store.card_facts("shape")  # nothing is found yet: there is nothing to compare with
    assert [one.share for one in start("d", "e", "f")] == [0.25, 0.25]
    for _ in range(3):
        report_all(1010.0, "a", "b", "d", "e")
    coordinator.tell_why_waiting()
    assert store.get_study(study.id).reason == "2 trials a card: 4 gained 1%"
    assert start("g") == []  # all four go on, and no other starts beside them

    second = store.add_study(define(name="second"))
    again = coordinator_for(store, second, slots=16, packing=packing_of_one_card(store, now_s))
    again.tell_why_waiting()
    reason = "starts its first workers; 2 trials a card, as an earlier study found: 4 gained 1%"
    assert store.get_study(second.id).reason == reason


def test_what_is_found_beside_another_study_is_not_kept() -> None:
    store = MemoryStore()
    study = store.add_study(define(max_failures=0))
    failures = {("adamw", 0, Stage.SEARCH, 100): [(FailureKind.OUT_OF_MEMORY, "out of memory on cuda")]}
    packing = packing_of_one_card(store, [0.0])
    cluster = Cluster(coordinator_for(store, study, slots=16, packing=packing, crowded=True), failures=failures)
    cluster.run()
    assert packing.words == "1 trial a card: 2 ran out of memory"
    assert not store.card_facts("shape")


def test_a_run_that_ran_out_of_memory_while_the_number_grew_has_not_failed() -> None:
    store = MemoryStore()
    study = store.add_study(define(max_failures=0))
    cluster = Cluster(
        coordinator_for(store, study, slots=16, packing=packing_of_one_card(store, [0.0])),
        failures={("adamw", 0, Stage.SEARCH, 100): [(FailureKind.OUT_OF_MEMORY, "out of memory on cuda")]},
    )
    cluster.run()
    assert {run.state for run in store.runs(study.id)} == {RunState.COMPLETE}
    retried = next(run for run in store.runs(study.id) if run.attempt > 1)
    assert (retried.attempt, retried.n_failures) == (2, 0)
    assert store.card_facts("shape")["L4"].reason == "2 ran out of memory"
    assert [a.gpus for a in cluster.started[3:]] == [1.0] * len(cluster.started[3:])
