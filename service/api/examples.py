"""Examples for the API's description: of parameters, of bodies and of the answers that people script against."""

from __future__ import annotations

from typing import Any

STUDY: dict[str, Any] = {
    "name": "digits-first",
    "task": {"name": "digits", "model": "convnet", "epochs": 10},
    "optimizers": [
        {"name": "admetar", "space": {"lambd": {"type": "float", "low": 0.02, "high": 0.4, "log": True}}},
        {"name": "sgdm"},
    ],
    "budget": {"trials_per_optimizer": 8},
    "confirm": {"top_k": 1, "seeds": [0, 1, 2]},
}
CLONE: dict[str, Any] = {"name": "digits-second", "changes": {"budget": {"trials_per_optimizer": 40}}}
TOKEN: dict[str, Any] = {"name": "ci", "scope": "write", "expires_in_s": 7_776_000}

PARAMETERS: dict[str, Any] = {
    "Idempotency-Key": "5b7a4d9e-2f63-4a56-9df5-6a8f2c6f0a11",
    "after": 0,
    "attempt": 1,
    "label": "admetar",
    "limit": 50,
    "number": 3,
    "offset": 0,
    "optimizer": "admetar",
    "paper_study": "cola-bert-base",
    "run": 42,
    "space": "paper-best",
    "study": "digits-first",
    "table": "cifar",
    "tag": "baseline",
    "tail": 20,
    "task": "digits",
    "token_id": "0123456789ab",
    "trial": 3,
}
"""By name. Those without one here (cursor, say) are given out by the service, or say all in their schema."""

_SETTINGS = {"lr": 0.021, "lambd": 0.08, "betas": [0.9, 0.999], "eps": 1e-9, "weight_decay": 0.0001}
_SEARCH = {
    "label": "admetar", "optimizer": "admetar", "optuna_study": "digits-first/admetar", "stage": "done", "n_trials": 8,
    "n_waiting": 0, "n_running": 0, "n_complete": 5, "n_pruned": 2, "n_failed": 1, "n_confirm_runs": 3,
    "n_confirm_finished": 3, "best_value": 0.976, "best_trial": 3, "best_params": {"lr": 0.021, "lambd": 0.08},
}  # fmt: skip
_RUN = {
    "id": 42, "stage": "search", "seed": 3, "state": "COMPLETE", "value": 0.976, "test_metrics": {}, "failure": None,
    "error": None, "epoch": 10, "step": 110, "train_s": 4.2, "gpu_s": 0.0, "created_at": "2026-01-01T12:00:00Z",
    "started_at": "2026-01-01T12:00:01Z", "finished_at": "2026-01-01T12:00:06Z", "attempts": [],
}  # fmt: skip

ANSWERS: dict[str, dict[str, Any]] = {
    "ErrorView": {
        "error": "study_not_found",
        "detail": "no study has the id or name 'digits-frist'",
        "hint": "GET /v1/studies lists the studies there are.",
    },
    "StudyView": {
        "id": "0123456789ab", "name": "digits-first", "task": "digits", "model": "convnet", "state": "COMPLETED",
        "reason": None, "metric": "val_accuracy", "direction": "maximize", "priority": 0,
        "created_at": "2026-01-01T12:00:00Z", "started_at": "2026-01-01T12:00:01Z",
        "finished_at": "2026-01-01T12:03:00Z", "searches": [_SEARCH],
    },
    "TrialView": {
        "number": 3, "label": "admetar", "optimizer": "admetar", "state": "COMPLETE", "value": 0.976,
        "params": {"lr": 0.021, "lambd": 0.08}, "settings": _SETTINGS, "runs": [_RUN],
    },
    "StudyRunView": {
        **_RUN, "study": "digits-first", "label": "admetar", "optimizer": "admetar", "trial": 3, "settings": _SETTINGS,
        "logs": [1],
    },
    "BestView": {
        "task": "digits", "model": "convnet", "optimizer": "admetar", "metric": "val_accuracy",
        "direction": "maximize", "settings": _SETTINGS, "search_value": 0.976,
        "validation": {"mean": 0.974, "std": 0.002, "n": 3, "n_failed": 0},
        "test": {"mean": 0.968, "std": 0.003, "n": 3, "n_failed": 0}, "test_metric": "test_accuracy",
        "study": "digits-first", "label": "admetar", "trial": 3, "evidence": "confirmed", "init_from": None,
    },
}  # fmt: skip
