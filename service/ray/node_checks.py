"""Whether the machines of a cluster can train, checked once for each before a study starts.

A node on which trials would fail is named with what to do about it, and studies wait.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

import ray
from ray.exceptions import RayError, RuntimeEnvSetupError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

log = logging.getLogger(__name__)

CHECK_TIMEOUT_S = 60.0
"""For the check of a node: its first process imports torch, perhaps from a slow disk."""
PREPARE_TIMEOUT_S = 600.0
"""The same if Ray prepares a runtime environment first; Ray's own limit for that."""
CHECK_AGAIN_S = 60.0
"""After a node had a problem: a package index or a network disk may have been away, or someone has corrected it."""
_PACKAGES = ("admeta-search", "torch", "ray", "numpy", "pydantic")


class Nodes:
    """The nodes that trials may run on. Each is checked by a task in the background, once, or until it can train.

    Args:
        prepares: whether the connection has a runtime environment, which takes time to prepare on a node.
    """

    def __init__(self, *, prepares: bool = False) -> None:
        self._timeout_s = PREPARE_TIMEOUT_S if prepares else CHECK_TIMEOUT_S
        self._problems: dict[str, str] = {}
        self._checked_at: dict[str, float] = {}
        self._asked: dict[str, tuple[Any, float]] = {}

    def problems(self) -> list[str]:
        """Why studies should not start yet, one sentence for each such node; empty if every node can train.

        A node that does not answer in time is left out: Ray will declare it dead, or it answers later.
        """
        living = {
            node["NodeID"]: str(node["NodeManagerAddress"])
            for node in ray.nodes()
            if node["Alive"] and (node["Resources"].get("CPU", 0) > 0 or node["Resources"].get("GPU", 0) > 0)
        }
        self._problems = {node: problem for node, problem in self._problems.items() if node in living}
        self._asked = {node: asked for node, asked in self._asked.items() if node in living}
        for node_id, address in living.items():
            if node_id not in self._asked and self._is_due(node_id):
                self._asked[node_id] = (_ask(node_id), time.monotonic())
            if node_id in self._asked:
                self._read(node_id, address)
        first = {node: at for node, (_, at) in self._asked.items() if node not in self._problems}
        silent = [living[node] for node, at in first.items() if time.monotonic() - at < self._timeout_s]
        waits = [f"node {address} is being checked" for address in silent]
        return [problem for problem in self._problems.values() if problem] + waits

    def _is_due(self, node: str) -> bool:
        """Whether to check a node: a new one, or one that had a problem a while ago."""
        problem = self._problems.get(node)
        return problem is None or (problem != "" and time.monotonic() - self._checked_at[node] > CHECK_AGAIN_S)

    def _read(self, node: str, address: str) -> None:
        answer, _ = self._asked[node]
        if not ray.wait([answer], timeout=0)[0]:
            return
        del self._asked[node]
        difference = ""
        try:
            problem, difference = judge(address, ray.get(answer), expected=installed(_PACKAGES))
        except RuntimeEnvSetupError as error:
            problem = f"node {address} cannot prepare the runtime environment: {str(error).strip()[-500:]}"
        except RayError as error:
            log.warning("node %s could not be checked: %s", address, error)
            problem = ""
        for words in filter(None, (problem, difference)):
            if self._problems.get(node) != words:
                log.warning("%s", words)
        self._problems[node], self._checked_at[node] = problem, time.monotonic()


def _ask(node: str) -> Any:
    where = NodeAffinitySchedulingStrategy(node, soft=False)
    check = ray.remote(_make_check()).options(num_cpus=0, max_retries=0, scheduling_strategy=where)
    return check.remote(_PACKAGES, ("search.trainable", "torch"))


def judge(address: str, found: Mapping[str, str], *, expected: Mapping[str, str]) -> tuple[str, str]:
    """The problem of a node and a warning about it; each is empty if there is none.

    Args:
        found, expected: version by package, `python` too; empty where the package is missing; `error`: of an import.
    """
    missing = [name for name in _PACKAGES if not found.get(name)]
    advice = (
        "; install the service's release of admeta-search[server] there, as on every node, or let Ray do it "
        "(ADMETA_RUNTIME_ENV)"
    )
    if missing:
        return f"node {address} has no {' and no '.join(missing)}{advice}", ""
    if found.get("error"):
        return f"node {address} cannot load what a trial needs: {found['error']}{advice}", ""
    exact = [name for name in ("admeta-search", "ray", "python") if _release(name, found) != _release(name, expected)]
    if exact:
        differences = ", ".join(f"{name} {found[name]} (the service: {expected[name]})" for name in exact)
        return f"node {address} has {differences}{advice}", ""
    others = [name for name in ("torch", "numpy") if found[name] != expected[name]]
    differences = ", ".join(f"{name} {found[name]} (the service: {expected[name]})" for name in others)
    return "", f"node {address} has {differences}: trials may differ between nodes" if others else ""


def installed(packages: tuple[str, ...]) -> dict[str, str]:
    """Version by package of this process, and Python's; empty if a package is missing."""
    return _make_check()(packages, ())


def _release(name: str, versions: Mapping[str, str]) -> str:
    """The part of a version that must be equal: Python's major and minor, a package's without the local suffix."""
    version = versions.get(name, "")
    return ".".join(version.split(".")[:2]) if name == "python" else version.partition("+")[0]


def _make_check() -> Callable[[tuple[str, ...], tuple[str, ...]], dict[str, str]]:
    """A function that reads the versions of packages and imports modules.

    It is made here so that Ray sends it by value: a node may lack our packages.
    """

    def check(packages: tuple[str, ...], modules: tuple[str, ...]) -> dict[str, str]:
        import contextlib
        import importlib
        import platform
        from importlib import metadata

        versions = {"python": platform.python_version(), **dict.fromkeys(packages, "")}
        for name in packages:
            with contextlib.suppress(metadata.PackageNotFoundError):
                versions[name] = metadata.version(name)
        try:
            for module in modules:
                importlib.import_module(module)
        except Exception as error:  # noqa: BLE001 - whatever an import raises is the answer
            versions["error"] = f"{type(error).__name__}: {error}"
        return versions

    return check
