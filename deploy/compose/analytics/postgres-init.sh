#!/bin/sh
# Runs once, when PostgreSQL creates its data: a role for Headrace, which owns two schemas and may do nothing else.
set -eu
psql --no-psqlrc --quiet --set=ON_ERROR_STOP=1 --username="$POSTGRES_USER" --dbname="$POSTGRES_DB" <<'SQL'
\getenv password HOT_STORE_PASSWORD
\getenv database POSTGRES_DB
CREATE ROLE headrace LOGIN PASSWORD :'password';
REVOKE ALL ON DATABASE :"database" FROM PUBLIC;
GRANT CONNECT, TEMPORARY ON DATABASE :"database" TO headrace;
CREATE SCHEMA headrace AUTHORIZATION headrace;
CREATE SCHEMA collected AUTHORIZATION headrace;
SQL
