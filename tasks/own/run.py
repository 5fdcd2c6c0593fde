"""A run of own training code: the function runs in a thread, which waits in each report for the study."""

from __future__ import annotations

import hashlib
import inspect
import math
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import torch

from admeta.errors import ImportPathError
from admeta.imports import load
from tasks.data.find import open_data_folder
from tasks.engine.device import describe_machine, first_words, is_out_of_memory, peak_memory_bytes, pick_device
from tasks.engine.protocol import Cost, Evaluation, Progress
from tasks.errors import ConfigError, Diverged, EndedEarly, OutOfMemory, OwnCodeError, TaskError
from tasks.own import PythonConfig
from tasks.own.context import Context, TrialEnded, seed_all
from tasks.own.task import explained

Function = Callable[[Context], Any]
END_TIMEOUT_S = 5.0
"""How long the end of a run waits for the function's own: it may be within an epoch."""
WAKE_S = 0.5
"""How often a run that waits for its function looks for signals: one that arrives as a wait begins may not end it."""


class Turn(Enum):
    """What the waiting thread of the function receives."""

    GO = "go"
    END = "end"


@dataclass(frozen=True)
class _Told:
    """What the function's thread reports: an epoch's metrics, or, without an epoch, its end."""

    epoch: int | None
    metrics: Mapping[str, float]
    error: BaseException | None = None


def load_function(config: PythonConfig) -> Function:
    """The function that the configuration names.

    Raises:
        ConfigError: it cannot be imported, is not a function, or does not take one argument.
    """
    try:
        found = load(config.run)
    except ImportPathError as error:
        raise ConfigError(f"task.run: {error}") from error
    if isinstance(found, type) or not callable(found):
        raise ConfigError(f"task.run: '{config.run}' is a {type(found).__name__}; name a function that takes a context")
    try:
        inspect.signature(found).bind(None)
    except TypeError as error:
        raise ConfigError(
            f"task.run: '{config.run}' must take one argument, the context: def {found.__name__}(ctx); {error}"
        ) from error
    function: Function = found
    return function


class PythonRun(Progress):
    """A `tasks.engine.protocol.Run` of own code. Arguments as `tasks.runs.open_run`."""

    def __init__(
        self,
        config: PythonConfig,
        *,
        optimizer: str,
        params: Mapping[str, Any],
        seed: int,
        data_dir: Path | None = None,
        device: str | None = None,
        threads: int = 1,
        init_from: Path | None = None,
    ) -> None:
        del init_from  # refused by the configuration
        super().__init__(config, optimizer=optimizer, params=params, seed=seed)
        self._config = config
        self._function = load_function(config)
        self._device = pick_device(device)
        self._threads = threads
        self._context = Context(
            config,
            optimizer=optimizer,
            params=params,
            seed=seed,
            device=self._device,
            data_dir=_data_folder(config, data_dir),
            report=self._report,
        )
        self._test: dict[str, float] = {}
        self._returned: Any = None
        self._ended = False
        self._turns: queue.SimpleQueue[Turn] = queue.SimpleQueue()
        self._told: queue.SimpleQueue[_Told] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    @staticmethod
    def check(config: PythonConfig) -> None:
        """Check before a study's first trial that the function is there; raises ConfigError."""
        load_function(config)

    @property
    def done(self) -> bool:
        """Whether the budget is spent, or the function has ended."""
        return self._ended or super().done

    @property
    def step_status(self) -> str:
        """The engine makes no steps here."""
        if self._epoch > 0 and not self._context.has_optimizer:
            return "own code, which has not called ctx.optimizer: the searched settings may have no effect"
        return "own code"

    def advance(self) -> Evaluation:
        """Let the function run until it reports its next epoch.

        Raises:
            EndedEarly: it has ended before its last epoch.
            OwnCodeError: it raised, or ended without a report.
            Diverged: it reported a loss that is NaN or infinite.
        """
        self._check_budget()
        begin = time.perf_counter()
        told = self._next()
        if told.epoch is None:
            self._ended = True
            if self._epoch == 0:
                returned = "" if self._returned is None else f"; it returned a {type(self._returned).__name__}, unread"
                raise OwnCodeError(
                    f"{self._config.run} ended without a report; it must yield an epoch's metrics, or call ctx.report"
                    f"{returned}"
                )
            raise EndedEarly(self._epoch)
        self._epoch, self._step = told.epoch, self._context.step or told.epoch
        for name, value in told.metrics.items():
            if "loss" in name and not math.isfinite(value):
                raise Diverged(self._step, loss=value, what=name)
        train_s = time.perf_counter() - begin
        return Evaluation(
            epoch=self._epoch,
            step=self._step,
            metrics=told.metrics,
            lr=self._context.lr,
            cost=Cost(
                train_s=train_s,
                gpu_s=train_s if self._device.type == "cuda" else 0.0,
                peak_memory_bytes=peak_memory_bytes(self._device),
            ),
        )

    def test(self) -> dict[str, float]:
        """The metrics named `test_…` of the last report; after the last epoch the function runs to its end."""
        while not self._ended:
            self._ended = self._next().epoch is None
        return dict(self._test)

    def environment(self) -> dict[str, Any]:
        source = inspect.getsourcefile(inspect.unwrap(self._function))
        content = Path(source).read_bytes() if source is not None and Path(source).is_file() else b""
        return {
            **describe_machine(self._device),
            "step": self.step_status,
            "run": self._config.run,
            "run_sha256": hashlib.sha256(content).hexdigest(),
            "threads": self._threads,
        }

    def state_dict(self) -> dict[str, Any]:
        """The state of the last epoch of which the function saved one; at first the beginning."""
        saved = self._context.collect(epoch=self._epoch, step=self._step)
        state = {**self._place(), "epoch": 0, "step": 0, **saved}
        model = (saved.get("state") or {}).get("model")
        return {**state, "model": model} if isinstance(model, Mapping) else state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`; raises CheckpointError for another function or optimizer."""
        self._return_to(state)
        self._context.go_on_from(state)

    def close(self) -> None:
        """End the function, which gets `TrialEnded` in its report; one that is within an epoch ends after it."""
        self._context.end()
        if self._thread is not None:
            self._turns.put(Turn.END)
            self._thread.join(END_TIMEOUT_S)
            self._thread = None
        self._ended = True
        self._context.remove_folder()

    def _next(self) -> _Told:
        """The function's next report; raises what it raised."""
        self._turns.put(Turn.GO)
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name=self._config.run, daemon=True)
            self._thread.start()
        while (told := self._wait_for_news()) is None:
            pass  # the handlers of signals run here
        if told.error is not None:
            self._ended = True
            raise self._explained(told.error) from told.error
        self._test.update({name: value for name, value in told.metrics.items() if name.startswith("test_")})
        metrics = {name: value for name, value in told.metrics.items() if not name.startswith("test_")}
        return _Told(told.epoch, metrics)

    def _wait_for_news(self) -> _Told | None:
        with suppress(queue.Empty):
            return self._told.get(timeout=WAKE_S)
        return None

    def _explained(self, error: BaseException) -> TaskError:
        if isinstance(error, TaskError):
            return error
        if is_out_of_memory(error):
            return OutOfMemory(phase="training", device=str(self._device), detail=first_words(error))
        return OwnCodeError(explained(self._config.run, error))

    def _work(self) -> None:
        """The thread: the function from its beginning to its end."""
        end = _Told(None, {})
        try:
            self._wait()
            torch.set_num_threads(self._threads)
            seed_all(self._context.seed)
            result = self._function(self._context)
            if isinstance(result, Iterator):
                self._report_each(result)
            else:
                self._returned = result
        except TrialEnded:
            pass
        except BaseException as error:  # noqa: BLE001 - the run raises it
            end = _Told(None, {}, error)
        self._told.put(end)

    def _report_each(self, yielded: Iterator[Any]) -> None:
        try:
            for metrics in yielded:
                if not isinstance(metrics, Mapping):
                    raise TypeError(
                        f"{self._config.run} yielded a {type(metrics).__name__}; it must yield an epoch's metrics as a "
                        "dict: {'val_loss': 0.3}"
                    )
                self._context.report(metrics)
        finally:
            if (close := getattr(yielded, "close", None)) is not None:
                close()

    def _report(self, epoch: int, metrics: Mapping[str, float]) -> None:
        """Called in the thread: hand the metrics over, and wait for the next turn."""
        if epoch == self._context.epoch:  # the test set's alone
            self._test.update(metrics)
            return
        if self._context.epoch >= self._n_epochs:
            raise TrialEnded
        self._context.epoch = epoch
        self._told.put(_Told(epoch, metrics))
        self._wait()

    def _wait(self) -> None:
        if self._turns.get() is Turn.END:
            raise TrialEnded


def _data_folder(config: PythonConfig, data_dir: Path | None) -> Path | None:
    inner = config.data_dir
    return data_dir if inner is None else open_data_folder(f"data_dir {inner!r}", data_dir=data_dir, inner=inner)
