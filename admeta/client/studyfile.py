"""Reading a study from a YAML or JSON file, as JSON values that the service can be sent.

Owns the syntax only; what a study may say is checked by the service (`search.definition`).
"""

from __future__ import annotations

import copy
import json
import re
import sys
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from admeta.client.errors import StudyFileError


class _Loader(yaml.SafeLoader):
    """YAML with the numbers people write: 1e-4 is a number, and on, off, yes and no are words, not booleans."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:  # noqa: FBT001, FBT002
        seen: set[str] = set()
        for key, _ in node.value:
            if str(key.value) in seen:
                raise yaml.constructor.ConstructorError(None, None, f"key '{key.value}' stands twice", key.start_mark)
            seen.add(str(key.value))
        return super().construct_mapping(node, deep)


_STDIN = Path("-")
_BOOL = re.compile(r"^(true|True|TRUE|false|False|FALSE)$")
_FLOAT = re.compile(
    r"^([-+]?([0-9]+\.[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?|[-+]?[0-9]+[eE][-+]?[0-9]+"
    r"|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN))$"
)
MAX_NODES = 100_000
_TAG = "tag:yaml.org,2002:"
_REPLACED = ("timestamp", "bool", "float")
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag.removeprefix(_TAG) not in _REPLACED]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(_TAG + "bool", _BOOL, list("tTfF"))
_Loader.add_implicit_resolver(_TAG + "float", _FLOAT, list("-+0123456789."))


def load(path: Path) -> dict[str, Any]:
    """The study in the file; `-` is stdin.

    Raises:
        StudyFileError: the file cannot be read, is not YAML, or is not one object.
    """
    try:
        text = sys.stdin.read() if path == _STDIN else path.read_text(encoding="utf-8")
    except OSError as error:
        raise StudyFileError(
            f"file '{path}' cannot be read: {error.strerror}.", hint="Give the path of a study's YAML or JSON file."
        ) from None
    except UnicodeDecodeError:
        raise StudyFileError(f"file '{path}' is not UTF-8 text.", hint="Save it as UTF-8.") from None
    return parse(text, source=f"file '{path}'")


def parse(text: str, *, source: str) -> dict[str, Any]:
    """The study in a text.

    Args:
        source: what errors call the text.

    Raises:
        StudyFileError: it is not YAML, or is not one object, or its aliases make it larger than MAX_NODES values.
    """
    try:
        loader = _Loader(text)  # a SafeLoader
        node = loader.get_single_node()
        n_nodes = _size(node, {})
        value = loader.construct_document(node) if node is not None and n_nodes <= MAX_NODES else None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise StudyFileError(f"{source} is not YAML: {_where(error)}", hint="Correct it there.") from None
    if n_nodes > MAX_NODES:
        detail = f"{source} holds more than {MAX_NODES:,} values, with those that its aliases repeat."
        raise StudyFileError(detail, hint="A study is a few hundred values: shorten its choices.")
    try:
        json.dumps(value)
    except (TypeError, ValueError) as error:
        raise StudyFileError(
            f"{source} holds what JSON cannot say: {error}.", hint="Use numbers, text, true, false, lists."
        ) from None
    if not isinstance(value, dict):
        raise StudyFileError(
            f"{source} holds {type(value).__name__}; it must hold one study, an object with a 'name'.",
            hint="studies/digits.yaml is an example.",
        )
    return value


def _size(node: yaml.Node | None, known: dict[int, int]) -> int:
    """Values that a document has, each as often as aliases repeat it; they can make a few lines endless."""
    if node is None:
        return 0
    if id(node) not in known:
        known[id(node)] = MAX_NODES + 1  # what an alias to a node within itself counts
        children: list[yaml.Node] = []
        if isinstance(node, yaml.SequenceNode):
            children = node.value
        elif isinstance(node, yaml.MappingNode):
            children = [part for pair in node.value for part in pair]
        known[id(node)] = 1 + sum(_size(child, known) for child in children)
    return known[id(node)]


def with_changes(definition: Mapping[str, Any], changes: Sequence[str]) -> dict[str, Any]:
    """The study with values set from the command line: `optimizers.0.space.lr.low=1e-4`.

    Args:
        definition: a study as `load` gives it; it stays as it is.
        changes: each a path of keys and list positions, '=', and a value in YAML. Objects on the way are made.

    Raises:
        StudyFileError: a change has no '=', its value is not YAML, or its path leads through what is no object or list.
    """
    changed: dict[str, Any] = copy.deepcopy(dict(definition))
    for change in changes:
        path, equals, text = change.partition("=")
        keys = path.split(".")
        if not equals or not all(keys):
            raise StudyFileError(
                f"'{change}' must be path=value.", hint="For example --set budget.trials_per_optimizer=5"
            )
        try:
            value = yaml.load(text, Loader=_Loader)
            parent: Any = changed
            for key in keys[:-1]:
                parent = parent.setdefault(key, {}) if isinstance(parent, dict) else parent[int(key)]
            parent[keys[-1] if isinstance(parent, dict) else int(keys[-1])] = value
        except yaml.YAMLError as error:
            raise StudyFileError(f"the value of '{change}' is not YAML: {_where(error)}", hint="Quote it.") from None
        except (TypeError, ValueError, IndexError, AttributeError):
            raise StudyFileError(
                f"'{path}' leads nowhere in the study.", hint="Count list items from 0: optimizers.0.space.lr.low"
            ) from None
    return changed


def _where(error: Exception) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or str(error)
    return f"line {mark.line + 1}, column {mark.column + 1}: {problem}." if mark else f"{problem}."
