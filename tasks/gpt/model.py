"""The decoder: GPT-2's architecture (pre-norm blocks, learned positions, tied embeddings).

Source: Radford et al., "Language Models are Unsupervised Multitask Learners" (2019); the small sizes are minGPT's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

SIZES: Mapping[str, tuple[int, int, int]] = {
    "nano": (3, 3, 48),
    "micro": (4, 4, 128),
    "mini": (6, 6, 192),
    "gpt2": (12, 12, 768),
}
"""Layers, heads and width by name; gpt2 has 124 million parameters with 50,257 tokens and a context of 1,024."""


class Block(nn.Module):
    """Causal attention and a network of four times the width, each on normalised input and added to it."""

    def __init__(self, *, width: int, n_heads: int, dropout: float) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.attention_norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.attention_out = nn.Linear(width, width)
        self.network_norm = nn.LayerNorm(width)
        self.network_in = nn.Linear(width, 4 * width)
        self.network_out = nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, tokens, width) to the same shape."""
        batch, n_tokens, width = x.shape
        heads = self.qkv(self.attention_norm(x)).view(batch, n_tokens, 3, self.n_heads, width // self.n_heads)
        query, key, value = heads.permute(2, 0, 3, 1, 4).unbind(0)
        rate = self.dropout.p if self.training else 0.0
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True, dropout_p=rate)
        x = x + self.dropout(self.attention_out(mixed.transpose(1, 2).reshape(batch, n_tokens, width)))
        hidden = nn.functional.gelu(self.network_in(self.network_norm(x)), approximate="tanh")
        out: Tensor = x + self.dropout(self.network_out(hidden))
        return out


class Gpt(nn.Module):
    """Logits of the next token at each position.

    Args:
        size: a name of `SIZES`.
        n_tokens: of the vocabulary.
        context: positions.
    """

    def __init__(self, size: str, *, n_tokens: int, context: int, dropout: float) -> None:
        super().__init__()
        n_layers, n_heads, width = SIZES[size]
        self.tokens = nn.Embedding(n_tokens, width)
        self.positions = nn.Embedding(context, width)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(Block(width=width, n_heads=n_heads, dropout=dropout) for _ in range(n_layers))
        self.final_norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, n_tokens, bias=False)
        self.head.weight = self.tokens.weight
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
            elif parameter.dim() == 2:
                scale = math.sqrt(2 * n_layers) if name.endswith("_out.weight") else 1.0
                nn.init.normal_(parameter, std=0.02 / scale)

    def forward(self, tokens: Tensor) -> Tensor:
        """(batch, tokens) int64 to logits (batch, tokens, vocabulary)."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.dropout(self.tokens(tokens) + self.positions(places))
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.final_norm(x))
        return logits
