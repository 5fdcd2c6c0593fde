"""`admeta new`: begins own code with an example that runs."""

from __future__ import annotations

import keyword
from pathlib import Path
from typing import Annotated

import typer

from admeta.cli.output import say
from admeta.client.errors import ServiceError

_MODULE = '''\
"""Which of two spirals is a point on? A task of your own: the study in NAME.yaml searches the function `train`."""

import math

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def spirals(n, *, seed):
    """n points near two spirals, and which of them each is on."""
    generator = torch.Generator().manual_seed(seed)
    label = torch.randint(0, 2, (n,), generator=generator)
    radius = torch.rand(n, generator=generator).sqrt()
    angle = 3 * math.pi * radius + math.pi * label
    points = torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1)
    return TensorDataset(points + 0.02 * torch.randn(n, 2, generator=generator), label)


@torch.no_grad()
def accuracy(model, data, device):
    points, label = (tensor.to(device) for tensor in data.tensors)
    return (model(points).argmax(1) == label).float().mean()


def train(ctx):
    train_set, val_set, test_set = (spirals(n, seed=seed) for seed, n in enumerate((2000, 500, 500)))
    width = ctx.settings["width"]
    model = nn.Sequential(nn.Linear(2, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 2))
    model.to(ctx.device)
    optimizer = ctx.optimizer(model)  # the trial's, with its settings
    loader = DataLoader(train_set, batch_size=ctx.batch_size, shuffle=True)
    schedule = ctx.schedule(optimizer, n_steps=ctx.epochs * len(loader))
    for epoch in ctx.resume(model=model, optimizer=optimizer, schedule=schedule):  # the epochs that are left
        for points, label in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(points.to(ctx.device)), label.to(ctx.device))
            loss.backward()
            optimizer.step()
            schedule.step()
        yield {"val_accuracy": accuracy(model, val_set, ctx.device), "train_loss": loss}
    yield {"test_accuracy": accuracy(model, test_set, ctx.device)}
'''

_STUDY = """\
name: NAME
task:
  name: python
  run: NAME:train            # the function train(ctx) of NAME.py
  epochs: 12                 # reports of a full training
  batch_size: 64             # ctx.batch_size
  schedule: cosine           # ctx.schedule
  settings: {width: 32}      # ctx.settings: constants of yours
optimizers: [admetar, adamw]
objective: {metric: val_accuracy, direction: maximize}
budget: {trials_per_optimizer: 6}
sampler: {name: tpe, n_startup_trials: 3}
confirm: {seeds: [0, 1, 2]}
resources: {cpus: 1}
"""


def task(
    name: Annotated[str, typer.Argument(help="Its module's name: letters, digits and '_'.", metavar="NAME")],
) -> None:
    """Write a task of your own that runs, NAME.py and NAME.yaml, into the current folder."""
    if not name.isascii() or not name.isidentifier() or keyword.iskeyword(name) or len(name) > 80:
        hint = "Use letters, digits and '_', for example: admeta new task spirals"
        raise ServiceError(f"'{name}' cannot be a module's name.", hint=hint)
    texts = {Path(f"{name}.py"): _MODULE, Path(f"{name}.yaml"): _STUDY}
    for path in texts:
        if path.exists():
            raise ServiceError(f"{path} exists already.", hint="Choose another name, or move the file away.")
    for path, text in texts.items():
        path.write_text(text.replace("NAME", name), encoding="utf-8")
    say(f"{name}.py trains in the function train, {name}.yaml is a study of it. To run it:")
    say(f"  admeta serve --allow-imports {name} --code .")
    say(f"  admeta submit {name}.yaml --wait")


def build() -> typer.Typer:
    """The group `admeta new`."""
    group = typer.Typer(help="Begin with an example of your own that runs.", no_args_is_help=True)
    group.callback()(lambda: None)  # a group even with one command
    group.command("task")(task)
    return group
