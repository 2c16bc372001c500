# Starts Redis with the password of a file, which on the command line every process could read; without that file, without one.
set -eu
umask 077
if [ -s "$REDIS_PASSWORD_FILE" ]; then
  password=$(cat "$REDIS_PASSWORD_FILE")
  quoted=$(printf %s "$password" | sed 's/["\\]/\\&/g')
  printf 'requirepass "%s"\nmasterauth "%s"\n' "$quoted" "$quoted" > /tmp/password.conf
else
  password=
  echo "there is no secret redis-password: Redis is used without a password, and only network policies guard it"
  echo "protected-mode no" > /tmp/password.conf # or nobody but this pod would be answered
fi

# Nodes of a cluster know each other by addresses. If all of them come back with others at once, none finds another: so a node that
# has been in a cluster introduces itself to the names of its peers.
introduce() {
  if [ -n "$password" ]; then export REDISCLI_AUTH="$password"; fi
  # shellcheck disable=SC2046  # the flags are several words
  cli() { redis-cli $(cat /etc/redis/cli-flags) "$@" 2>&1; }
  until [ "$(cli ping)" = PONG ]; do sleep 1; done
  for peer in $REDIS_PEERS; do
    until address=$(getent hosts "${peer%:*}" | awk 'NR == 1 { print $1 }') && [ -n "$address" ]; do sleep 1; done
    cli cluster meet "$address" "${peer##*:}"
  done
}
if [ -n "${REDIS_PEERS:-}" ] && [ "$(wc -l < /data/nodes.conf 2>/dev/null || echo 0)" -gt 2 ]; then
  introduce &
fi
exec redis-server /etc/redis/redis.conf "$@"
