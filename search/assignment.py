"""What the driver sends to a worker and what the worker reports: plain values that Ray pickles.

Owns the two messages of a run. They never contain a database address, a password or a token.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from search.records import AttemptStart, Point, RunOutcome
from search.states import Stage
from tasks.engine.protocol import Cost

NAMESPACE = "admeta"
"""Of the named actors in Ray: drivers and shared trainers."""
CARD_KIND = "accelerator_type:"
"""What Ray's resources that name a node's cards begin with."""


@dataclass(frozen=True, kw_only=True)
class Slot:
    """A run's place on a card that runs share (`search.packing`).

    Attributes:
        kind: of the card, if there are several kinds in the cluster and the run needs one of it; else empty.
        reserved: part of a card that Ray reserves for the run.
        share: part of a card that the run is charged for.
        n_beside: runs at once, itself among them, that it should leave multiprocessors for.
        reason: why so many runs share the card, in words.
    """

    kind: str
    reserved: float
    share: float
    n_beside: int
    reason: str


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """One run to execute: everything a worker needs.

    Attributes:
        attempt: which attempt of the run this is, from 1.
        task: the study's task with what the trial's recipe sets of it.
        settings: the optimizer's constructor keywords (drawn and fixed).
        checkpoint_dir: folder of this run alone; where one exists already, the run continues from its last checkpoint.
        threads: CPU threads torch may use.
        cpus, gpus: what the worker holds; gpus below 1 is a share of a card, 0 none.
        init_from: folders of an earlier trial's runs, of which the first with a checkpoint gives the initial weights.
        reported: further metrics that the run must report at its end, those that the study searches for.
        placement: why the worker holds that much, as text, for the attempt's record.
        cohort: slots of the stacked model that trains the run along with others; 1: it is trained by itself.
        own_process: why nothing else is trained by its process, on a shared card too, as text; empty: others may be.
        study_id: the run's; processes are shared within a study.
        slot: its place on a card whose number of runs is found as they train; None: `gpus` is a fixed number.
    """

    run_id: int
    label: str
    trial_number: int
    stage: Stage
    seed: int
    attempt: int
    task: Mapping[str, Any]
    optimizer: str
    settings: Mapping[str, Any]
    metric: str
    direction: str
    checkpoint_dir: str
    checkpoint_every_s: float
    data_dir: str | None
    threads: int
    cpus: float
    gpus: float
    init_from: tuple[str, ...] = ()
    reported: tuple[str, ...] = ()
    placement: str = ""
    cohort: int = 1
    own_process: str = ""
    study_id: str = ""
    slot: Slot | None = None

    @property
    def share(self) -> float:
        """Cards that the run is charged for; below 1 a part of one."""
        return self.gpus if self.slot is None else self.slot.share

    @property
    def n_beside(self) -> int:
        """Runs on its card, itself among them, that it leaves multiprocessors for; 1 where it has its cards alone."""
        if self.slot is not None:
            return self.slot.n_beside
        return round(1 / self.gpus) if 0 < self.gpus < 1 else 1

    def to_config(self) -> dict[str, Any]:
        """As Ray Tune's trial config."""
        return {"assignment": asdict(self)}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Assignment:
        """The assignment in a Tune config."""
        values = dict(config["assignment"])
        slot = None if values["slot"] is None else Slot(**values["slot"])
        return cls(
            **{
                **values,
                "stage": Stage(values["stage"]),
                "init_from": tuple(values["init_from"]),
                "reported": tuple(values["reported"]),
                "slot": slot,
            }
        )


@dataclass(frozen=True, kw_only=True)
class Pace:
    """What the epoch that a run reports shows of the card that it trained on.

    Attributes:
        card: names the card within the cluster.
        samples_per_s: of training, without what happens once (capture, compilation).
        train_s, eval_s: wall seconds of that training, and of the evaluation after it.
        memory_bytes: device memory that the run holds.
        card_bytes: memory of the card; 0 where it is not known.
    """

    card: str
    samples_per_s: float
    train_s: float
    eval_s: float
    memory_bytes: int
    card_bytes: int


@dataclass(frozen=True, kw_only=True)
class Report:
    """What a worker reports after each evaluation.

    The first report of an attempt says where it runs, and repeats the curve that its checkpoint remembers: points
    that a dead driver did not store are added, and points of a training that was lost are replaced.
    """

    points: list[Point]
    start: AttemptStart | None = None
    end: RunOutcome | None = None
    pace: Pace | None = None

    def to_result(self) -> dict[str, Any]:
        """As Ray Tune's result of one step."""
        return {"report": self}


@dataclass
class Curve:
    """A run's points so far, as a checkpoint keeps them."""

    points: list[Point] = field(default_factory=list)

    def to_state(self) -> list[dict[str, Any]]:
        return [{**asdict(point), "metrics": dict(point.metrics)} for point in self.points]

    @classmethod
    def from_state(cls, state: list[dict[str, Any]]) -> Curve:
        return cls([_point(point) for point in state])


def _point(state: Mapping[str, Any]) -> Point:
    """A point of a checkpoint; versions up to 0.1 wrote the fields of `cost` among the others."""
    names = {one.name for one in fields(Cost)}
    cost = state.get("cost") or {name: value for name, value in state.items() if name in names}
    others = {name: value for name, value in state.items() if name != "cost" and name not in names}
    return Point(**others, cost=Cost(**cost))
