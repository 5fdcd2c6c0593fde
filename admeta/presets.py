"""Option presets of AdmetaR and AdmetaS, and the names of their option values.

Owns: where the paper, the authors' own runs and their released source differ. Plain data, no torch.
Source: Chen et al., ICML 2023, Algorithms 1 and 2; the authors' compiled files and released source.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final

from admeta.errors import UnknownPresetError

__all__ = [
    "ADMETAR_PRESETS", "ADMETAS_PRESETS", "DEMA_FORMS", "FROM_PRESET", "SLOW_STEPS", "UNRECTIFIED_FORMS",
    "FromPreset", "preset_options",
]  # fmt: skip


class FromPreset(Enum):
    """Type of FROM_PRESET, the default of an option that its preset decides (None is a value of its own)."""

    TOKEN = "from preset"


FROM_PRESET: Final = FromPreset.TOKEN

DEMA_FORMS = ("full", "off", "released")
SLOW_STEPS = ("dynamic_0.8", "dynamic_0.5")
UNRECTIFIED_FORMS = ("skip", "sgd")

ADMETAS_PRESETS: Mapping[str, Mapping[str, object]] = {
    "default": {"dema": "full", "nu_scale": 1.0, "slow_step": "dynamic_0.8"},
    "paper": {"dema": "full", "nu_scale": 1.0, "slow_step": "dynamic_0.8"},
    "paper_finetune": {"dema": "full", "nu_scale": 1.0, "slow_step": "dynamic_0.5"},
    "authors": {"dema": "full", "nu_scale": 10.0, "slow_step": "dynamic_0.8"},
    # The scalar μ of the released source is a bug (every coordinate drifts); kept for replication only.
    "released": {"dema": "released", "nu_scale": 10.0, "slow_step": "dynamic_0.8"},
}

_RECTIFIED = {"rectify": True, "rho_min": 5.0, "unrectified": "skip", "gate_exp_avg_sq": False}
_AS_BOXED = {"rectify": True, "rho_min": 4.0, "unrectified": "sgd", "gate_exp_avg_sq": True}

ADMETAR_PRESETS: Mapping[str, Mapping[str, object]] = {
    "default": {**ADMETAS_PRESETS["default"], **_RECTIFIED},
    "paper": {**ADMETAS_PRESETS["paper"], **_AS_BOXED},
    "paper_finetune": {**ADMETAS_PRESETS["paper_finetune"], **_AS_BOXED},
    "authors": {**ADMETAS_PRESETS["authors"], **_RECTIFIED, "slow_step": 0.5},
    "released": {**ADMETAS_PRESETS["released"], **_RECTIFIED, "rectify": False},
}


def preset_options(
    optimizer: str, presets: Mapping[str, Mapping[str, object]], name: str, given: Mapping[str, object]
) -> dict[str, object]:
    """The preset's options, replaced by the given ones.

    Args:
        optimizer: for the error's text.
        presets: ADMETAR_PRESETS or ADMETAS_PRESETS.
        name: the preset.
        given: every option of the preset, FROM_PRESET where the caller said nothing; what is stated wins.

    Raises:
        UnknownPresetError: no such preset.
    """
    if name not in presets:
        raise UnknownPresetError(optimizer=optimizer, name=name, known=presets)
    stated = {option: value for option, value in given.items() if value is not FROM_PRESET}
    return {**presets[name], **stated}
