"""Studies as YAML or JSON text: reading, changing values, writing.

Owns the syntax only; the service checks what a study may contain (`search.definition`). The YAML is version 1.2, which
PyYAML does not read by itself.
"""

from __future__ import annotations

import copy
import json
import re
import sys
from collections.abc import Hashable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from admeta.client.errors import StudyFileError

MAX_NODES = 100_000
MAX_DEPTH = 100
_MAX_SHOWN = 10
_NAMED = ("task", "sampler", "pruner")
"""Fields of a study that may be a name in place of an object."""
_STDIN = Path("-")
_KINDS = {list: "a list", type(None): "nothing"}
_TAG = "tag:yaml.org,2002:"
_AMBIGUOUS = re.compile(r"[-+]?(0[0-9][0-9_]*|0b[01_]+|[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?|[0-9]+_[0-9_.]*)")
"""Plain values that YAML 1.1 and YAML 1.2 read as different numbers, or that only one of them reads as a number."""
_CORE_SCHEMA = {
    "bool": (r"true|True|TRUE|false|False|FALSE", "tTfF"),
    "int": (r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", "-+0123456789"),
    "float": (
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        "-+.0123456789",
    ),
    "null": (r"~|null|Null|NULL|", "~nN"),
}
"""What plain values mean in YAML 1.2 (yaml.org/spec/1.2.2, section 10.3.2), and their first characters."""


class _Loader(yaml.SafeLoader):
    """YAML 1.2: 1e-4 is a number, on, off, yes and no are text, and no number is octal or sexagesimal by surprise."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:  # noqa: FBT001, FBT002
        seen: set[str] = set()
        for key, _ in node.value:
            if str(key.value) in seen:
                raise yaml.constructor.ConstructorError(None, None, f"key '{key.value}' occurs twice", key.start_mark)
            seen.add(str(key.value))
        return super().construct_mapping(node, deep)

    def construct_int(self, node: yaml.ScalarNode) -> int:
        """A decimal number, or 0o17 or 0x1f."""
        text = str(node.value)
        return int(text, {"0o": 8, "0x": 16}.get(text[:2], 10))


class _Dumper(yaml.SafeDumper):
    """YAML that `_Loader`, and a loader of YAML 1.1, read as the same values: other text is quoted."""


_Loader.yaml_implicit_resolvers = {}
for _name, (_pattern, _first) in _CORE_SCHEMA.items():
    _Dumper.add_implicit_resolver(_TAG + _name, re.compile(f"^(?:{_pattern})$"), [*_first])
    _Loader.add_implicit_resolver(_TAG + _name, re.compile(f"^(?:{_pattern})$"), [*_first])
_Loader.yaml_implicit_resolvers.setdefault("", []).extend(_Loader.yaml_implicit_resolvers["~"])  # an empty value
_Loader.add_constructor(_TAG + "int", _Loader.construct_int)
_Dumper.add_implicit_resolver(_TAG + "int", re.compile(f"^(?:{_AMBIGUOUS.pattern})$"), [*"-+0123456789"])


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
    if _depth(text) > MAX_DEPTH:  # the scanner's time grows with the square of the depth
        raise StudyFileError(
            f"{source} is not YAML: its brackets are nested deeper than {MAX_DEPTH} levels.", hint="Close them."
        )
    try:
        value = _value(text, source=source)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise StudyFileError(f"{source} is not YAML: {_where(error)}", hint="Correct it there.") from None
    if not isinstance(value, dict):
        raise StudyFileError(
            f"{source} holds {_KINDS.get(type(value), 'a single value')}; it must hold one object.",
            hint="A study is an object with a 'name'; studies/digits.yaml is an example.",
        )
    return value


def _enter(parent: Any, key: str) -> Any:
    """The object or list at a key. A name in its place, as in `task: digits`, becomes an object with that name."""
    place: Any = key if isinstance(parent, dict) else int(key)
    if isinstance(parent, dict):
        parent.setdefault(place, {})
    if isinstance(parent[place], str) and (isinstance(parent, list) or key in _NAMED):
        parent[place] = {"name": parent[place]}
    return parent[place]


def _value(text: str, *, source: str, path: str = "") -> Any:
    """The JSON value in a YAML text.

    Args:
        path: where the value belongs in a study; errors name the fields in it.

    Raises:
        yaml.YAMLError, ValueError, RecursionError: it is not YAML.
        StudyFileError: it is too large, has an ambiguous number, or holds something that JSON cannot express.
    """
    loader = _Loader(text)  # a SafeLoader
    node = loader.get_single_node()
    if _size(node, {}) > MAX_NODES:
        detail = f"{source} holds more than {MAX_NODES:,} values, with those that its aliases repeat."
        raise StudyFileError(detail, hint="A study has a few hundred values: shorten its choices.")
    found = [f"{field} = {plain}" for field, plain in _plain_values(node, path) if _AMBIGUOUS.fullmatch(plain)]
    if found:
        raise StudyFileError(
            f"{source}: YAML 1.1 and YAML 1.2 read these as different values: {', '.join(found[:_MAX_SHOWN])}.",
            hint="Write a number in decimal digits, without a leading zero, ':' or '_'; quote it where it is text.",
        )
    value = None if node is None else loader.construct_document(node)
    try:
        json.dumps(value)
    except (TypeError, ValueError) as error:
        raise StudyFileError(
            f"{source} holds something that JSON cannot express: {error}.",
            hint="Use numbers, text, true, false, null, lists and objects.",
        ) from None
    return value


def _depth(text: str) -> int:
    """How deep the brackets of a text are nested at most; those in quotes count too."""
    depth = deepest = 0
    for bracket in re.findall(r"[][{}]", text):
        depth += 1 if bracket in "[{" else -1
        deepest = max(deepest, depth)
    return deepest


def _plain_values(node: yaml.Node | None, path: str) -> Iterator[tuple[str, str]]:
    """Every value without quotes and without a tag, with the path of its field."""
    if isinstance(node, yaml.ScalarNode):
        if node.style is None:
            yield path, node.value
        return
    children: list[tuple[str, yaml.Node]] = []
    if isinstance(node, yaml.SequenceNode):
        children = [(str(position), child) for position, child in enumerate(node.value)]
    elif isinstance(node, yaml.MappingNode):
        children = [(str(key.value), child) for key, child in node.value]
    for name, child in children:
        yield from _plain_values(child, f"{path}.{name}" if path else name)


def _size(node: yaml.Node | None, known: dict[int, int]) -> int:
    """Number of values in a document, each counted as often as aliases repeat it, which can be exponentially often."""
    if node is None:
        return 0
    if id(node) not in known:
        known[id(node)] = MAX_NODES + 1  # the size of an alias to a node that contains it
        children: list[yaml.Node] = []
        if isinstance(node, yaml.SequenceNode):
            children = node.value
        elif isinstance(node, yaml.MappingNode):
            children = [part for pair in node.value for part in pair]
        known[id(node)] = 1 + sum(_size(child, known) for child in children)
    return known[id(node)]


def dump(value: Any, *, allow_unicode: bool = True) -> str:
    """The YAML of a JSON value, which `parse` reads as the same value. Short lists and objects are on one line.

    Args:
        allow_unicode: write characters outside ASCII as they are, and not as escapes.
    """
    style: dict[str, Any] = {"sort_keys": False, "default_flow_style": None, "width": 100}
    text: str = yaml.dump(value, Dumper=_Dumper, allow_unicode=allow_unicode, **style)
    return text


def with_changes(definition: Mapping[str, Any], changes: Sequence[str]) -> dict[str, Any]:
    """The study with values set from the command line: `optimizers.0.space.lr.low=1e-4`.

    Args:
        definition: a study as `load` gives it; it stays as it is.
        changes: each a path of keys and list positions, '=', and a value in YAML. Missing objects on the path are made.

    Raises:
        StudyFileError: a change has no '=', its value is not YAML, or part of its path is
            not an object or a list.
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
            value = _value(text, source=f"--set {change}", path=path)
            parent: Any = changed
            while len(keys) > 1:
                n = _n_of_name(parent, keys)
                parent, keys = _enter(parent, ".".join(keys[:n])), keys[n:]
            parent[keys[-1] if isinstance(parent, dict) else int(keys[-1])] = value
        except (yaml.YAMLError, RecursionError) as error:
            raise StudyFileError(f"the value of '{change}' is not YAML: {_where(error)}", hint="Quote it.") from None
        except (TypeError, ValueError, IndexError, AttributeError):
            raise StudyFileError(
                f"'{path}' leads nowhere in the study.", hint="Count list items from 0: optimizers.0.space.lr.low"
            ) from None
    return changed


def _n_of_name(parent: Any, keys: Sequence[str]) -> int:
    """How many of the keys are one name: a parameter of a space may be called others.lr."""
    names = range(len(keys) - 1, 1, -1)
    return next((n for n in names if isinstance(parent, dict) and ".".join(keys[:n]) in parent), 1)


def _where(error: Exception) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or str(error)
    return f"line {mark.line + 1}, column {mark.column + 1}: {problem}." if mark else f"{problem}."
