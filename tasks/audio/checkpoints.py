"""wav2vec 2.0 and its kin, from transformers' checkpoints, so that a step can be captured and repeats from its seed.

Transformers draws the masks of SpecAugment and the layers to drop on the host, from numpy's generator too. Here both
are drawn on the device from torch's generator, by hooks; the probabilities are the checkpoint's own.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from tasks.audio.features import span_mask, standardize
from tasks.engine.node_cache import built_once
from tasks.errors import ConfigError
from tasks.text.models import ModelSource, build_model, load_config

KINDS = ("wav2vec2", "hubert", "wavlm", "unispeech", "unispeech-sat", "data2vec-audio")
PREPROCESSOR = "preprocessor_config.json"
TINY_FORMAT = 1  # raise it when the tiny model's sizes change


class CheckpointNet(nn.Module):
    """A checkpoint under a classification head.

    Args:
        freeze: whether the convolutional feature encoder is trained.
        augment: spec: mask as the checkpoint's configuration says, in training.
    """

    def __init__(
        self,
        source: ModelSource,
        *,
        n_classes: int,
        freeze: Literal["features", "nothing"],
        augment: Literal["none", "spec"],
    ) -> None:
        super().__init__()
        config = load_config(source)
        self.body = build_model(
            source,
            auto_class="AutoModelForAudioClassification",
            num_labels=n_classes,
            apply_spec_augment=False,
            layerdrop=0.0,
        )
        self._standardizes = expects_standardized(source)
        # Encoders normalised over time (group norm) were pretrained with silence for padding and without a mask.
        self._masks_padding = getattr(config, "feat_extract_norm", "group") == "layer"
        if freeze == "features":
            self.body.freeze_feature_encoder()  # type: ignore[operator]
        base: Any = self.body.base_model
        if augment == "spec" and hasattr(base, "masked_spec_embed"):
            base.feature_projection.register_forward_hook(partial(_mask_features, base, config))
        if (rate := float(getattr(config, "layerdrop", 0.0))) > 0.0:
            for layer in base.encoder.layers:
                layer.register_forward_hook(partial(_drop_layer, rate))

    def forward(self, waves: Tensor, lengths: Tensor) -> Tensor:
        """Logits (b, classes) of waves (b, width) in [−1, 1] whose clips have these lengths (b,)."""
        inputs = standardize(waves, lengths) if self._standardizes else waves
        mask = None
        if self._masks_padding:
            mask = (torch.arange(waves.shape[1], device=waves.device) < lengths[:, None]).long()
        logits: Tensor = self.body(inputs, attention_mask=mask).logits
        return logits


def check_checkpoint(source: ModelSource, *, sample_rate: int) -> None:
    """Refuse a checkpoint that does not hear waves, or hears another rate.

    Raises:
        ConfigError: with what it is and the next step.
    """
    config = load_config(source)
    if config.model_type not in KINDS:
        raise ConfigError(
            f"{source.origin} is a {config.model_type!r} model; recordings need one of {', '.join(KINDS)}"
        )
    rate = _preprocessor(source).get("sampling_rate", sample_rate)
    if not isinstance(rate, int):
        raise ConfigError(
            f"{source.folder / PREPROCESSOR} says sampling_rate {rate!r}, which is no whole number of Hz; copy the "
            "checkpoint again"
        )
    if rate != sample_rate:
        raise ConfigError(f"{source.origin} hears {rate} Hz; set sample_rate: {rate} (recordings are resampled)")


def expects_standardized(source: ModelSource) -> bool:
    """Whether clips are to have zero mean and unit variance, as the checkpoint's preprocessor says."""
    return bool(_preprocessor(source).get("do_normalize", True))


def tiny_source() -> ModelSource:
    """A wav2vec 2.0 of two layers with random weights: for trying things out, or learning small tasks from scratch."""
    folder = built_once("tiny", f"wav2vec2-{TINY_FORMAT}", _write_tiny)
    return ModelSource(folder=folder, origin="tiny: wav2vec 2.0, 2 layers of 96", weights="random")


def _write_tiny(folder: Path) -> None:
    from transformers import Wav2Vec2Config

    Wav2Vec2Config(
        hidden_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=192,
        conv_dim=(48,) * 7,
        num_conv_pos_embeddings=32,
        num_conv_pos_embedding_groups=4,
        classifier_proj_size=96,
        layerdrop=0.0,
        mask_time_prob=0.05,
        mask_time_length=4,
        hidden_dropout=0.1,
        feat_proj_dropout=0.0,
    ).save_pretrained(folder)


def _preprocessor(source: ModelSource) -> dict[str, Any]:
    path = source.folder / PREPROCESSOR
    try:
        content = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except ValueError as error:
        raise ConfigError(f"{path} is not JSON ({error}); copy the checkpoint again") from error
    return content if isinstance(content, dict) else {}


def _mask_features(base: Any, config: Any, module: nn.Module, args: Any, output: Any) -> Any:
    """After the projection: spans of frames become the learned mask vector, spans of features 0."""
    if not base.training:
        return None
    hidden: Tensor = output[0] if isinstance(output, tuple) else output
    n, n_frames, n_features = hidden.shape
    spans = partial(span_mask, n, device=hidden.device)
    if config.mask_time_prob > 0.0:
        times = spans(
            n_frames,
            share=config.mask_time_prob,
            length=config.mask_time_length,
            at_least=getattr(config, "mask_time_min_masks", 0),
        )
        hidden = torch.where(times[:, :, None], base.masked_spec_embed.to(hidden.dtype), hidden)
    if config.mask_feature_prob > 0.0:
        features = spans(
            n_features,
            share=config.mask_feature_prob,
            length=config.mask_feature_length,
            at_least=getattr(config, "mask_feature_min_masks", 0),
        )
        hidden = hidden.masked_fill(features[:, None, :], 0.0)
    return (hidden, *output[1:]) if isinstance(output, tuple) else hidden


def _drop_layer(rate: float, module: nn.Module, args: tuple[Tensor, ...], output: Any) -> Any:
    """After a layer: its input instead of its output, by chance, for the whole batch; the layer is computed anyway."""
    if not module.training:
        return None
    hidden: Tensor = output[0] if isinstance(output, tuple) else output
    dropped = torch.rand((), device=hidden.device) < rate
    kept = torch.where(dropped, args[0].to(hidden.dtype), hidden)
    return (kept, *output[1:]) if isinstance(output, tuple) else kept
