"""The image: linted, made of everything the packages hold and nothing else, named as the manifests name it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from k8s.checks.world import World
from k8s.generate import ROOT
from k8s.image.steps import copies, ignored, sources
from tests.k8s.conftest import OVERLAYS, Overlay

REPOSITORY = ROOT.parent
DOCKERFILE = ROOT / "image" / "Dockerfile"
Get = Callable[[str], Overlay]


def hadolint(text: str) -> subprocess.CompletedProcess[str]:
    program = Path(sys.executable).with_name("hadolint")
    return subprocess.run([program, "-"], input=text, capture_output=True, text=True, check=False)


def test_dockerfile_is_sound() -> None:
    text = DOCKERFILE.read_text()
    assert hadolint(text).returncode == 0, hadolint(text).stdout
    assert hadolint(text.replace("--no-install-recommends ", "")).returncode != 0
    assert re.search(r"^FROM \$\{PYTHON_IMAGE\}", text, re.M) and re.search(r"PYTHON_IMAGE=python:3\.\d+\.\d+-", text)
    assert re.findall(r"^USER (\S+)", text, re.M)[-1] == "1000:1000"


def test_build_sees_the_packages_and_nothing_else() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "racer", "datastore", "deployments"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    )
    wanted = {line for line in listed.stdout.splitlines() if (REPOSITORY / line).exists()}
    seen = sources(REPOSITORY)
    own = {"pyproject.toml", "constraints.txt", "README.md", "LICENSE", "k8s/image/install.sh"}
    assert set(seen.values()) == wanted | own
    assert all(place == source for place, source in seen.items())


def test_what_dockerignore_leaves_out() -> None:
    patterns = ["*", "!racer", "**/*.pyc", "!k8s/image/install.sh"]
    assert [
        ignored(path, patterns) for path in ("racer/a.py", "racer/b/c.pyc", "secrets.yaml", "k8s/image/install.sh")
    ] == [
        False,
        True,
        True,
        False,
    ]
    assert copies('COPY a \\\n  b/ c/\nCOPY --from=build /x /y\n# COPY d e\nCOPY "f g" h') == [
        (["a", "b/"], "c/"),
        (["f g"], "h"),
    ]


@pytest.mark.parametrize("name", OVERLAYS)
def test_manifests_name_this_version(overlay: Get, name: str) -> None:
    with (REPOSITORY / "pyproject.toml").open("rb") as file:
        version = tomllib.load(file)["project"]["version"]
    assert f"ARG VERSION={version}\n" in DOCKERFILE.read_text()
    images = {c["image"] for pod in World(overlay(name).manifests).pods for c in pod.containers}
    device = "cpu" if name == "dev" else "cuda"
    assert {image for image in images if image.startswith("racer-serve")} == {f"racer-serve:{version}-{device}"}


@pytest.mark.parametrize("name", OVERLAYS)
def test_manifests_name_this_ray(overlay: Get, name: str) -> None:
    pinned = re.search(r"^ray==(.+)$", (REPOSITORY / "constraints.txt").read_text(), re.M)
    kind, field = ("RayJob", "rayClusterSpec") if name == "batch" else ("RayService", "rayClusterConfig")
    assert pinned and overlay(name).one(kind)["spec"][field]["rayVersion"] == pinned[1]


def test_a_wrong_step_or_device_is_told(tmp_path: Path) -> None:
    for step, choice, told in (("build", "cpu", "unknown step build"), ("dependencies", "tpu", "DEVICE is tpu")):
        done = subprocess.run(
            ["sh", str(ROOT / "image/install.sh"), step, choice, str(tmp_path / "made")],
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 2 and told in done.stderr


@pytest.mark.parametrize("name", ["dev", "gpu", "multi-gpu"])
def test_caches_are_prepared_by_the_images_user(name: str, overlay: Get) -> None:
    """An emptyDir belongs to root: others may write into it, but not change the folder itself, its times included."""
    world = World(overlay(name).manifests, overlay(name).external)
    containers = [init for pod in world.pods for init in pod.spec.get("initContainers", [])]
    (command,) = {tuple(init["command"]) for init in containers if init["name"] == "prepare-cache"}
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        source, target = Path(folder, "image"), Path(folder, "volume")
        (source / "model").mkdir(parents=True)
        (source / "model" / "file").write_text("weights")
        target.mkdir()
        target.chmod(0o2777)
        words = [word.replace("/opt/cache", str(source)).replace("/cache/", f"{target}/") for word in command]
        user = 1000 if os.geteuid() == 0 else None
        done = subprocess.run(words, capture_output=True, text=True, check=False, user=user, group=user)
        assert done.returncode == 0, done.stderr
        assert (target / "model" / "file").read_text() == "weights"
