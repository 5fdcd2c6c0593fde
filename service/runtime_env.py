"""Ray's runtime environment for all that a service starts: read from a file, its paths made the machine's.

What it may hold is Ray's matter (https://docs.ray.io, "Environment Dependencies"). Ray prepares it on each node before
the node's first process: for drivers, trials and the question what is installed there (`service.compatibility`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from service.errors import SettingsError, StudyFileError

_HINT = "Ray's documentation of runtime environments tells its fields, docs/cluster.md the ones to begin with."


def read(path: Path) -> dict[str, Any]:
    """The environment in a JSON or YAML file; files that it names are relative to it.

    Raises:
        SettingsError: no such file, no mapping in it, or a module that is not there.
    """
    from admeta.client import studyfile  # the command line reads settings without a file, and without YAML

    try:
        found = studyfile.load(path)
    except StudyFileError as error:
        raise SettingsError(f"runtime environment: {error.detail}", hint=_HINT) from None
    if not all(isinstance(key, str) for key in found):
        raise SettingsError(f"runtime environment '{path}': the names of its fields must be text.", hint=_HINT)
    modules = found.get("py_modules", [])
    if not isinstance(modules, list) or not all(isinstance(module, str) for module in modules):
        raise SettingsError(f"runtime environment '{path}': py_modules must be a list of texts.", hint=_HINT)
    if modules:
        found["py_modules"] = [_located(module, path) for module in modules]
    if isinstance(folder := found.get("working_dir"), str):
        found["working_dir"] = _located(folder, path)
    return found


def _located(name: str, path: Path) -> str:
    """The absolute path of a local file; an address as it is."""
    if "://" in name:
        return name
    place = (path.absolute().parent / Path(name).expanduser()).resolve()
    if not place.exists():
        raise SettingsError(f"runtime environment '{path}': there is no {place}.", hint=_HINT)
    return str(place)
