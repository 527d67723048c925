#!/bin/sh
# Keeps this server in the cluster: it knows its peers, and owns the slots that its number gives it. The store is a
# cache, so a server that was replaced comes back empty and simply takes its slots: no data moves, nobody decides.
# PEERS: all servers as host:port, in order of their numbers. NUMBER: this one's, from 0.
set -eu
options=$(cat "${REDIS_CONFIG:-/etc/redis}/client-options")
set -- $PEERS
count=$#
self=$(eval "echo \${$((NUMBER + 1))}")
first=$((16384 * NUMBER / count))
last=$((16384 * (NUMBER + 1) / count - 1))

ask() {
  # shellcheck disable=SC2086  # several options, or none
  redis-cli -h "${self%:*}" -p "${self#*:}" $options --no-auth-warning --user join --pass none "$@"
}

own() { # the slots are ours in our own view: claim them before others' views arrive, or take them back
  if ask cluster nodes | grep myself | grep -q " $first-$last\$"; then
    return
  fi
  slot=$first
  me=$(ask cluster myid)
  ask cluster addslotsrange "$first" "$last" >/dev/null 2>&1 || true
  if ! ask cluster nodes | grep myself | grep -q " $first-$last\$"; then
    while [ "$slot" -le "$last" ]; do
      echo "cluster setslot $slot node $me"
      slot=$((slot + 1))
    done | ask >/dev/null
  fi
  ask cluster bumpepoch >/dev/null
}

meet() {
  for peer in "$@"; do
    address=$(getent ahostsv4 "${peer%:*}" | awk 'NR == 1 {print $1}') || continue
    [ -n "$address" ] || continue
    ask cluster nodes | grep -v fail | grep -q " $address:${peer#*:}[@ ]" || ask cluster meet "$address" "${peer#*:}" >/dev/null
  done
}

forget() { # servers that are gone for good
  ask cluster nodes | awk '$3 ~ /noaddr/ || ($3 ~ /fail/ && $3 !~ /fail\?/) {print $1}' | while read -r gone; do
    ask cluster forget "$gone" >/dev/null || true
  done
}

while sleep "${PAUSE_S:-3}"; do
  ask ping >/dev/null 2>&1 || continue
  own && meet "$@" && forget || echo "not joined yet" >&2
done
