"""kubectl renders docs/kubernetes/, and Kubernetes' own models know every field of what it writes."""

import shutil
import subprocess
from functools import cache
from typing import Any

import pytest
import yaml
from kubernetes import client
from pydantic import ValidationError

from tests.clients.conftest import ROOT

pytestmark = pytest.mark.clients
OTHERS = {"HTTPRoute", "InferencePool"}
"""Kinds that are not Kubernetes' own; tests/house/test_kubernetes.py has their schemas."""


@cache
def rendered(folder: str) -> dict[tuple[str, str], Any]:
    """By kind and name."""
    assert shutil.which("kubectl"), "kubectl is missing: install it (apt-get install kubernetes-client)"
    command = ["kubectl", "kustomize", str(ROOT / "docs" / "kubernetes" / folder)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = list(yaml.safe_load_all(done.stdout))
    return {(one["kind"], one["metadata"]["name"]): one for one in found}


def model(kind: str) -> Any:
    """Refuses fields that it does not know."""
    return getattr(client, f"V1{kind}")


@pytest.mark.parametrize("folder", ["base", "gpu", "gateway"])
def test_every_field_is_one_of_kubernetes(folder: str) -> None:
    found = rendered(folder)
    assert len(found) > 2
    for (kind, _), document in found.items():
        if kind not in OTHERS:
            model(kind).model_validate(document)


def test_the_models_refuse_what_is_wrong() -> None:
    deployment = rendered("base")["Deployment", "jaxgen"]
    for change in ({"replica": 1}, {"replicas": "two"}, {"selector": None}):
        with pytest.raises(ValidationError):
            model("Deployment").model_validate({**deployment, "spec": {**deployment["spec"], **change}})


def test_the_gateways_replicas_are_those_of_the_base() -> None:
    one, two = (rendered(folder)["Deployment", "jaxgen"]["spec"] for folder in ("base", "gateway"))
    assert (one["replicas"], two["replicas"]) == (1, 2)
    assert one["template"] == two["template"]
    assert two["strategy"]["type"] == "RollingUpdate"
    claim = rendered("gateway")["PersistentVolumeClaim", "jaxgen-cache"]
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    assert claim["spec"]["resources"] == rendered("base")["PersistentVolumeClaim", "jaxgen-cache"]["spec"]["resources"]


def test_the_overlay_for_a_gpu_changes_image_model_and_resources() -> None:
    base, gpu = (rendered(folder)["Deployment", "jaxgen"]["spec"]["template"]["spec"] for folder in ("base", "gpu"))
    (one,), (two,) = base.pop("containers"), gpu.pop("containers")
    assert base == gpu
    assert {name for name in two if one.get(name) != two[name]} == {"image", "args", "resources"}
    assert two["resources"]["limits"] == {"nvidia.com/gpu": "1"}


def test_the_picker_reads_its_configuration() -> None:
    found = rendered("gateway")
    ((name, settings),) = [(name, one) for (kind, name), one in found.items() if kind == "ConfigMap"]
    pod = found["Deployment", "jaxgen-picker"]["spec"]["template"]["spec"]
    (volume,) = pod["volumes"]
    assert volume["configMap"]["name"] == name
    assert set(settings["data"]) == {"config.yaml"}
    assert yaml.safe_load(settings["data"]["config.yaml"])["kind"] == "EndpointPickerConfig"
    account = pod["serviceAccountName"]
    assert ("ServiceAccount", account) in found
    (subject,) = found["RoleBinding", account]["subjects"]
    assert (subject["kind"], subject["name"]) == ("ServiceAccount", account)
