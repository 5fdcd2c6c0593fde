"""The studies that are disturbed: do-little trials that leave a checkpoint after every epoch."""

from __future__ import annotations

from typing import Any

N_EPOCHS = 5
STEPS_PER_EPOCH = 2
N_TRIALS = 8
SEEDS = (0, 1, 2)


def quiet_study(name: str, *, sleep_s: float = 0.2, n_epochs: int = N_EPOCHS, **changes: Any) -> dict[str, Any]:
    """Two optimizers on the quadratic; 16 trials, then 6 confirm runs; every study of this kind gives equal values."""
    return {
        "name": name,
        "task": {
            "name": "synthetic",
            "model": "quadratic",
            "epochs": n_epochs,
            "steps_per_epoch": STEPS_PER_EPOCH,
            "sleep_s": sleep_s,
        },
        "optimizers": [
            {"name": "admetar", "space": {"lr": {"type": "float", "low": 1e-3, "high": 1e-1, "log": True}}},
            {"name": "sgdm", "space": {"lr": {"type": "float", "low": 1e-3, "high": 3e-2, "log": True}}},
        ],
        "sampler": {"name": "random", "seed": 0},
        "pruner": {"name": "none"},
        "budget": {"trials_per_optimizer": N_TRIALS},
        "confirm": {"top_k": 1, "seeds": list(SEEDS)},
        "resources": {"cpus": 1, "gpus": 0},
        "max_failures": 20,
        "checkpoint_every_s": 0,
        **changes,
    }
