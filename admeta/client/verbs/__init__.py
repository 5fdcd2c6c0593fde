"""What one can ask of a service, a module a noun: each verb written once, without a connection (`admeta.client.wire`).

A verb is a function whose name, parameters and docstring are those of the client's method.
"""

from __future__ import annotations

from admeta.client.verbs.catalog import cluster, health, optimizer, optimizers, task, tasks, version
from admeta.client.verbs.events import events
from admeta.client.verbs.paper import paper_studies, paper_study, paper_table, paper_tables
from admeta.client.verbs.results import best, comparison, export, importance
from admeta.client.verbs.runs import curve, follow_logs, logs, run, runs
from admeta.client.verbs.studies import (
    Submitted,
    cancel,
    clone,
    delete,
    pause,
    resume,
    studies,
    study,
    submit,
)
from admeta.client.verbs.tokens import create_token, revoke_token, tokens
from admeta.client.verbs.trials import cancel_trial, trial, trials
from admeta.client.verbs.waiting import TERMINAL_STATES, WaitOptions, wait

__all__ = [
    "TERMINAL_STATES",
    "Submitted",
    "WaitOptions",
    "best",
    "cancel",
    "cancel_trial",
    "clone",
    "cluster",
    "comparison",
    "create_token",
    "curve",
    "delete",
    "events",
    "export",
    "follow_logs",
    "health",
    "importance",
    "logs",
    "optimizer",
    "optimizers",
    "paper_studies",
    "paper_study",
    "paper_table",
    "paper_tables",
    "pause",
    "resume",
    "revoke_token",
    "run",
    "runs",
    "studies",
    "study",
    "submit",
    "task",
    "tasks",
    "tokens",
    "trial",
    "trials",
    "version",
    "wait",
]
