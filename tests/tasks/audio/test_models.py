"""Waves, spectrograms and masks, against transformers' own."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tasks.audio.models import FLOOR, LogMel, SpectrogramNet, span_mask, standardize, to_waves
from tests.tasks.audio.sounds import tone


def padded(*seconds: float, rate: int = 16_000) -> tuple[torch.Tensor, torch.Tensor]:
    waves = [torch.from_numpy(tone(440.0, seconds=s, rate=rate, seed=i)) for i, s in enumerate(seconds)]
    lengths = torch.tensor([len(wave) for wave in waves])
    return torch.nn.utils.rnn.pad_sequence(waves, batch_first=True), lengths


def test_standardized_as_wav2vec2s_extractor_does() -> None:
    from transformers import Wav2Vec2FeatureExtractor

    waves, lengths = padded(0.5, 0.2)
    extractor = Wav2Vec2FeatureExtractor(return_attention_mask=True)
    clips = [wave[:n].numpy() for wave, n in zip(waves, lengths.tolist(), strict=True)]
    expected = extractor(clips, sampling_rate=16_000, padding=True, return_tensors="pt")["input_values"]
    torch.testing.assert_close(standardize(waves, lengths), expected, rtol=1e-4, atol=1e-5)


def test_full_scale_is_1() -> None:
    assert to_waves(torch.tensor([32767, 0, -32767], dtype=torch.int16)).tolist() == [1.0, 0.0, -1.0]


def test_log_mel_is_transformers() -> None:
    from transformers.audio_utils import mel_filter_bank, spectrogram

    waves, lengths = padded(0.5)
    waves = standardize(waves, lengths)
    filters = mel_filter_bank(257, 40, 20.0, 8000.0, 16_000)
    window = np.hanning(401)[:-1]
    expected = spectrogram(
        waves[0].numpy().astype(np.float64),
        window,
        frame_length=400,
        hop_length=160,
        fft_length=512,
        power=2.0,
        pad_mode="constant",
    )
    bands = (filters / filters.sum(axis=0)).T @ expected / (window**2).sum()
    ours = LogMel(sample_rate=16_000, n_bands=40)(waves)[0].numpy()
    # The two place a frame of 400 in its transform of 512 differently, which moves the padded ends alone.
    np.testing.assert_allclose(ours[:, 3:-3], np.log(bands + FLOOR)[:, 3 : ours.shape[1] - 3], rtol=2e-2, atol=2e-2)


def test_white_noise_has_power_1() -> None:
    noise = torch.randn(4, 16_000, generator=torch.Generator().manual_seed(0))
    assert LogMel(sample_rate=16_000, n_bands=40)(noise).exp().mean().item() == pytest.approx(1.0, rel=0.05)


@pytest.mark.parametrize(
    ("width", "share", "length", "at_least"), [(49, 0.05, 10, 2), (200, 0.3, 10, 0), (12, 0.05, 10, 2), (5, 0.5, 10, 1)]
)
def test_masks_cover_as_much_as_wav2vec2s(width: int, share: float, length: int, at_least: int) -> None:
    from transformers.models.wav2vec2.modeling_wav2vec2 import _compute_mask_indices

    torch.manual_seed(0)
    np.random.seed(0)
    device = torch.device("cpu")
    draws = [span_mask(100, width, share=share, length=length, at_least=at_least, device=device) for _ in range(30)]
    mask = torch.cat(draws)
    shown = min(length, width)
    theirs = np.concatenate([_compute_mask_indices((100, width), share, shown, min_masks=at_least) for _ in range(30)])
    assert mask.shape == (3000, width)
    assert mask.float().mean().item() == pytest.approx(theirs.mean(), abs=0.02)
    runs = torch.nn.functional.pad(mask.int(), (1, 1)).diff(dim=1)
    lengths = (runs == -1).nonzero()[:, 1] - (runs == 1).nonzero()[:, 1]
    assert lengths.min() >= shown


def test_padding_changes_nothing() -> None:
    torch.manual_seed(0)
    net = SpectrogramNet(n_classes=4, sample_rate=8000, augment="none").eval()
    waves, lengths = padded(0.4, 0.21, rate=8000)
    alone, together = net(waves[1:, : lengths[1]], lengths[1:])[0], net(waves, lengths)
    torch.testing.assert_close(alone, together[1])
    assert (together[0] - together[1]).abs().max() > 1e-3  # while what is in a clip does
    assert net(waves[:, :400], torch.tensor([400, 400])).shape == (2, 4)  # the shortest batch
