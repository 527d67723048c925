"""Manifests that the checks must catch: what is changed in an overlay, which check says so, and in which words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import yaml

from k8s.render import Manifest

Objects = dict[str, Manifest]
Spoil = Callable[[Objects], object]


def named(manifests: list[Manifest]) -> Objects:
    """Objects by "Kind name", hashes of generated names left out."""
    return {f"{m['kind']} {m['metadata']['name']}".split("-config-")[0]: m for m in manifests}


def cluster(objects: Objects) -> dict[str, Any]:
    made: dict[str, Any] = objects["RayService racer"]["spec"]["rayClusterConfig"]
    return made


def pod(objects: Objects, group: int | None = None) -> dict[str, Any]:
    """Pod of a Ray group; None: Redis'."""
    if group is None:
        spec: dict[str, Any] = objects["StatefulSet redis"]["spec"]["template"]["spec"]
    else:
        spec = cluster(objects)["workerGroupSpecs"][group]["template"]["spec"]
    return spec


def container(objects: Objects, group: int | None = None) -> dict[str, Any]:
    first: dict[str, Any] = pod(objects, group)["containers"][0]
    return first


def serve(objects: Objects, **changes: Any) -> None:
    """Change arguments of the application that is served."""
    spec = objects["RayService racer"]["spec"]
    config = yaml.safe_load(spec["serveConfigV2"])
    config["applications"][0]["args"] |= changes
    spec["serveConfigV2"] = yaml.safe_dump(config)


def model(**changes: Any) -> dict[str, Any]:
    return {"models": [{"name": "demo", "num_cpus": 2} | changes]}


def conf(objects: Objects, old: str, new: str) -> None:
    data = objects["ConfigMap redis"]["data"]
    assert old in data["redis.conf"]
    data["redis.conf"] = data["redis.conf"].replace(old, new)


def spec(objects: Objects, name: str) -> dict[str, Any]:
    found: dict[str, Any] = objects[name]["spec"]
    return found


BAD: list[tuple[str, str, Spoil]] = [
    ("names_differ", "volume tmp", lambda o: pod(o, 1)["volumes"].append({"name": "tmp", "emptyDir": {}})),
    ("names_differ", "Service redis", lambda o: o["Service racer"]["metadata"].update(name="redis")),
    ("selectors_match", "Service racer", lambda o: spec(o, "Service racer")["selector"].update(x="y")),
    (
        "selectors_match",
        "ingress[0].from",
        lambda o: spec(o, "NetworkPolicy redis")["ingress"][0]["from"][0]["podSelector"]["matchLabels"].update(x="y"),
    ),
    (
        "selectors_match",
        "StatefulSet redis",
        lambda o: spec(o, "StatefulSet redis")["selector"]["matchLabels"].update({"app.kubernetes.io/name": "other"}),
    ),
    (
        "selectors_match",
        "topology spread",
        lambda o: pod(o, 0)["topologySpreadConstraints"][0]["labelSelector"]["matchLabels"].update(x="y"),
    ),
    ("ports_exist", "'web'", lambda o: spec(o, "Service racer")["ports"][0].update(targetPort="web")),
    ("ports_exist", "readinessProbe", lambda o: container(o, 0)["readinessProbe"]["httpGet"].update(port=8001)),
    (
        "ports_exist",
        "NetworkPolicy redis: ingress",
        lambda o: spec(o, "NetworkPolicy redis")["ingress"][0]["ports"][0].update(port="database"),
    ),
    (
        "addresses_exist",
        "redis-1.redis",
        lambda o: container(o, 1)["env"][1].update(value="redis://racer:$(REDIS_PASSWORD)@redis-1.redis:6379"),
    ),
    ("addresses_exist", "store.other", lambda o: serve(o, store={"url": "redis://store.other:6379"})),
    ("addresses_exist", "no port 6380", lambda o: serve(o, store={"url": "rediss://u:$REDIS_PASSWORD@redis:6380"})),
    (
        "networks_are_closed",
        "StatefulSet redis: no NetworkPolicy",
        lambda o: spec(o, "NetworkPolicy redis").update(policyTypes=["Egress"]),
    ),
    (
        "networks_are_closed",
        "everybody reaches StatefulSet redis",
        lambda o: spec(o, "NetworkPolicy redis")["ingress"][0].pop("from"),
    ),
    (
        "networks_are_closed",
        "every port of RayService racer",
        lambda o: spec(o, "NetworkPolicy racer-ingress")["ingress"][0].pop("ports"),
    ),
    (
        "networks_are_closed",
        "RayService racer head reaches StatefulSet redis",
        lambda o: spec(o, "NetworkPolicy redis")["ingress"][0]["from"][0]["podSelector"]["matchLabels"].pop(
            "app.kubernetes.io/component"
        ),
    ),
    (
        "networks_are_closed",
        "others than pods of this namespace reach StatefulSet redis",
        lambda o: spec(o, "NetworkPolicy redis")["ingress"][0]["from"][0].update(namespaceSelector={}),
    ),
    (
        "references_exist",
        "no Secret racer-redis",
        lambda o: o["Secret racer-redis"]["metadata"].update(name="racer-datastore"),
    ),
    ("references_exist", "no key password", lambda o: o["Secret racer-gcs-redis"].update(data={"secret": "eA=="})),
    (
        "references_exist",
        "ConfigMap racer-environment",
        lambda o: container(o, 1).update(envFrom=[{"configMapRef": {"name": "racer-environment"}}]),
    ),
    ("references_exist", "ServiceAccount other", lambda o: pod(o, 1).update(serviceAccountName="other")),
    (
        "references_exist",
        "PersistentVolumeClaim models",
        lambda o: pod(o, 1)["volumes"].append({"name": "models", "persistentVolumeClaim": {"claimName": "models"}}),
    ),
    (
        "mounts_exist",
        "scratch",
        lambda o: container(o, 1)["volumeMounts"].append({"name": "scratch", "mountPath": "/s"}),
    ),
    ("mounts_exist", "/etc/redis/run.sh", lambda o: container(o).update(command=["/bin/sh", "/etc/redis/run.sh"])),
    ("mounts_exist", "keys_file /etc/racer/keys.yaml", lambda o: serve(o, keys_file="/etc/racer/keys.yaml")),
    ("variables_exist", "$STORE_URL", lambda o: serve(o, store={"url": "$STORE_URL"})),
    ("variables_exist", "$(REDIS_PASSWORD)", lambda o: container(o, 1)["env"].reverse()),
    ("images_agree", "image racer-serve is", lambda o: container(o, 1).update(image="racer-serve:0.0.9-cpu")),
    ("images_agree", "no fixed tag", lambda o: container(o).update(image="redis:latest")),
    ("limits_cover_requests", "limit of memory", lambda o: container(o)["resources"]["requests"].update(memory="2Gi")),
    ("limits_cover_requests", "limits.cpu is missing", lambda o: container(o, 1)["resources"]["limits"].pop("cpu")),
    (
        "limits_cover_requests",
        "nvidia.com/gpu must be equal",
        lambda o: container(o, 1)["resources"]["limits"].update({"nvidia.com/gpu": "1"}),
    ),
    (
        "limits_cover_requests",
        "ray-worker: requests.ephemeral-storage is missing",
        lambda o: container(o, 0)["resources"]["requests"].pop("ephemeral-storage"),
    ),
    (
        "limits_cover_requests",
        "autoscaler: limits.ephemeral-storage is missing",
        lambda o: cluster(o)["autoscalerOptions"]["resources"]["limits"].pop("ephemeral-storage"),
    ),
    (
        "storage_covers_volumes",
        "leave nothing beside the volumes' 8.00Gi",
        lambda o: container(o, 1)["resources"]["limits"].update({"ephemeral-storage": "8Gi"}),
    ),
    (
        "storage_covers_volumes",
        "volume more has no sizeLimit",
        lambda o: pod(o, 1)["volumes"].append({"name": "more", "emptyDir": {}}),
    ),
    ("bounds_are_ordered", "minReplicas 9", lambda o: cluster(o)["workerGroupSpecs"][1].update(minReplicas=9)),
    ("deployments_fit", "model demo may have 7", lambda o: serve(o, **model(autoscaling={"max_replicas": 7}))),
    ("deployments_fit", "room for 0", lambda o: serve(o, **model(num_gpus=1))),
    ("deployments_fit", "the ingress may have 5", lambda o: serve(o, ingress_replicas=5)),
    (
        "deployments_fit",
        "claims 64 CPU",
        lambda o: cluster(o)["workerGroupSpecs"][1].update(resources={"CPU": "64"}),
    ),
    ("drains_end_in_time", "drain of 900 s", lambda o: serve(o, **model(drain_s=900))),
    ("drains_end_in_time", "drains for 60 s, but an answer may take 540 s", lambda o: serve(o, **model(drain_s=60))),
    (
        "drains_end_in_time",
        "preStop sleeps 140 s",
        lambda o: container(o, 0)["lifecycle"]["preStop"]["sleep"].update(seconds=140),
    ),
    (
        "drains_end_in_time",
        "terminationGracePeriodSeconds",
        lambda o: pod(o, 0).update(terminationGracePeriodSeconds=90),
    ),
    ("redis_is_bounded", "maxmemory 760mb", lambda o: conf(o, "maxmemory 512mb", "maxmemory 760mb")),
    ("redis_is_bounded", "must set maxmemory", lambda o: conf(o, "maxmemory 512mb", "")),
    ("containers_are_confined", "runAsNonRoot", lambda o: pod(o)["securityContext"].pop("runAsNonRoot")),
    (
        "containers_are_confined",
        "readOnlyRootFilesystem",
        lambda o: container(o, 1)["securityContext"].update(readOnlyRootFilesystem=False),
    ),
    (
        "containers_are_confined",
        "capabilities",
        lambda o: container(o, 0)["securityContext"].update(capabilities={"drop": ["ALL"], "add": ["SYS_ADMIN"]}),
    ),
    ("containers_are_confined", "autoscaler", lambda o: cluster(o)["autoscalerOptions"].pop("securityContext")),
    ("accounts_have_no_rights", "token", lambda o: pod(o, 1).update(automountServiceAccountToken=True)),
    (
        "accounts_have_no_rights",
        "KubeRay's to make",
        lambda o: cluster(o)["headGroupSpec"]["template"]["spec"].update(serviceAccountName="racer"),
    ),
    (
        "accounts_have_no_rights",
        "gives rights",
        lambda o: o.update(role={"kind": "RoleBinding", "metadata": {"name": "all"}, "subjects": [], "roleRef": {}}),
    ),
    (
        "operator_accepts",
        "rayStartParams too",
        lambda o: cluster(o)["workerGroupSpecs"][1].update(rayStartParams={"num-cpus": "2"}),
    ),
    ("operator_accepts", "restartPolicy", lambda o: pod(o, 1).update(restartPolicy="Always")),
    ("operator_accepts", "idleTimeoutSeconds", lambda o: cluster(o)["autoscalerOptions"].pop("version")),
    (
        "operator_accepts",
        "REDIS_PASSWORD",
        lambda o: cluster(o)["headGroupSpec"]["template"]["spec"]["containers"][0].update(
            env=[{"name": "REDIS_PASSWORD", "value": "x"}]
        ),
    ),
]


BAD_WITH_TWO_HTTP_SIDES: list[tuple[str, str, Spoil]] = [
    (
        "selectors_match",
        "PodDisruptionBudget racer-ingress",
        lambda o: spec(o, "PodDisruptionBudget racer-ingress")["selector"]["matchLabels"].update(x="y"),
    ),
    (
        "budgets_can_be_kept",
        "minAvailable as a number",
        lambda o: o["PodDisruptionBudget racer-ingress"].update(
            spec={"maxUnavailable": 1, "selector": spec(o, "PodDisruptionBudget racer-ingress")["selector"]}
        ),
    ),
    (
        "budgets_can_be_kept",
        "no node can be drained",
        lambda o: spec(o, "PodDisruptionBudget racer-ingress").update(minAvailable=2),
    ),
]


def at_rest(objects: Objects, replicas: int) -> None:
    """So many replicas of the model at least."""
    config = yaml.safe_load(spec(objects, "RayService racer")["serveConfigV2"])
    models = config["applications"][0]["args"]["models"]
    models[0]["autoscaling"]["min_replicas"] = replicas
    serve(objects, models=models)


BAD_WITH_WHOLE_NODES: list[tuple[str, str, Spoil]] = [
    ("packed_replicas_need_two_nodes", "holds all 8 of model qwen3-8b at rest", lambda o: at_rest(o, 8)),
    (
        "packed_replicas_need_two_nodes",
        "16 replicas of model qwen3-8b at rest need more than the minReplicas 1",
        lambda o: cluster(o)["workerGroupSpecs"][1].update(minReplicas=1),
    ),
    (
        "names_can_be_resolved",
        "StatefulSet redis is given the name redis-0.redis",
        lambda o: spec(o, "NetworkPolicy redis")["egress"][-1].update(
            to=[{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}}}]
        ),
    ),
    (
        "names_can_be_resolved",
        "UDP and TCP",
        lambda o: spec(o, "NetworkPolicy redis")["egress"][-1].update(ports=[{"port": 53, "protocol": "UDP"}]),
    ),
]

BAD_BATCH: list[tuple[str, str, Spoil]] = [
    (
        "results_outlive_deletion",
        "would delete the claim racer-batch",
        lambda o: o.update(
            claim={"kind": "PersistentVolumeClaim", "metadata": {"name": "racer-batch", "namespace": "racer-batch"}}
        ),
    ),
    (
        "results_outlive_deletion",
        "would delete the namespace racer-batch",
        lambda o: o.update(space={"kind": "Namespace", "metadata": {"name": "racer-batch"}}),
    ),
]

ALL_BAD = [
    *(("dev", *bad) for bad in BAD),
    *(("gpu", *bad) for bad in BAD_WITH_TWO_HTTP_SIDES),
    *(("multi-gpu", *bad) for bad in BAD_WITH_WHOLE_NODES),
    *(("batch", *bad) for bad in BAD_BATCH),
]
