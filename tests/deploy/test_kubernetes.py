"""The manifest for Kubernetes: its pods have no rights that they do not need, and only who must reaches them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

MANIFEST = Path(__file__).parents[2] / "deploy" / "kubernetes" / "admeta.yaml"


@pytest.fixture(scope="module")
def documents() -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(MANIFEST.read_text()))


def pods(documents: list[dict[str, Any]]) -> list[tuple[dict[str, str], dict[str, Any]]]:
    """Labels and specification of every pod that the manifest makes."""
    found = []
    for document in documents:
        spec = document["spec"]
        if document["kind"] == "Deployment":
            found.append((spec["template"]["metadata"]["labels"], spec["template"]["spec"]))
        elif document["kind"] == "RayCluster":
            labels = {"ray.io/cluster": document["metadata"]["name"]}  # KubeRay's
            found += [
                (labels, group["template"]["spec"]) for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"])
            ]
    return found


def test_pods_run_without_rights(documents: list[dict[str, Any]]) -> None:
    assert len(pods(documents)) == 3
    for _, pod in pods(documents):
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in pod["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"]},
            }


def test_every_pod_is_behind_a_network_policy(documents: list[dict[str, Any]]) -> None:
    """Ray's ports are open to its cluster and to the service alone; the others reach the service's own port."""
    policies = {
        tuple(document["spec"]["podSelector"]["matchLabels"].items()): document["spec"]
        for document in documents
        if document["kind"] == "NetworkPolicy"
    }
    ray, service = {"ray.io/cluster": "admeta"}, {"app": "admeta-service"}
    for labels, _ in pods(documents):
        spec = policies[tuple(labels.items())]
        assert spec["policyTypes"] == ["Ingress"]
        unlimited = [rule for rule in spec["ingress"] if "ports" not in rule]
        allowed = [peer["podSelector"]["matchLabels"] for rule in unlimited for peer in rule["from"]]
        assert allowed == ([ray, service] if labels == ray else [ray])
        for rule in spec["ingress"]:
            assert rule["from"]
            assert rule in unlimited or rule["ports"] == [{"port": 8000}]
