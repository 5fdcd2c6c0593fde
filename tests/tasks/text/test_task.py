"""Which of torch's attention kernels rows of a width may use, and that the setting comes back."""

from __future__ import annotations

import pytest
import torch

from tasks.text.task import SHORT, attention_for


def enabled() -> bool:
    return bool(torch.backends.cuda.cudnn_sdp_enabled())  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("width", [8, SHORT, SHORT + 8, 384])
def test_short_rows_do_without_cudnns(width: int, before: bool) -> None:
    found = enabled()
    try:
        torch.backends.cuda.enable_cudnn_sdp(before)
        with attention_for(width):
            assert enabled() is (before and width > SHORT)
        assert enabled() is before
        with pytest.raises(RuntimeError, match="in the model"), attention_for(width):
            raise RuntimeError("in the model")
        assert enabled() is before
    finally:
        torch.backends.cuda.enable_cudnn_sdp(found)
