"""`tiny`: a two-layer BERT with random weights whose vocabulary comes from the training texts; for trying things out.

Needs no network and no package beside transformers. It learns what words alone can tell, which is enough to see a
study at work; it says nothing of what a pretrained model would reach.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from tasks.engine.node_cache import built_once
from tasks.text.models import ModelSource, find_model

TINY = "tiny"
VOCABULARY = 8192
COUNTED = 20_000  # texts, evenly spaced: the rest would change little and take a while
POSITIONS = 512
FORMAT = 1  # raise it when the vocabulary or the sizes below change
_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def choose_model(name: str, *, data_dir: Path | None, texts: Callable[[], Sequence[str]], digest: str) -> ModelSource:
    """The checkpoint of any name: `tiny` made for some texts, every other one found (`tasks.text.models.find_model`).

    Args:
        texts: gives the training set's texts, where they are needed.
        digest: names their content: equal digests share one vocabulary.

    Raises:
        DataError: the checkpoint is nowhere, or what `texts` raises.
    """
    if name != TINY:
        return find_model(name, data_dir=data_dir)
    folder = built_once("tiny", f"{digest}-{FORMAT}", lambda folder: _write(folder, texts()))
    return ModelSource(folder=folder, origin="tiny: 2 layers of 128", weights="random")


def _write(folder: Path, texts: Sequence[str]) -> None:
    from tokenizers import Tokenizer, decoders, normalizers, pre_tokenizers, processors
    from tokenizers.models import WordPiece
    from transformers import BertConfig, PreTrainedTokenizerFast

    normalizer, splitter = normalizers.BertNormalizer(lowercase=True), pre_tokenizers.BertPreTokenizer()
    words: Counter[str] = Counter()
    for text in texts[:: max(1, len(texts) // COUNTED)]:
        words.update(word for word, _ in splitter.pre_tokenize_str(normalizer.normalize_str(text)))
    vocabulary = _vocabulary(words)
    tokenizer = Tokenizer(WordPiece(vocabulary, unk_token="[UNK]", max_input_chars_per_word=100))
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = splitter
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", vocabulary["[SEP]"]), ("[CLS]", vocabulary["[CLS]"]))
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
        model_max_length=POSITIONS,
    ).save_pretrained(folder)
    BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=512,
        max_position_embeddings=POSITIONS,
        pad_token_id=vocabulary["[PAD]"],
    ).save_pretrained(folder)


def _vocabulary(words: Counter[str]) -> dict[str, int]:
    """Special tokens, every character alone and as a continuation, then the most frequent words; ties by spelling."""
    characters: Counter[str] = Counter()
    for word, count in words.items():
        for character in word:
            characters[character] += count
    common = [character for character, _ in _ranked(characters)[: VOCABULARY // 8]]
    pieces = [*_SPECIAL, *common, *(f"##{character}" for character in common)]
    pieces += [word for word, _ in _ranked(words) if len(word) > 1]
    return {piece: index for index, piece in enumerate(pieces[:VOCABULARY])}


def _ranked(counts: Counter[str]) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))
