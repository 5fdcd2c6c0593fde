"""Audio models: a small convolutional net on log-mel spectrograms, and wav2vec 2.0 and similar checkpoints.

Transformers draws the masks of SpecAugment and the layers to drop on the host. Here hooks draw both on the device from
torch's generator, so that a step can be captured and is reproducible; the probabilities are the checkpoint's own.
"""

from __future__ import annotations

import itertools
import json
import math
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from tasks.audio.recordings import FULL_SCALE
from tasks.data.find import build_once
from tasks.data.pretrained import ModelSource, build_model, load_config
from tasks.errors import ConfigError

FRAME_S = 0.025
HOP_S = 0.010
FLOOR = 1e-3  # of the power of a band, where a wave of unit variance has about 1: −30 dB


def to_waves(samples: Tensor) -> Tensor:
    """int16 to float32 in [−1, 1]."""
    return samples.float() / FULL_SCALE


def standardize(waves: Tensor, lengths: Tensor) -> Tensor:
    """Each clip to zero mean and unit variance over its own length; padding stays 0.

    Args:
        waves: float32 (b, width), 0 beyond each clip's length.
        lengths: int64 (b,).
    """
    inside = torch.arange(waves.shape[1], device=waves.device) < lengths[:, None]
    n = lengths[:, None].float()
    mean = waves.sum(dim=1, keepdim=True) / n
    centred = (waves - mean) * inside
    variance = centred.square().sum(dim=1, keepdim=True) / n
    return centred / torch.sqrt(variance + 1e-7)  # transformers' feature extractors have this 1e-7


def span_mask(n: int, width: int, *, share: float, length: int, at_least: int, device: torch.device) -> Tensor:
    """Random spans to mask, drawn on the device without the host: bool (n, width).

    Args:
        share: of the width that spans would cover if none overlapped; their number is rounded up or down by chance,
            once for all rows, as wav2vec 2.0 does it.
        length: of a span.
        at_least: spans in a row, at least.
    """
    length = min(length, width)
    exact = share * width / length
    most = max(1, min(max(int(exact) + 1, at_least), width // length))  # spans must fit side by side
    starts = torch.rand(n, width - length + 1, device=device).topk(most, dim=1).indices
    count = torch.clamp(torch.floor(exact + torch.rand((), device=device)), min=at_least)
    used = torch.arange(most, device=device) < count
    place = torch.arange(width, device=device)
    behind = place - starts[:, :, None]
    covered = (behind >= 0) & (behind < length) & used[:, None]
    return covered.any(dim=1)


class LogMel(nn.Module):
    """Log-mel spectrogram of standardised waves, in float32 whatever the precision around it.

    Frames of 25 ms (Hann) every 10 ms; the power of a band is scaled so that white noise of unit variance has 1.
    """

    window: Tensor
    bands: Tensor

    def __init__(self, *, sample_rate: int, n_bands: int) -> None:
        super().__init__()
        from transformers.audio_utils import mel_filter_bank

        self.hop = round(HOP_S * sample_rate)
        frame = round(FRAME_S * sample_rate)
        self._n_fft = 1 << (frame - 1).bit_length()
        filters = mel_filter_bank(
            num_frequency_bins=self._n_fft // 2 + 1,
            num_mel_filters=n_bands,
            min_frequency=20.0,
            max_frequency=sample_rate / 2,
            sampling_rate=sample_rate,
        )
        bands = torch.from_numpy(filters).float()
        self.register_buffer("window", torch.hann_window(frame), persistent=False)
        self.register_buffer("bands", bands / bands.sum(dim=0).clamp_min(1e-9), persistent=False)

    def forward(self, waves: Tensor) -> Tensor:
        """(b, width) to (b, bands, 1 + width // hop), natural logarithms from log `FLOOR`."""
        with torch.autocast(waves.device.type, enabled=False):
            spectrum = torch.stft(
                waves.float(),
                self._n_fft,
                hop_length=self.hop,
                win_length=len(self.window),
                window=self.window,
                pad_mode="constant",
                return_complex=True,
            )
            power = spectrum.abs().square() / self.window.square().sum()
            return torch.log(torch.einsum("bft,fm->bmt", power, self.bands) + FLOOR)


N_BANDS = 40
CHANNELS = (16, 32, 64)
MASKED_TIME = 0.15
MASKED_BANDS = 0.15


class SpectrogramNet(nn.Module):
    """Four 3×3 convolutions with batch norm, the first three halving time and bands; mean and maximum over time.

    61,690 parameters at ten classes.
    """

    def __init__(self, *, n_classes: int, sample_rate: int, augment: Literal["none", "spec"]) -> None:
        super().__init__()
        self.features = LogMel(sample_rate=sample_rate, n_bands=N_BANDS)
        self._augment = augment
        self.blocks = nn.ModuleList(
            _convolution(before, after) for before, after in itertools.pairwise((1, *CHANNELS, CHANNELS[-1]))
        )
        self.pool = nn.MaxPool2d(2, ceil_mode=True)
        self.dropout = nn.Dropout(0.3)
        self.head = nn.Linear(2 * CHANNELS[-1], n_classes)

    def forward(self, waves: Tensor, lengths: Tensor) -> Tensor:
        """Logits (b, classes) of waves (b, width) whose clips have these lengths (b,); loudness has no effect."""
        bands = self.features(standardize(waves, lengths)) - math.log(FLOOR)  # silence is 0, as padding is
        if self.training and self._augment == "spec":
            bands = _mask(bands)
        heard = lengths // self.features.hop + 1  # frames; padding stays silent
        maps = bands.unsqueeze(1) * _inside(heard, bands.shape[2])
        for place, block in enumerate(self.blocks):
            if place:
                maps, heard = self.pool(maps), (heard + 1) // 2
            maps = block(maps) * _inside(heard, maps.shape[3])
        maps = maps.mean(dim=2)
        mean = maps.sum(dim=2) / heard[:, None]
        largest = maps.amax(dim=2)  # values are ≥ 0, so padding does not change it
        logits: Tensor = self.head(self.dropout(torch.cat([mean, largest], dim=1)))
        return logits


def _convolution(before: int, after: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(before, after, 3, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU())


def _inside(heard: Tensor, n_frames: int) -> Tensor:
    return torch.arange(n_frames, device=heard.device) < heard[:, None, None, None]


def _mask(bands: Tensor) -> Tensor:
    """Silence in a few spans of time and one of bands, of each clip its own."""
    n, n_bands, n_frames = bands.shape
    times = span_mask(n, n_frames, share=MASKED_TIME, length=max(1, n_frames // 10), at_least=1, device=bands.device)
    rows = span_mask(n, n_bands, share=MASKED_BANDS, length=n_bands // 7, at_least=1, device=bands.device)
    return bands.masked_fill(times[:, None, :] | rows[:, :, None], 0.0)


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
    """Check that a checkpoint takes waves of this rate.

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
            f"{source.folder / PREPROCESSOR} says sampling_rate {rate!r}, which is not a whole number of Hz; copy the "
            "checkpoint again"
        )
    if rate != sample_rate:
        raise ConfigError(f"{source.origin} expects {rate} Hz; set sample_rate: {rate} (recordings are resampled)")


def expects_standardized(source: ModelSource) -> bool:
    """Whether clips must have zero mean and unit variance, as the checkpoint's preprocessor says."""
    return bool(_preprocessor(source).get("do_normalize", True))


def tiny_source() -> ModelSource:
    """A wav2vec 2.0 of two layers with random weights: for trying things out, or learning small tasks from scratch."""
    folder = build_once("tiny", f"wav2vec2-{TINY_FORMAT}", _write_tiny)
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
