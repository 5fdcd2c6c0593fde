"""Own training code on other trainers: transformers' Trainer and Lightning, each with a tiny random model."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from tasks.own.context import Context


class Words(Dataset[dict[str, Tensor]]):
    """Sequences whose label says whether their first word is above half of the vocabulary."""

    def __init__(self, n: int, *, seed: int) -> None:
        self.words = torch.randint(0, 20, (n, 6), generator=torch.Generator().manual_seed(seed))

    def __len__(self) -> int:
        return len(self.words)

    def __getitem__(self, i: int) -> dict[str, Tensor]:
        return {"input_ids": self.words[i], "labels": (self.words[i, 0] >= 10).long()}


def accuracy(predicted: Any) -> dict[str, float]:
    return {"accuracy": float((predicted.predictions.argmax(-1) == predicted.label_ids).mean())}


def with_trainer(ctx: Context) -> None:
    from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

    config = BertConfig(vocab_size=20, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
    model = BertForSequenceClassification(config)
    trainer = Trainer(
        model=model,
        args=TrainingArguments(
            output_dir=str(ctx.folder),
            num_train_epochs=ctx.epochs,
            per_device_train_batch_size=ctx.batch_size,
            eval_strategy="epoch",
            save_strategy="epoch",
            save_total_limit=1,
            logging_strategy="epoch",
            seed=ctx.seed,
            use_cpu=ctx.device.type == "cpu",
            report_to=[],
            disable_tqdm=True,
        ),
        train_dataset=Words(64, seed=0),
        eval_dataset=Words(32, seed=1),
        compute_metrics=accuracy,
        optimizers=(ctx.optimizer(model.parameters()), None),
        callbacks=[ctx.trainer_callback()],
    )
    trainer.train(resume_from_checkpoint=ctx.checkpoint)
    trainer.evaluate(Words(32, seed=2), metric_key_prefix="test")


def with_lightning(ctx: Context) -> None:
    try:
        import lightning.pytorch as lightning
    except ImportError:
        import pytorch_lightning as lightning

    class Module(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Embedding(20, 8), nn.Flatten(), nn.Dropout(0.1), nn.Linear(48, 2))

        def _loss(self, batch: dict[str, Tensor]) -> Tensor:
            return nn.functional.cross_entropy(self.net(batch["input_ids"]), batch["labels"])

        def training_step(self, batch: dict[str, Tensor], _: int) -> Tensor:
            return self._loss(batch)

        def validation_step(self, batch: dict[str, Tensor], _: int) -> None:
            self.log("val_loss", self._loss(batch))

        def test_step(self, batch: dict[str, Tensor], batch_idx: int) -> None:
            self.log("test_loss", self._loss(batch))

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return ctx.optimizer(self.parameters())

    trainer = lightning.Trainer(
        max_epochs=ctx.epochs,
        accelerator="gpu" if ctx.device.type == "cuda" else "cpu",
        devices=1,
        callbacks=[ctx.lightning_callback()],
        default_root_dir=ctx.folder,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    module = Module()
    train = DataLoader(Words(64, seed=0), batch_size=ctx.batch_size, shuffle=True)
    trainer.fit(module, train, DataLoader(Words(32, seed=1), batch_size=32), ckpt_path=ctx.checkpoint)
    trainer.test(module, DataLoader(Words(32, seed=2), batch_size=32), verbose=False)
