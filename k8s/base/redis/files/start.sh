#!/bin/sh
# Starts the server with the users of users.acl, whose password comes from the environment and is kept hashed only.
set -eu
config=${REDIS_CONFIG:-/etc/redis}
run=${REDIS_RUN:-/run/redis}
umask 077
hash=$(printf %s "$REDIS_PASSWORD" | sha256sum | cut -d ' ' -f 1)
sed "s/PASSWORD_HASH/$hash/" "$config/users.acl" >"$run/users.acl"
unset REDIS_PASSWORD hash
exec redis-server "$config/redis.conf" "$@"
