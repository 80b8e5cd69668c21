"""Files of jobs: valid YAML, with fields of their API alone, that fit each other and the image.

The schemas below hold what the files use, written from the public API references of Kubernetes
(batch/v1) and AWS Batch, from memory: they find misspelled and misplaced fields, not all mistakes.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

DEPLOY = Path(__file__).resolve().parents[2] / "examples" / "deploy"
CONTAINERFILE = (DEPLOY / "Containerfile").read_text(encoding="utf-8")

QUANTITY = re.compile(r"\d+(?:\.\d+)?(?:m|[KMGT]i?)?")
NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
IMAGE = re.compile(r"[\w.-]+(?::\d+)?/[\w./-]+:\d[\w.-]*")
PATH = re.compile(r"/[\w./-]+")
LABEL = re.compile(r"(?:[a-z0-9.-]+/)?[\w.-]+")
FILE_SYSTEM = re.compile(r"fs-[0-9a-f]{8,40}")

RESOURCES = {"cpu?": QUANTITY, "memory?": QUANTITY, "aws.amazon.com/neuron?": int}
POD = {
    "restartPolicy": ("Never", "OnFailure"),
    "nodeSelector?": {LABEL: str},
    "tolerations?": [
        {
            "key": LABEL,
            "operator": ("Exists", "Equal"),
            "value?": str,
            "effect?": ("NoSchedule", "PreferNoSchedule", "NoExecute"),
        }
    ],
    "containers": [
        {
            "name": NAME,
            "image": IMAGE,
            "command?": [str],
            "args?": [str],
            "env?": [{"name": str, "value": str}],
            "resources": {"requests?": RESOURCES, "limits": RESOURCES},
            "volumeMounts?": [{"name": NAME, "mountPath": PATH, "readOnly?": bool}],
        }
    ],
    "volumes?": [{"name": NAME, "persistentVolumeClaim": {"claimName": NAME, "readOnly?": bool}}],
}
JOB = {
    "apiVersion": ("batch/v1",),
    "kind": ("Job",),
    "metadata": {"name": NAME, "labels?": {LABEL: str}},
    "spec": {
        "completionMode": ("Indexed",),
        "completions": int,
        "parallelism": int,
        "backoffLimit?": int,
        "activeDeadlineSeconds?": int,
        "ttlSecondsAfterFinished?": int,
        "template": {"metadata?": {"labels?": {LABEL: str}}, "spec": POD},
    },
}
DEFINITION = {
    "jobDefinitionName": str,
    "type": ("container",),
    "retryStrategy?": {"attempts": int},
    "timeout?": {"attemptDurationSeconds": int},
    "containerProperties": {
        "image": IMAGE,
        "command": [str],
        "environment?": [{"name": str, "value": str}],
        "resourceRequirements": [{"type": ("VCPU", "MEMORY"), "value": re.compile(r"\d+")}],
        "linuxParameters": {
            "devices": [
                {
                    "hostPath": re.compile(r"/dev/neuron\d+"),
                    "containerPath": re.compile(r"/dev/neuron\d+"),
                    "permissions": [("READ", "WRITE", "MKNOD")],
                }
            ]
        },
        "mountPoints": [{"sourceVolume": str, "containerPath": PATH, "readOnly?": bool}],
        "volumes": [
            {
                "name": str,
                "efsVolumeConfiguration": {
                    "fileSystemId": FILE_SYSTEM,
                    "rootDirectory?": PATH,
                    "transitEncryption?": ("ENABLED", "DISABLED"),
                },
            }
        ],
    },
}
ARRAY_JOB = {
    "jobName": str,
    "jobQueue": str,
    "jobDefinition": str,
    "arrayProperties": {"size": int},
}
SCHEMAS = {
    "kubernetes-job.yaml": JOB,
    "batch-job-definition.yaml": DEFINITION,
    "batch-job.yaml": ARRAY_JOB,
}


def problems(schema: Any, value: Any, path: str = "") -> list[str]:
    """Return where a value is not what a schema has: keys that end with "?" need not be there."""
    if isinstance(schema, Mapping):
        return mapping_problems(schema, value, path)
    if isinstance(schema, list):
        if not isinstance(value, list) or not value:
            return [f"{path}: not a list of something"]
        return [p for i, one in enumerate(value) for p in problems(schema[0], one, f"{path}[{i}]")]
    if isinstance(schema, tuple):
        return [] if value in schema else [f"{path}: {value!r} is none of {schema}"]
    if isinstance(schema, re.Pattern):
        fits = isinstance(value, str) and schema.fullmatch(value)
        return [] if fits else [f"{path}: {value!r} is not {schema.pattern}"]
    return [] if type(value) is schema else [f"{path}: {value!r} is not {schema.__name__}"]


def mapping_problems(schema: Mapping[Any, Any], value: Any, path: str) -> list[str]:
    if not isinstance(value, Mapping):
        return [f"{path}: not a mapping"]
    (first, inner), *_ = schema.items()
    if isinstance(first, re.Pattern):
        keys = [p for key in value for p in problems(first, key, f"{path}: key")]
        return keys + [
            p for key, one in value.items() for p in problems(inner, one, f"{path}.{key}")
        ]
    fields = {name.removesuffix("?"): inner for name, inner in schema.items()}
    wrong = [f"{path}.{key}: unknown field" for key in value if key not in fields]
    wrong += [
        f"{path}.{key}: missing" for key in schema if not key.endswith("?") and key not in value
    ]
    known = [key for key in value if key in fields]
    return wrong + [p for key in known for p in problems(fields[key], value[key], f"{path}.{key}")]


def load(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((DEPLOY / name).read_text(encoding="utf-8"))
    return found


@pytest.mark.parametrize("name", SCHEMAS)
def test_fields_are_those_of_the_api(name: str) -> None:
    assert problems(SCHEMAS[name], load(name)) == []


def test_every_yaml_file_has_a_schema() -> None:
    assert {path.name for path in DEPLOY.glob("*.y*ml")} == set(SCHEMAS)


def rename(*path: str | int, to: str) -> Callable[[Any], None]:
    def change(value: Any) -> None:
        for key in path[:-1]:
            value = value[key]
        value[to] = value.pop(path[-1])

    return change


def put(*path: str | int, value: Any) -> Callable[[Any], None]:
    def change(found: Any) -> None:
        for key in path[:-1]:
            found = found[key]
        found[path[-1]] = value

    return change


CONTAINER = ("spec", "template", "spec", "containers", 0)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (rename("spec", "completionMode", to="completionmode"), "completionMode: missing"),
        (put("spec", "completionMode", value="NonIndexed"), "is none of"),
        (put("spec", "template", "spec", "completions", value=4), "unknown field"),
        (put(*CONTAINER, "resources", "limits", value={"aws.amazon.com/gpu": 1}), "unknown field"),
        (put(*CONTAINER, "args", 3, value=32), "is not str"),
        (put(*CONTAINER, "image", value="noria"), "noria"),
        (put("spec", "template", "spec", "nodeSelector", value={"a b": "c"}), "key"),
        (put(*CONTAINER, "volumeMounts", value=[]), "not a list"),
    ],
)
def test_mistakes_are_found(change: Callable[[Any], None], problem: str) -> None:
    job = copy.deepcopy(load("kubernetes-job.yaml"))
    change(job)

    assert [one for one in problems(JOB, job) if problem in one] != []


def commands() -> dict[str, tuple[list[str], int, str, dict[str, str]]]:
    """Return of each job its command, how often it runs, its image, and mounts by volume."""
    job, definition = load("kubernetes-job.yaml")["spec"], load("batch-job-definition.yaml")
    (container,) = job["template"]["spec"]["containers"]
    batch = definition["containerProperties"]
    return {
        "kubernetes": (
            container["command"] + container["args"],
            job["completions"],
            container["image"],
            {one["name"]: one["mountPath"] for one in container["volumeMounts"]},
        ),
        "batch": (
            batch["command"],
            load("batch-job.yaml")["arrayProperties"]["size"],
            batch["image"],
            {one["sourceVolume"]: one["containerPath"] for one in batch["mountPoints"]},
        ),
    }


@pytest.mark.parametrize("kind", ["kubernetes", "batch"])
def test_there_are_as_many_shards_as_cores_of_all_instances(kind: str) -> None:
    command, num_instances, _, _ = commands()[kind]
    num_cores = len(command[2].split())

    assert int(command[command.index("--count") + 1]) == num_instances * num_cores


@pytest.mark.parametrize("kind", ["kubernetes", "batch"])
def test_a_job_uses_files_that_are_in_its_image_or_its_volume(kind: str) -> None:
    command, _, _, mounts = commands()[kind]
    paths = [word for word in command if word.startswith("/")]

    assert list(mounts) == ["data"]
    assert len(paths) == 5
    for path in paths:
        in_image = re.search(
            rf"COPY .*{re.escape(Path(path).name)}.* /noria/$", CONTAINERFILE, re.M
        )
        assert path.startswith(mounts["data"] + "/") or (in_image and path.startswith("/noria/"))


def test_jobs_are_the_same_and_name_each_other() -> None:
    kubernetes, batch = commands().values()
    job, definition = load("kubernetes-job.yaml"), load("batch-job-definition.yaml")

    assert kubernetes == batch
    assert load("batch-job.yaml")["jobDefinition"] == definition["jobDefinitionName"]
    assert {one["name"] for one in job["spec"]["template"]["spec"]["volumes"]} == {"data"}
    assert {one["name"] for one in definition["containerProperties"]["volumes"]} == {"data"}


def test_a_batch_array_has_a_size_that_batch_takes() -> None:
    assert 2 <= load("batch-job.yaml")["arrayProperties"]["size"] <= 10000
