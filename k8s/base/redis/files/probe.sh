#!/bin/sh
# Does the server answer? As user probe, who may do nothing else.
set -eu
# shellcheck disable=SC2046  # several options, or none
answer=$(redis-cli -h "${REDIS_HOST:-127.0.0.1}" -p "${REDIS_PORT:-6379}" $(cat "${REDIS_CONFIG:-/etc/redis}/client-options") \
  --no-auth-warning --user probe --pass none ping)
[ "$answer" = PONG ]
