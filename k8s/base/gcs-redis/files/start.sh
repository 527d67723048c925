#!/bin/sh
# Starts the server with one user for Ray's head, whose password comes from the environment and is kept hashed only.
set -eu
config=${REDIS_CONFIG:-/etc/redis}
run=${REDIS_RUN:-/run/redis}
umask 077
hash=$(printf %s "$REDIS_PASSWORD" | sha256sum | cut -d ' ' -f 1)
{
  echo "user default off"
  echo "user gcs on #$hash ~* &* +@all -@admin -@dangerous +info +keys +flushdb"
  echo "user probe on nopass resetkeys resetchannels -@all +ping"
} >"$run/users.acl"
unset REDIS_PASSWORD hash
exec redis-server "$config/redis.conf" "$@"
