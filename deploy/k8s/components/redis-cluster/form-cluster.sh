# Makes a cluster of the nodes in REDIS_PEERS (host:port ...), each second half of them a replica; does nothing if they are one.
set -eu
if [ -s "$REDIS_PASSWORD_FILE" ]; then
  REDISCLI_AUTH=$(cat "$REDIS_PASSWORD_FILE")
  export REDISCLI_AUTH
fi

flags=$(cat /etc/redis/cli-flags)

# shellcheck disable=SC2086  # the flags are several words
ask() { # ask HOST:PORT COMMAND...
  asked=$1
  shift
  redis-cli $flags -h "${asked%:*}" -p "${asked##*:}" "$@"
}

nodes=
first=
for peer in $REDIS_PEERS; do
  until [ "$(ask "$peer" ping 2>&1)" = PONG ]; do
    echo "waiting for $peer"
    sleep 2
  done
  # A cluster is formed by addresses; names come with cluster-announce-hostname.
  address=$(getent hosts "${peer%:*}" | awk 'NR == 1 { print $1 }')
  nodes="$nodes $address:${peer##*:}"
  first=${first:-$peer}
done
if ask "$first" cluster info | grep -q '^cluster_slots_assigned:16384'; then
  echo "the cluster is there"
  exit 0
fi
# shellcheck disable=SC2086
redis-cli $flags --cluster create $nodes --cluster-replicas 1 --cluster-yes
