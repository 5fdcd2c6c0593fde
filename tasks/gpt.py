"""Language modelling on the engine: a text's tokens on the device, full sequences of them, cross-entropy in nats.

The decoder has GPT-2's architecture (pre-norm blocks, learned positions, tied embeddings).

Source: Radford et al., "Language Models are Unsupervised Multitask Learners" (2019); the small sizes are minGPT's.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tasks.config import Shape, resolve_inside
from tasks.data.find import build_once, open_data_folder
from tasks.engine.device import place_array
from tasks.engine.seeds import random_stream
from tasks.engine.task import Batch, Split, Task
from tasks.errors import ConfigError, DataError
from tasks.text.config import GPT_SIZES, GptConfig
from tasks.text.tokens import file_digest


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
        size: a name of `GPT_SIZES`.
        n_tokens: of the vocabulary.
        context: positions.
        shape: in place of that size's own width and heads.

    Attributes:
        width_over_base: the width over the base model's in µP, where hidden weights are drawn with the variance over it
            and logits are divided by it, as table 8 of Tensor Programs V has it for tied embeddings; 1 without µP.
    """

    def __init__(self, size: str, *, n_tokens: int, context: int, dropout: float, shape: Shape | None = None) -> None:
        super().__init__()
        n_layers, n_heads, width = GPT_SIZES[size]
        if shape is not None:
            n_heads, width = shape.n_heads, shape.width
        self.width_over_base = 1.0 if shape is None else shape.over_base
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
                if name.startswith("blocks."):
                    scale *= math.sqrt(self.width_over_base)
                nn.init.normal_(parameter, std=0.02 / scale)

    def forward(self, tokens: Tensor) -> Tensor:
        """(batch, tokens) int64 to logits (batch, tokens, vocabulary)."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.dropout(self.tokens(tokens) + self.positions(places))
        for block in self.blocks:
            x = block(x)
        x = self.final_norm(x)
        logits: Tensor = self.head(x if self.width_over_base == 1.0 else x / self.width_over_base)
        return logits


FORMAT = 1  # of the kept tokens; raise it when tokenizing changes
PIECE_BYTES = 2**20  # of text that are tokenized at once, cut at a line's end
EVAL_TOKENS = 2**15  # in a batch of an evaluation
N_BYTES = 256
IGNORED = -100
VOCABULARY_MULTIPLE = 64  # matrix products are faster with such sizes


@dataclass(frozen=True, kw_only=True)
class GptData:
    """The tokens of each split, int32 (n,), how many bytes each has, and the size of the vocabulary."""

    train: Tensor
    val: Tensor
    test: Tensor
    n_bytes: Mapping[str, int]
    n_tokens: int
    digest: str


class GptTask(Task[GptConfig, GptData]):
    """Training sequences are cut from the text one after another, from another first token in each pass.

    `bits_per_byte` compares tokenizers: the loss of the whole split in bits, over the split's bytes.
    """

    bf16_weights = "all"

    @classmethod
    def cache_key(cls, config: GptConfig) -> Hashable:
        fields = {"data_dir", "train_file", "val_file", "test_file", "val_fraction", "test_fraction"}
        vocabulary = config.vocab_size if config.tokenizer == "bpe" else N_BYTES
        return (config.model_dump_json(include=fields), config.tokenizer, vocabulary)

    @classmethod
    def load(cls, config: GptConfig, *, data_dir: Path | None, device: torch.device) -> GptData:
        root = open_data_folder(config.name, data_dir=data_dir, inner=config.data_dir)
        named = {"train": config.train_file, "val": config.val_file, "test": config.test_file}
        paths = {split: resolve_inside(root, file) for split, file in named.items() if file is not None}
        digest = file_digest(*paths.values())
        vocabulary = config.vocab_size if config.tokenizer == "bpe" else N_BYTES
        parts = [FORMAT, digest, sorted(paths), config.tokenizer, vocabulary, config.val_fraction, config.test_fraction]
        key = hashlib.blake2b(json.dumps(parts).encode(), digest_size=16).hexdigest()
        folder = build_once("gpt", key, partial(_write_tokens, paths=paths, config=config))
        facts = json.loads((folder / "facts.json").read_text())
        tokens = {
            split: place_array(np.load(folder / f"{split}.npy").astype(np.int32), device=device)
            for split in ("train", "val", "test")
        }
        n_tokens = math.ceil(facts["n_tokens"] / VOCABULARY_MULTIPLE) * VOCABULARY_MULTIPLE
        return GptData(**tokens, n_bytes=facts["n_bytes"], n_tokens=n_tokens, digest=digest)

    @property
    def n_train(self) -> int:
        """Training sequences of an epoch."""
        return (self.config.tokens_per_epoch or len(self.data.train) - 1) // self.config.context

    def build_model(self) -> nn.Module:
        config = self.config
        return Gpt(
            config.model,
            n_tokens=self.data.n_tokens,
            context=config.context,
            dropout=config.dropout,
            shape=config.shape,
        )

    def check_fit(self) -> None:
        if len(self.data.train) <= self.config.context:
            raise ConfigError(
                f"the training text has {len(self.data.train)} tokens, too few for one sequence of "
                f"{self.config.context} and the token after it; lower context or add text"
            )
        super().check_fit()

    def train_batches(self, *, seed: int, epoch: int) -> Iterator[Batch]:
        """Batches {"tokens": (batch, context + 1) int64}: inputs, and targets one token later."""
        size, context, tokens = self.config.batch_size, self.config.context, self.data.train
        place = torch.arange(context + 1, device=tokens.device)
        for begin in self._starts(seed=seed, epoch=epoch).reshape(-1, size):
            starts = torch.from_numpy(begin).to(tokens.device)
            yield {"tokens": tokens[starts[:, None] + place].long().to(self.device)}

    def _starts(self, *, seed: int, epoch: int) -> NDArray[np.int64]:
        """The first token of each sequence of an epoch, (whole batches × batch size,)."""
        context, n_wanted = self.config.context, self.batches_per_epoch * self.config.batch_size
        passes: list[NDArray[np.int64]] = []
        while sum(map(len, passes)) < n_wanted:
            stream = random_stream(seed, "sequences", epoch, len(passes))
            n_sequences = (len(self.data.train) - 1) // context
            surplus = len(self.data.train) - 1 - n_sequences * context
            passes.append(int(stream.integers(surplus + 1)) + context * stream.permutation(n_sequences))
        return np.concatenate(passes)[:n_wanted]

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        tokens = batch["tokens"]
        logits = model(tokens[:, :-1]).float()
        return nn.functional.cross_entropy(
            logits.flatten(0, 1), tokens[:, 1:].flatten(), label_smoothing=self.config.label_smoothing
        )

    def evaluate(self, model: nn.Module, split: Split) -> dict[str, float]:
        """`loss`, in nats per token after the first of its sequence's tokens before it, and `bits_per_byte`."""
        tokens: Tensor = getattr(self.data, split)
        context, n_predicted = self.config.context, len(tokens) - 1
        n_sequences = math.ceil(n_predicted / context)
        padding = n_sequences * context - n_predicted
        inputs = nn.functional.pad(tokens[:-1], (0, padding)).view(n_sequences, context)
        targets = nn.functional.pad(tokens[1:].long(), (0, padding), value=IGNORED).view(n_sequences, context)
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        at_once = max(1, EVAL_TOKENS // context)
        for begin in range(0, n_sequences, at_once):
            part = slice(begin, begin + at_once)
            logits = model(inputs[part].long().to(self.device)).float()
            total += nn.functional.cross_entropy(
                logits.flatten(0, 1), targets[part].to(self.device).flatten(), ignore_index=IGNORED, reduction="sum"
            )
        nats = float(total)
        return {"loss": nats / n_predicted, "bits_per_byte": nats / math.log(2) / self.data.n_bytes[split]}

    def record(self) -> dict[str, Any]:
        data = self.data
        sizes = {"n_train_tokens": len(data.train), "n_val_tokens": len(data.val), "n_test_tokens": len(data.test)}
        return {**super().record(), **sizes, "n_vocabulary": data.n_tokens, "data_digest": data.digest}


def _write_tokens(folder: Path, *, paths: Mapping[str, Path], config: GptConfig) -> None:
    texts = {split: path.read_bytes() for split, path in paths.items()}
    for split, fraction in (("test", config.test_fraction), ("val", config.val_fraction)):
        if split not in texts:
            n_held_out = round(fraction * paths["train"].stat().st_size)
            place = _next_character(texts["train"], len(texts["train"]) - n_held_out)
            texts[split], texts["train"] = texts["train"][place:], texts["train"][:place]
    for split, text in texts.items():
        if len(text) < 2:
            raise DataError(f"the {split} text has {len(text)} bytes; add text, or raise its fraction")
    n_tokens = N_BYTES
    tokens: dict[str, NDArray[Any]] = {split: np.frombuffer(text, dtype=np.uint8) for split, text in texts.items()}
    if config.tokenizer == "bpe":
        tokenizer = _train_bpe(_pieces(texts["train"], path=paths["train"]), vocab_size=config.vocab_size)
        n_tokens = tokenizer.get_vocab_size()
        for split, text in texts.items():
            pieces = _pieces(text, path=paths.get(split, paths["train"]))
            tokens[split] = np.concatenate([np.array(tokenizer.encode(piece).ids, dtype=np.uint16) for piece in pieces])
    for split, array in tokens.items():
        np.save(folder / f"{split}.npy", array)
    facts = {"n_tokens": n_tokens, "n_bytes": {split: len(text) for split, text in texts.items()}}
    (folder / "facts.json").write_text(json.dumps(facts))


def _next_character(text: bytes, place: int) -> int:
    """The first place from here that does not cut a UTF-8 character."""
    while place < len(text) and text[place] & 0xC0 == 0x80:
        place += 1
    return place


def _pieces(text: bytes, *, path: Path) -> Iterator[str]:
    """Parts of a text that end at lines' ends; `path` is the file, for errors."""
    begin = 0
    while begin < len(text):
        end = text.find(b"\n", begin + PIECE_BYTES)
        end = len(text) if end < 0 else end + 1
        try:
            yield text[begin:end].decode()
        except UnicodeDecodeError as error:
            place = begin + error.start
            raise DataError(
                f"{path} is not UTF-8 ({error.reason} near byte {place}); convert it, or set tokenizer: bytes"
            ) from error
        begin = end


def _train_bpe(pieces: Iterator[str], *, vocab_size: int) -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, initial_alphabet=sorted(alphabet), show_progress=False)
    tokenizer.train_from_iterator(pieces, trainer)
    return tokenizer
