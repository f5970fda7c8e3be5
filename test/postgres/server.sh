#!/bin/sh
# server.sh BIN DIR SCHEMA: run a PostgreSQL of its own in DIR, on a socket there,
# say "ready", and remove all of it when standard input ends, as it does when
# whoever started this is gone.
set -eu
bin=$1 dir=$2 schema=$3

stop() {
	"$bin/pg_ctl" -D "$dir/data" -w -m immediate stop >/dev/null 2>&1 || :
	rm -rf "$dir"
}
trap stop EXIT
trap 'exit 1' HUP INT PIPE TERM # else dash would not stop at its exit

run() { "$@" >>"$dir/log" 2>&1 || { cat "$dir/log" >&2; exit 1; }; }

run "$bin/initdb" -D "$dir/data" -U postgres -A trust -E UTF8 --locale=C --no-sync
cat >"$dir/data/pg_hba.conf" <<-HBA
	local all secretive scram-sha-256
	local all stranger reject
	local all all trust
HBA
run "$bin/pg_ctl" -D "$dir/data" -w -t 120 -l "$dir/log" start \
	-o "-c listen_addresses='' -c unix_socket_directories='$dir' -c fsync=off -c max_connections=50"
run "$bin/psql" -h "$dir" -U postgres -v ON_ERROR_STOP=1 -q -d template1 -f "$schema"
echo ready
cat >/dev/null
