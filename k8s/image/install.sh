#!/bin/sh
# The image's steps, each into a folder; the Dockerfile and prove.sh run the same ones.
#   install.sh dependencies cpu|cuda FOLDER   a virtual environment with what pyproject.toml needs, in exact versions
#   install.sh project      cpu|cuda FOLDER   the packages of this repository into it
#   install.sh model        1|0      FOLDER ENVIRONMENT   the demo model into a cache folder (0: an empty one)
# TORCH_INDEX: PyTorch's index of builds for processors only (a tenth of the size), if torch is to come from there; other
# packages never do.
set -eu
step=$1 choice=$2 folder=$3
python=${PYTHON:-python3}
pip="$folder/bin/python -m pip --disable-pip-version-check --no-cache-dir"

case $step in
dependencies)
  if [ "$choice" != cpu ] && [ "$choice" != cuda ]; then
    echo "DEVICE is $choice; it must be cpu or cuda" >&2
    exit 2
  fi
  "$python" -m venv "$folder"
  if [ "$choice" = cpu ] && [ -n "${TORCH_INDEX:-}" ]; then
    torch=$(grep '^torch==' constraints.txt)
    $pip install --index-url "$TORCH_INDEX" --no-deps "$torch"
  fi
  "$folder/bin/python" -c '
import tomllib
with open("pyproject.toml", "rb") as file:
    print("\n".join(tomllib.load(file)["project"]["dependencies"]))' >"$folder/requirements.txt"
  $pip install --constraint constraints.txt --requirement "$folder/requirements.txt"
  ;;
project)
  $pip install --constraint constraints.txt --no-deps .
  ;;
model)
  mkdir -p "$folder"
  if [ "$choice" = 1 ]; then
    RACER_CACHE=$folder "$4/bin/python" -m racer.model.demo
  fi
  ;;
*)
  echo "unknown step $step; it must be dependencies, project or model" >&2
  exit 2
  ;;
esac
