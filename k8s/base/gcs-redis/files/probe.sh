#!/bin/sh
# Does the server answer? As user probe, who may do nothing else.
set -eu
answer=$(redis-cli -h "${REDIS_HOST:-127.0.0.1}" -p "${REDIS_PORT:-6379}" --no-auth-warning --user probe --pass none ping)
[ "$answer" = PONG ]
