"""Image tasks whose model is chosen from the shared list."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

from torch import nn

from tasks.vision.config import SplitImageConfig
from tasks.vision.models import build_image_model, check_model
from tasks.vision.task import ImageTask

SplitConfigT = TypeVar("SplitConfigT", bound=SplitImageConfig)


class NamedModelTask(ImageTask[SplitConfigT], Generic[SplitConfigT]):
    """Models by name (`tasks.vision.models`), square RGB images, validation split off the training set."""

    @classmethod
    def cache_key(cls, config: SplitConfigT) -> Hashable:
        return (super().cache_key(config), config.val_fraction)

    def build_model(self) -> nn.Module:
        return build_image_model(self.config.model, n_classes=self._n_classes, image_size=self._image_size)

    def check_fit(self) -> None:
        super().check_fit()
        check_model(
            self.config.model,
            n_classes=self._n_classes,
            image_size=self._image_size,
            batch_size=self.config.batch_size,
        )

    @property
    def _n_classes(self) -> int:
        return len(self.data.classes)

    @property
    def _image_size(self) -> int:
        return int(self.data.train.images.shape[1])
