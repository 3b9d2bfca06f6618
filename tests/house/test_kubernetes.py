"""docs/kubernetes/ agrees with the project, itself and the schemas of InferencePool and HTTPRoute; it is not applied.

tests/clients/test_kubernetes.py has kubectl render it, and checks all else of it against Kubernetes' own models.
"""

import json
import re
from functools import cache
from typing import Any

import jsonschema_rs
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from jaxgen.core.stats import EngineStats
from jaxgen.server.flags.serve_options import make_parser
from jaxgen.server.middleware.access_log import PROBES
from jaxgen.server.middleware.auth import OPEN_PATHS
from jaxgen.server.openapi import ROUTES
from tests.support.paths import ROOT
from tests.support.server_app import client_of, fake_engine

FOLDER = ROOT / "docs" / "kubernetes"
PORT = 8000
SOURCES = sorted(path for path in FOLDER.glob("*/*.yaml") if path.name != "kustomization.yaml")


@cache
def documents(folder: str) -> dict[tuple[str, str], dict[str, Any]]:
    """By kind and name."""
    files = [path.read_text(encoding="utf-8") for path in SOURCES if path.parent.name == folder]
    found = [document for file in files for document in yaml.safe_load_all(file)]
    return {(one["kind"], one.get("metadata", {}).get("name", "")): one for one in found}


def pod() -> dict[str, Any]:
    found: dict[str, Any] = documents("base")["Deployment", "jaxgen"]["spec"]["template"]["spec"]
    return found


def container() -> dict[str, Any]:
    (found,) = pod()["containers"]
    return dict(found)


def labels(of: dict[str, Any]) -> dict[str, str]:
    """Of a Deployment's pods."""
    found: dict[str, str] = of["spec"]["template"]["metadata"]["labels"]
    return found


@cache
def schema(kind: str) -> dict[str, Any]:
    """Of a kind, where a field that is not described is an error, as for a server that prunes nothing."""
    folder = ROOT / "tests" / "data" / "kubernetes"
    if kind == "InferencePool":
        definition = yaml.safe_load((folder / "inferencepools.yaml").read_text(encoding="utf-8"))
        (version,) = definition["spec"]["versions"]
        found: dict[str, Any] = version["schema"]["openAPIV3Schema"]
    else:
        found = json.loads((folder / "httproute.json").read_text(encoding="utf-8"))
    found["properties"]["metadata"] = {"type": "object", "properties": {"name": {"type": "string"}}}
    _close(found)
    return found


def fits(kind: str, document: dict[str, Any]) -> bool:
    return jsonschema_rs.validator_for(schema(kind)).is_valid(document)


def _close(schema: dict[str, Any]) -> None:
    if "properties" in schema:
        schema["additionalProperties"] = False
        for one in schema["properties"].values():
            _close(one)
    if "items" in schema:
        _close(schema["items"])


def test_every_file_is_a_resource_of_its_folder() -> None:
    for folder in ("base", "gpu", "gateway"):
        found = yaml.safe_load((FOLDER / folder / "kustomization.yaml").read_text(encoding="utf-8"))
        files = [name.split("=")[-1] for one in found.get("configMapGenerator", []) for name in one["files"]]
        named = [*found.get("resources", []), *found.get("patchesStrategicMerge", []), *files]
        assert sorted(named) == [path.name for path in SOURCES if path.parent.name == folder]


def test_a_replica_gets_time_to_end() -> None:
    args = make_parser().parse_args(container()["args"])
    pause = container()["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert pod()["terminationGracePeriodSeconds"] >= pause + args.shutdown_timeout + 10
    (mount,) = [mount for mount in container()["volumeMounts"] if mount["name"] == "keys"]
    assert args.api_key_file.is_relative_to(mount["mountPath"])


def test_the_base_needs_only_an_image_and_keys() -> None:
    """Its claims are in it, and it asks for no GPU; the overlay for one keeps what the base's arguments say."""
    claims = {one["persistentVolumeClaim"]["claimName"] for one in pod()["volumes"] if "persistentVolumeClaim" in one}
    assert {("PersistentVolumeClaim", name) for name in claims} <= set(documents("base"))
    assert "limits" not in container()["resources"]
    assert make_parser().parse_args(container()["args"]).model is None
    (gpu,) = documents("gpu")["Deployment", "jaxgen"]["spec"]["template"]["spec"]["containers"]
    assert set(container()["args"]) < set(gpu["args"])
    assert make_parser().parse_args(gpu["args"]).model


def test_the_name_of_the_service_sets_no_flag() -> None:
    """Of a service called jaxgen Kubernetes sets JAXGEN_PORT, and to an address."""
    assert pod()["enableServiceLinks"] is False


def test_probes_are_routes_that_need_no_key() -> None:
    (port,) = container()["ports"]
    assert port["containerPort"] == PORT
    paths = {kind: container()[f"{kind}Probe"]["httpGet"] for kind in ("startup", "readiness", "liveness")}
    assert {kind: get["path"] for kind, get in paths.items()} == {
        "startup": "/ready",
        "readiness": "/ready",
        "liveness": "/livez",
    }
    for get in paths.values():
        assert get["port"] == port["name"]
        assert get["path"] in PROBES & OPEN_PATHS & {route.path for route in ROUTES}
    assert documents("base")["Service", "jaxgen"]["spec"]["ports"][0]["targetPort"] == port["name"]


def test_mounts_and_labels_agree() -> None:
    assert {mount["name"] for mount in container()["volumeMounts"]} == {volume["name"] for volume in pod()["volumes"]}
    deployment, service = (documents("base")[kind, "jaxgen"] for kind in ("Deployment", "Service"))
    selector = deployment["spec"]["selector"]["matchLabels"]
    assert selector == service["spec"]["selector"]
    assert selector.items() <= labels(deployment).items()


def test_the_pool_is_one_by_its_schema() -> None:
    pool = documents("gateway")["InferencePool", "jaxgen"]
    jsonschema_rs.validator_for(schema("InferencePool")).validate(pool)
    assert pool["spec"]["selector"]["matchLabels"].items() <= labels(documents("base")["Deployment", "jaxgen"]).items()
    assert [port["number"] for port in pool["spec"]["targetPorts"]] == [PORT]
    picker, route = documents("gateway")["Service", "jaxgen-picker"], documents("gateway")["HTTPRoute", "jaxgen"]
    assert pool["spec"]["endpointPickerRef"]["name"] == picker["metadata"]["name"]
    assert pool["spec"]["endpointPickerRef"]["port"]["number"] in [port["port"] for port in picker["spec"]["ports"]]
    (target,) = route["spec"]["rules"][0]["backendRefs"]
    assert (target["group"], target["kind"], target["name"]) == (
        pool["apiVersion"].split("/")[0],
        pool["kind"],
        pool["metadata"]["name"],
    )


@pytest.mark.parametrize(
    "change",
    [{"targetPorts": [{"number": 70000}]}, {"targetPort": 8000}, {"selector": {"app": "jaxgen"}}, {"targetPorts": []}],
)
def test_the_schema_refuses_what_is_wrong(change: dict[str, Any]) -> None:
    pool = documents("gateway")["InferencePool", "jaxgen"]
    assert not fits("InferencePool", {**pool, "spec": {**pool["spec"], **change}})


def test_the_route_is_one_by_its_schema() -> None:
    route = documents("gateway")["HTTPRoute", "jaxgen"]
    jsonschema_rs.validator_for(schema("HTTPRoute")).validate(route)
    wrong: list[dict[str, Any]] = [
        {"timeouts": {"request": "0"}},
        {"backendRef": []},
        {"backendRefs": [{"kind": "InferencePool"}]},
    ]
    for change in wrong:
        assert not fits("HTTPRoute", {**route, "spec": {**route["spec"], "rules": [change]}}), change


def test_the_picker_reads_metrics_that_the_server_shows() -> None:
    config = documents("gateway")["EndpointPickerConfig", ""]
    plugins = {one["type"]: one.get("parameters", {}) for one in config["plugins"]}
    parameters = plugins["core-metrics-extractor"]
    (engine,) = parameters["engineConfigs"]
    assert (
        parameters["defaultEngine"]
        == engine["name"]
        == labels(documents("base")["Deployment", "jaxgen"])["llm-d.ai/engine-type"]
    )
    with client_of(fake_engine(numbers=EngineStats(block_size=16, blocks_total=8))) as client:
        text = client.get(plugins["metrics-data-source"]["path"]).text
    shown = {one.name: one for family in text_string_to_metric_families(text) for one in family.samples}
    assert {name for field, name in engine.items() if field.endswith("Spec")} <= set(shown)
    assert {"block_size", "num_gpu_blocks"} <= set(shown[engine["cacheInfoSpec"]].labels)
    assert make_parser().parse_args(container()["args"]).public_metrics, "the picker has no key"


def test_the_pickers_configuration_refers_to_itself() -> None:
    config = documents("gateway")["EndpointPickerConfig", ""]
    assert config["apiVersion"] == "llm-d.ai/v1alpha1"
    names = {one.get("name", one["type"]) for one in config["plugins"]}
    (profile,) = config["schedulingProfiles"]
    scorers = {one["pluginRef"] for one in profile["plugins"]}
    assert scorers == {name for name in names if name.endswith("-scorer")}
    (picker,) = documents("gateway")["Deployment", "jaxgen-picker"]["spec"]["template"]["spec"]["containers"]
    (mount,) = picker["volumeMounts"]
    assert f"--config-file={mount['mountPath']}/config.yaml" in picker["args"]
    assert f"--pool-name={documents('gateway')['InferencePool', 'jaxgen']['metadata']['name']}" in picker["args"]
    (port,) = [flag.split("=")[1] for flag in picker["args"] if flag.startswith("--grpc-port")]
    assert int(port) in [one["containerPort"] for one in picker["ports"]]


def test_no_name_of_a_registry_or_a_version_goes_stale() -> None:
    """Images are the reader's to choose."""
    images = re.findall(r"image: (\S+)", "".join(path.read_text(encoding="utf-8") for path in SOURCES))
    assert sorted(images) == ["jaxgen:cpu", "jaxgen:cuda", "llm-d-router-endpoint-picker"]
