"""transformers' Trainer over the engine's training rows, for benchmarks.finetuning. Needs the package accelerate."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from typing import Any


def make_trainer(task: Any, request: Mapping[str, Any], *, lr: float, seed: int, max_steps: int, callback: Any) -> Any:
    """transformers' Trainer over the engine's own training rows and a fresh model of the same task."""
    from transformers import DataCollatorWithPadding, Trainer, TrainingArguments, set_seed

    from tasks.data.pretrained import load_tokenizer

    config = task.config
    well_set = request["system"] == "trainer-well-set"
    tokenizer = load_tokenizer(task.data.source)
    settings: dict[str, Any] = {}
    if well_set:
        on_gpu = request["device"] == "cuda"
        settings = {"bf16": on_gpu, "optim": "adamw_torch_fused"}
        settings["train_sampling_strategy"] = request.get("sampling", "group_by_length")
        settings |= {"logging_strategy": "no", "dataloader_num_workers": 2 if on_gpu else 0}
    arguments = TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=config.batch_size,
        num_train_epochs=config.epochs,
        max_steps=max_steps,
        learning_rate=lr,
        weight_decay=0.0,
        lr_scheduler_type="linear",
        max_grad_norm=1.0,
        seed=seed,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
        use_cpu=request["device"] == "cpu",
        **settings,
    )
    set_seed(seed)
    return Trainer(
        model=task.build_model(),
        args=arguments,
        train_dataset=rows(task, tokenizer, padded=None if well_set else config.max_length),
        data_collator=DataCollatorWithPadding(tokenizer, pad_to_multiple_of=8) if well_set else None,
        callbacks=[callback] if callback is not None else None,
    )


def rows(task: Any, tokenizer: Any, *, padded: int | None) -> Any:
    """The engine's training rows as a list that a collator takes; padded to a length, or as they are."""
    split = task.data.train
    found = []
    for index in split.rows.tolist():
        length = int(split.table.lengths[index])
        batch = split.table.pad(split.table.column("labels").new_tensor([index]).long(), padded or length)
        found.append({name: column[0].tolist() for name, column in batch.items()})
    return found


def clock(begin: int, end: int) -> Any:
    """A callback that notes when two steps had ended on the device."""
    import torch
    from transformers import TrainerCallback

    class Clock(TrainerCallback):
        began = ended = 0.0

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step in (begin, end):
                if torch.cuda.is_available():
                    torch.cuda.synchronize()
                name = "began" if state.global_step == begin else "ended"
                setattr(self, name, time.perf_counter())

    return Clock()
