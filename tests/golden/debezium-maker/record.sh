#!/bin/sh
# Records ../debezium anew: a PostgreSQL of its own on a free port, Debezium's connector beside it, and day.sql.
# Needs Maven, Java 17 and the programs of a PostgreSQL server (PG names their folder).
set -eu
cd "$(dirname "$0")"
PG=${PG:-$(dirname "$(ls /usr/lib/postgresql/*/bin/initdb | tail -1)")}
data=$(mktemp -d) && out=$(cd .. && pwd)/debezium && mkdir -p "$out"
as=""; [ "$(id -u)" = 0 ] && { chown nobody "$data"; as="setpriv --reuid=nobody --clear-groups"; }
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
$as "$PG/initdb" -D "$data/pg" -U shop -A trust -E UTF8 --locale=C >/dev/null
$as "$PG/pg_ctl" -D "$data/pg" -w -l "$data/log" -o "-p $port -k $data -c listen_addresses=127.0.0.1 -c wal_level=logical" start >/dev/null
trap '$as "$PG/pg_ctl" -D "$data/pg" -m immediate stop >/dev/null; rm -rf "$data"' EXIT
"$PG/createdb" -h 127.0.0.1 -p "$port" -U shop shop
mvn -q compile exec:java -Dexec.mainClass=Recorder -Dexec.args="$port $out" -Dorg.slf4j.simpleLogger.defaultLogLevel=warn
