"""Configuration files: Ray Serve's own form, so that ``serve deploy`` takes them too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from deployments.config import AppConfig, parse_config
from deployments.errors import ConfigError

CONFIGS = Path(__file__).with_name("configs")
IMPORT_PATH = "deployments.app:build_app"


def read_config(path: Path) -> AppConfig:
    """The ``args`` of the file's application.

    Raises:
        ConfigError: the file cannot be read, is no Serve configuration with one application of ours, or has wrong args.
    """
    return parse_config(read_args(path), str(path))


def read_args(path: Path) -> dict[str, Any]:
    """The same, not checked yet. Raises ConfigError as :func:`read_config` does for the file's form."""
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read ({error})") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: is not YAML ({' '.join(str(error).split())})") from None
    applications = values.get("applications") if isinstance(values, dict) else None
    if not isinstance(applications, list) or len(applications) != 1 or not isinstance(applications[0], dict):
        raise ConfigError(f"{path}: a Ray Serve configuration is expected, with one entry under applications")
    if applications[0].get("import_path") != IMPORT_PATH:
        raise ConfigError(f"{path}: the application's import_path must be {IMPORT_PATH}")
    args = applications[0].get("args") or {}
    if not isinstance(args, dict):
        raise ConfigError(f"{path}: args must be a mapping of settings")
    return args
