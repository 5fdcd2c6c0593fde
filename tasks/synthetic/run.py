"""Runs on toy surfaces: no data, no model; `idle` does not even import torch.

The surfaces (`tasks.synthetic.surfaces`) start from a point drawn by the seed and are minimised by the trial's own
optimizer. `idle` scores by a formula: a parabola over log10(lr) around −2.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tasks.engine.protocol import Cost, Evaluation, Progress
from tasks.engine.seeds import derive_seed
from tasks.errors import Diverged
from tasks.synthetic import SyntheticConfig
from tasks.synthetic.surfaces import SURFACES, Descent


class SyntheticRun(Progress):
    """A `tasks.engine.protocol.Run` on a toy surface."""

    def __init__(
        self,
        config: SyntheticConfig,
        *,
        optimizer: str,
        params: Mapping[str, Any],
        seed: int,
        data_dir: Path | None = None,
        device: str | None = None,
        threads: int = 1,
        init_from: Path | None = None,
    ) -> None:
        """Args: as `tasks.runs.open_run`; the surfaces live on the CPU and ignore data_dir, device and init_from."""
        del data_dir, device, init_from, threads
        super().__init__(config, optimizer=optimizer, params=params, seed=seed)
        self._config = config
        self._params = dict(params)
        self._seed = seed
        self._descent: Descent | None = None
        if config.model != "idle":
            self._descent = Descent(SURFACES[config.model], optimizer=optimizer, params=params, seed=seed)

    @property
    def step_status(self) -> str:
        """There is no network whose steps could be captured."""
        return "eager: a toy surface"

    def advance(self) -> Evaluation:
        """Make `steps_per_epoch` steps, then sleep `sleep_s`; raises Diverged when the loss is no longer finite."""
        self._check_budget()
        begin = time.perf_counter()
        lr = float(self._params.get("lr", 0.01))
        if self._descent is None:
            loss = self._idle_loss(lr)
            self._step += 1
        else:
            n_steps = self._config.epochs * self._config.steps_per_epoch
            for _ in range(self._config.steps_per_epoch):
                lr = self._descent.step(self._config.schedule.lr_factor(self._step, n_steps=n_steps))
                self._step += 1
                if not math.isfinite(loss := self._descent.loss()):
                    raise Diverged(self._step, loss=loss)
        if self._config.sleep_s:
            time.sleep(self._config.sleep_s)
        self._epoch += 1
        train_s = time.perf_counter() - begin
        return Evaluation(
            epoch=self._epoch,
            step=self._step,
            metrics={"val_score": 1.0 / (1.0 + loss), "val_loss": loss, "train_loss": loss},
            lr=lr,
            cost=Cost(train_s=train_s),
        )

    def _idle_loss(self, lr: float) -> float:
        """A parabola over log10(lr), lower with every epoch, with a little noise from the seed."""
        noise = 0.01 * random.Random(derive_seed(self._seed, "idle", self._epoch)).random()
        return (math.log10(max(lr, 1e-12)) + 2.0) ** 2 + 1.0 / (self._epoch + 1) + noise

    def test(self) -> dict[str, float]:
        """The surface has no second sample: the loss at the current point."""
        loss = self._idle_loss(float(self._params.get("lr", 0.01))) if self._descent is None else self._descent.loss()
        return {"test_score": 1.0 / (1.0 + loss), "test_loss": loss}

    def environment(self) -> dict[str, Any]:
        return {"device": "cpu", "step": self.step_status}

    def state_dict(self) -> dict[str, Any]:
        state = None if self._descent is None else self._descent.state_dict()
        return {**self._place(), "walk": state}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`; raises CheckpointError for another surface or optimizer."""
        self._return_to(state)
        if self._descent is not None:
            self._descent.load_state_dict(state["walk"])

    def close(self) -> None:
        self._descent = None
