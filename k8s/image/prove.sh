#!/bin/sh
# Runs the Dockerfile's steps in a fresh folder, without a container engine, and starts the service from there: copies
# what COPY names, runs what RUN runs of install.sh, then the command, until it has answered.
#   k8s/image/prove.sh [FOLDER]      default: a folder under /tmp that is removed; takes minutes and 3 GB
# With a FOLDER, what is there already is not installed again. READY_TIMEOUT_S: how long the service may take to start.
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
work=${1:-$(mktemp -d)}
port=${PORT:-18931}
[ $# -gt 0 ] || trap 'rm -rf "$work"' EXIT
mkdir -p "$work/src" "$work/home"

"${PYTHON:-python3}" "$root/k8s/image/steps.py" "$root" "$work/src"
cd "$work/src"
sh k8s/image/install.sh dependencies "${DEVICE:-cpu}" "$work/racer"
sh k8s/image/install.sh project "${DEVICE:-cpu}" "$work/racer"
sh k8s/image/install.sh model "${DEMO_MODEL:-1}" "$work/cache" "$work/racer"

cd "$work/home" # nothing of the repository is here: what answers is what was installed
env -i HOME="$work/home" PATH="$work/racer/bin:/usr/bin:/bin" RACER_CACHE="$work/cache" \
  python -m deployments serve --port "$port" --ready-timeout-s "${READY_TIMEOUT_S:-1800}" >"$work/told" 2>"$work/log" &
server=$!
trap 'kill -INT $server 2>/dev/null || true; wait $server || true; [ -n "${1:-}" ] || rm -rf "$work"' EXIT
until [ -s "$work/told" ]; do
  kill -0 $server 2>/dev/null || { cat "$work/log" >&2; exit 1; }
  sleep 1
done
sh -c "$(head -n 1 "$work/told")" | grep -q "data: \[DONE\]"
echo "answered from $work"
