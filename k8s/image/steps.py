"""Copies what the Dockerfile's COPY instructions name, as an engine would: without what .dockerignore leaves out."""

from __future__ import annotations

import fnmatch
import shlex
import shutil
import sys
from pathlib import Path


def copies(dockerfile: str) -> list[tuple[list[str], str]]:
    """(sources, target) of every COPY from the repository."""
    found = []
    for line in dockerfile.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if words[:1] == ["COPY"] and not any(word.startswith("--from") for word in words):
            found.append((words[1:-1], words[-1]))
    return found


def ignored(path: str, patterns: list[str]) -> bool:
    """Whether .dockerignore leaves ``path`` out; the last pattern that matches decides."""
    out = False
    for pattern in patterns:
        keep, name = pattern.startswith("!"), pattern.lstrip("!").rstrip("/")
        parts = path.split("/")
        prefixes = ["/".join(parts[:end]) for end in range(1, len(parts) + 1)]
        if name.startswith("**/"):
            hit = any(fnmatch.fnmatch(part, name[3:]) for part in parts)
        else:
            hit = any(fnmatch.fnmatch(prefix, name) and prefix.count("/") == name.count("/") for prefix in prefixes)
        if hit:
            out = not keep
    return out


def patterns(root: Path) -> list[str]:
    """The patterns of .dockerignore."""
    lines = (root / ".dockerignore").read_text(encoding="utf-8").splitlines()
    return [line.strip() for line in lines if line.strip() and not line.startswith("#")]


def sources(root: Path) -> dict[str, str]:
    """Files that the build sees, by the place they are copied to below its folder."""
    rules = patterns(root)
    found: dict[str, str] = {}
    for names, target in copies((root / "k8s/image/Dockerfile").read_text(encoding="utf-8")):
        for name in names:
            for path in sorted(root.glob(name)):
                files = sorted(path.rglob("*")) if path.is_dir() else [path]
                for file in files:
                    relative = file.relative_to(root).as_posix()
                    if file.is_file() and not ignored(relative, rules):
                        place = Path(target) / (file.relative_to(path) if path.is_dir() else file.name)
                        found[place.as_posix()] = relative
    return found


if __name__ == "__main__":
    root, target = Path(sys.argv[1]), Path(sys.argv[2])
    for place, source in sources(root).items():
        (target / place).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(root / source, target / place)
