"""Checkpoints: written atomically, verified when read; only the newest and the best are kept.

A file is a magic word, a digest of what follows, and torch's own format; so a damaged file or one of another
program is detected before anything is unpickled, and only tensors and plain containers are (`weights_only=True`).

A directory is a path or an address: see `tasks.engine.folders`.
"""

from __future__ import annotations

import hashlib
import io
import pickle
import re
import struct
from collections.abc import Mapping, Set
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tasks.engine.folders import (
    BEST_CHECKPOINT,
    Folder,
    LocalFolder,
    checkpoint_name,
    find_best_checkpoint,
    find_checkpoints,
    open_folder,
)
from tasks.engine.transforms import is_batch_counter
from tasks.errors import CheckpointError, UnreadableError

_MAGIC = b"ADMETA1\n"
_DIGEST_BYTES = 32

_STATE_KEYS = ("run", "model", "state_dict", "model_state_dict")
_WRAPPERS = ("module", "_orig_mod")  # what DataParallel and torch.compile put before the names of parameters

UNREADABLE = (
    pickle.UnpicklingError,
    struct.error,
    RuntimeError,
    EOFError,
    ValueError,
    LookupError,
    AssertionError,
    TypeError,
    AttributeError,
    MemoryError,
)
"""What torch.load raises for bytes of another format."""


def save(directory: str | Path, state: Mapping[str, Any], *, epoch: int, best: Mapping[str, Any] | None = None) -> str:
    """Write a checkpoint, then remove the older ones; a newer one, of an attempt that was presumed dead, is kept.

    Args:
        directory: made where missing.
        state: tensors and plain containers, such as {"run": run.state_dict(), …}.
        epoch: epochs completed, ≥ 0; the newest has the highest.
        best: where it is the best so far, what another run would start from, such as {"model": …}; `best.pt` then holds
            it, in place of the former best.

    Returns:
        The name of this epoch's file.

    Raises:
        CheckpointError: it could not be written, the disk is full say; the former checkpoint is still there.
    """
    folder = open_folder(directory)
    name, content = checkpoint_name(epoch), _packed(state)
    try:
        if best is not None:
            folder.write(BEST_CHECKPOINT, _packed(best))
        folder.write(name, content)  # written after the best weights, which it says are saved
        for other_epoch, other in find_checkpoints(folder.names()):
            if other_epoch < epoch:
                folder.remove(other)
    except OSError as error:
        size = f"{len(content[-1]) / 2**20:.1f} MiB"
        raise CheckpointError(
            f"the checkpoint of epoch {epoch} ({size}) could not be written to {directory}: "
            f"{error.strerror or error}; make room or let the worker write there"
        ) from error
    return name


def _packed(state: Mapping[str, Any]) -> tuple[bytes, bytes, bytes]:
    buffer = io.BytesIO()
    torch.save(dict(state), buffer)
    payload = buffer.getvalue()
    return _MAGIC, hashlib.blake2b(payload, digest_size=_DIGEST_BYTES).digest(), payload


def load_latest(directory: str | Path) -> dict[str, Any] | None:
    """The newest checkpoint of a directory, on the CPU; None where there is none.

    Raises:
        CheckpointError: the newest file is damaged or of another program.
        UnreadableError: the storage did not give it.
    """
    folder = open_folder(directory)
    found = find_checkpoints(folder.names())
    return _load(folder, max(found)[1], directory) if found else None


def fetch_best(directory: str | Path, *, into: Path) -> Path | None:
    """A local file with a run's best weights, or the newest ones if no best are saved; None if there is no checkpoint.

    Args:
        into: a folder for a file that must be downloaded first.
    """
    folder = open_folder(directory)
    name = find_best_checkpoint(folder.names())
    if name is None:
        return None
    if isinstance(folder, LocalFolder):
        return folder.path / name
    (into / name).write_bytes(folder.read(name))
    return into / name


def load(path: str | Path) -> dict[str, Any]:
    """One checkpoint file, on the CPU.

    Raises:
        CheckpointError: the file is missing, damaged, of another program, or holds more than tensors and containers.
    """
    path = Path(path)
    return _load(LocalFolder(path.parent), path.name, path.parent)


def _load(folder: Folder, name: str, directory: str | Path) -> dict[str, Any]:
    path = f"{directory}/{name}"
    try:
        raw = folder.read(name)
    except OSError as error:
        raise UnreadableError(f"checkpoint {path} cannot be read: {error.strerror or error}") from error
    if not raw.startswith(_MAGIC):
        raise CheckpointError(f"{path} is not a checkpoint of admeta-search; give a file that this service wrote")
    return _open(raw, f"checkpoint {path}", instead="delete it, and the run starts from the beginning")


def _open(raw: bytes, path: str | Path, *, instead: str) -> dict[str, Any]:
    """The content of a file in this format.

    Args:
        instead: advice where it is damaged.
    """
    head = len(_MAGIC) + _DIGEST_BYTES
    digest, payload = raw[len(_MAGIC) : head], raw[head:]
    if hashlib.blake2b(payload, digest_size=_DIGEST_BYTES).digest() != digest:
        raise CheckpointError(f"{path} is damaged ({len(raw)} bytes, its digest does not match); {instead}")
    return _unpickle(payload, path)


def read_weights(path: Path) -> Mapping[str, Tensor]:
    """The model weights in a checkpoint of ours, in a `torch.save` of a state dict, or in a safetensors file.

    The state dict may be in a dictionary, under one of `_STATE_KEYS`.

    Raises:
        CheckpointError: the file is damaged or holds no weights, or weights that nothing can be trained from.
    """
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"init_from: {path} cannot be read: {error.strerror}") from error
    content: Any
    if raw.startswith(_MAGIC):
        content = _open(raw, f"init_from: {path}", instead="copy it again, or start without it")
    elif raw[8:9] == b"{":  # safetensors: after the length of the header, in JSON
        content = _read_safetensors(raw, path)
    else:
        content = _unpickle(raw, f"init_from: {path}")
    for key in _STATE_KEYS:
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
    weights = {str(name): value for name, value in content.items() if isinstance(value, Tensor)}
    if not weights:
        raise CheckpointError(f"init_from: {path} holds no weights; give a checkpoint or a saved state dict")
    for name, value in weights.items():
        if value.is_meta or value.layout is not torch.strided or value.is_complex():
            raise CheckpointError(
                f"init_from: {path}: {name!r} is sparse, complex or without values; weights are dense real numbers"
            )
        if value.isnan().any():
            raise CheckpointError(f"init_from: {path}: {name!r} holds NaN, which cannot be trained; give another file")
    return weights


def _read_safetensors(raw: bytes, path: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load as load_safetensors

    try:
        return load_safetensors(raw)
    except (SafetensorError, *UNREADABLE) as error:
        raise CheckpointError(
            f"init_from: {path} is not a whole safetensors file ({error}); copy it again, or start without it"
        ) from error


def load_weights(model: nn.Module, weights: Mapping[str, Tensor], *, source: str) -> None:
    """Copy weights into a model, in place.

    Prefixes that other programs put before names are removed: those of DataParallel and torch.compile anywhere, and one
    that all names share, such as `model.` of Lightning.

    Raises:
        CheckpointError: names or shapes differ; the message names the first that does.
    """
    own = {name: value for name, value in model.state_dict().items() if not is_batch_counter(name)}
    weights = {name: value for name, value in weights.items() if not is_batch_counter(name)}
    weights = _without_prefixes(weights, own.keys())
    for name in [*own, *weights]:
        have, want = weights.get(name), own.get(name)
        if have is None or want is None or have.shape != want.shape:
            prefixes = {name.partition(".")[0] for name in weights} - {name.partition(".")[0] for name in own}
            begin = f", where all names begin with {prefixes.pop()!r}" if len(prefixes) == 1 and have is None else ""
            raise CheckpointError(
                f"{source} is of another model: {name!r} is {_shape(have)} there{begin} and {_shape(want)} here; "
                "use the model it was trained with, or start without it"
            )
    model.load_state_dict(weights, strict=False)  # names are checked above; strict loading would require batch counters


def _without_prefixes(weights: Mapping[str, Tensor], own: Set[str]) -> Mapping[str, Tensor]:
    """The weights under the model's own names, if removing prefixes gives those; unchanged otherwise."""
    if weights.keys() == own:
        return weights
    names = {name: ".".join(part for part in name.split(".") if part not in _WRAPPERS) for name in weights}
    for _ in range(3):  # prefixes
        if len(set(names.values())) == len(names) and own == set(names.values()):
            return {names[name]: value for name, value in weights.items()}
        names = {name: short.partition(".")[2] for name, short in names.items()}
    return weights


def _unpickle(payload: bytes, path: str | Path) -> dict[str, Any]:
    try:
        content = torch.load(io.BytesIO(payload), map_location="cpu", weights_only=True)
    except UNREADABLE as error:
        # torch's own message advises to disable safe loading.
        held = re.search(r"GLOBAL (\S+) was not an allowed global", str(error))
        reason = f"it holds a {held[1]}" if held else "it is damaged, or not a file of torch.save"
        raise CheckpointError(
            f"{path} cannot be loaded: {reason}; a checkpoint holds tensors and plain containers, as "
            "torch.save(model.state_dict(), …) writes them"
        ) from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} holds a {type(content).__name__}; a checkpoint is a dictionary")
    return content


def _shape(tensor: Tensor | None) -> str:
    return "missing" if tensor is None else f"shape {tuple(tensor.shape)}"
