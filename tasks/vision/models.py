"""Image models by name."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_buffer_registration_hook,
    register_module_parameter_registration_hook,
)

from tasks.errors import ConfigError
from tasks.vision.pyramidnet import PyramidNet
from tasks.vision.resnet import cifar_resnet, preact_resnet110

_CIFAR: dict[str, Callable[[int], nn.Module]] = {
    "resnet20": partial(cifar_resnet, 20),
    "resnet32": partial(cifar_resnet, 32),
    "resnet44": partial(cifar_resnet, 44),
    "resnet56": partial(cifar_resnet, 56),
    "resnet110": partial(cifar_resnet, 110),
    "resnet110_preact": preact_resnet110,
    "pyramidnet110_a48": lambda n_classes: PyramidNet(depth=110, alpha=48, n_classes=n_classes),
    "pyramidnet110_a84": lambda n_classes: PyramidNet(depth=110, alpha=84, n_classes=n_classes),
}


def build_image_model(name: str, *, n_classes: int, image_size: int) -> nn.Module:
    """A model of `tasks.vision.config` by name, freshly initialised, for RGB images.

    Args:
        name: a CIFAR model, or `torchvision/<name>` for torchvision's classification models (no pretrained weights).
        image_size: side of the square images, pixels; vision transformers are built for it.
    """
    if name in _CIFAR:
        return _CIFAR[name](n_classes)
    from torchvision import models

    options: dict[str, object] = {"num_classes": n_classes, "weights": None}
    name = name.removeprefix("torchvision/")
    if name.startswith("vit_"):
        options["image_size"] = image_size
    if name in ("googlenet", "inception_v3"):
        options |= {"aux_logits": False, "init_weights": True}
    model: nn.Module = models.get_model(name, **options)
    return model


@contextlib.contextmanager
def _weights_without_memory() -> Iterator[None]:
    """Put parameters and buffers on the meta device as modules take them, in this thread.

    Under `torch.device("meta")` a constructor could not compute with tensors, as torchvision's RegNets do.
    """
    thread = threading.get_ident()  # torch's hooks are the process's, and others may build models too

    def parameter_of(_module: nn.Module, _name: str, parameter: nn.Parameter) -> nn.Parameter | None:
        if threading.get_ident() != thread:
            return None
        return nn.Parameter(parameter.to("meta"), requires_grad=parameter.requires_grad)

    def buffer_of(_module: nn.Module, _name: str, buffer: Tensor | None) -> Tensor | None:
        return None if buffer is None or threading.get_ident() != thread else buffer.to("meta")

    on_parameters = register_module_parameter_registration_hook(parameter_of)  # type: ignore[arg-type]
    on_buffers = register_module_buffer_registration_hook(buffer_of)  # type: ignore[arg-type]
    try:
        yield
    finally:
        on_parameters.remove()
        on_buffers.remove()


def check_model(name: str, *, n_classes: int, image_size: int, batch_size: int) -> None:
    """Pass a batch of shapes (no memory, no arithmetic) through the model in training mode.

    Raises:
        ConfigError: the images are too small or of the wrong size for this model.
    """
    try:
        with _weights_without_memory():
            model = build_image_model(name, n_classes=n_classes, image_size=image_size).train()
        with torch.device("meta"):
            logits = model(torch.empty(min(batch_size, 2), 3, image_size, image_size))
    except (RuntimeError, ValueError, AssertionError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ConfigError(
            f"model {name!r} does not take batches of {batch_size} images of {image_size}×{image_size}: {reason}. "
            "Choose another model, another image_size where the task has it (most models want a larger one, "
            "transformers a multiple of their patches), or a larger batch_size"
        ) from error
    assert logits.shape[1] == n_classes
