"""From samples to what models hear: waves of unit variance, log-mel spectrograms, and masks over spans of either."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tasks.audio.reading import FULL_SCALE

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
    most = max(1, min(max(int(exact) + 1, at_least), width // length))  # spans must be able to stand side by side
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
