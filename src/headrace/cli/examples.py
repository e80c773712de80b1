"""Examples for the help of each command."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import typer

EXAMPLES: Mapping[str, Sequence[str]] = {
    "init": ("headrace init orders --brokers localhost:9092 --output orders.yaml",),
    "import": (
        "headrace import connector.toml --output payments.yaml",
        "headrace import -- ingest web_requests ./lake/web_requests --allowed_latency 60",
    ),
    "run": ("headrace run web.yaml", "headrace run web.yaml shop.yaml --until latest", "headrace run ."),
    "receive": ("headrace receive web.yaml", "headrace receive web.yaml --json"),
    "connect otel-collector": (
        "headrace connect otel-collector otel.yaml",
        "headrace connect otel-collector otel.yaml --protocol http --host lake.example.com",
    ),
    "submit": ("headrace submit web.yaml --print", "headrace submit web.yaml --deploy-mode cluster"),
    "check": ("headrace check web.yaml", "headrace check web.yaml --online"),
    "preview": ("headrace preview web.yaml", "headrace preview web.yaml payloads.jsonl --json"),
    "schema": ("headrace schema > headrace.schema.json",),
    "status": (
        "headrace status",
        "headrace status web.yaml --batches 20",
        "headrace status --state lake/_headrace --json",
    ),
    "top": ("headrace top", "headrace top --url http://127.0.0.1:9187", "headrace top --once --json"),
    "console": ("headrace console web.yaml", "headrace console . --listen 127.0.0.1:9187"),
    "pause": ("headrace pause web", "headrace pause web shop --json"),
    "resume": ("headrace resume web", "headrace resume web.yaml --accept-gap"),
    "restart": ("headrace restart web",),
    "takeover": (
        "headrace takeover web.yaml --from kafka-delta-ingest:web_requests",
        "headrace takeover web.yaml --from checkpoint:s3://lake/checkpoints/web --yes",
    ),
    "demo": ("headrace demo", "headrace demo /tmp/demo --records 100000", "headrace demo --master cluster"),
    "kafka": ("headrace kafka", "headrace kafka /tmp/kafka --port 19092"),
    "setup": ("headrace setup", "headrace setup spark", "headrace setup spark s3 --pack"),
    "version": ("headrace version",),
    "dead-letters list": (
        "headrace dead-letters list web.yaml",
        "headrace dead-letters list web.yaml --reason type --since 2h",
    ),
    "dead-letters show": ("headrace dead-letters show web.yaml orders/0/42",),
    "dead-letters dry-run": (
        "headrace dead-letters dry-run web.yaml --sample 50",
        "headrace dead-letters dry-run web.yaml --reason too_deep --set limits.depth=128",
    ),
    "dead-letters replay": ("headrace dead-letters replay web.yaml --reason type",),
    "dead-letters purge": ("headrace dead-letters purge web.yaml --older-than 30d",),
    "table list": ("headrace table list lake",),
    "table info": ("headrace table info lake/orders",),
    "table stats": ("headrace table stats lake/orders",),
    "table history": ("headrace table history lake/orders --limit 5",),
    "table metrics": ("headrace table metrics lake/orders",),
    "table query": (
        "headrace table query lake/orders --where 'amount > 100' --limit 5",
        "headrace table query lake/orders --select country --select 'gross=amount * 1.19' --version 0",
    ),
    "table sql": (
        "headrace table sql \"SELECT country, sum(amount) FROM 'lake/orders' GROUP BY ALL\"",
        'headrace table sql "SELECT count(*) FROM orders JOIN visits USING (id)" '
        "--table orders=lake/orders --table visits=lake/visits",
    ),
    "table changes": ("headrace table changes lake/orders --from 1",),
    "table create": ("headrace table create lake/visits --column 'id bigint!' --column 'at timestamp'",),
    "table insert": ("headrace table insert lake/orders orders.jsonl",),
    "table upsert": ("headrace table upsert lake/orders orders.jsonl --key id",),
    "table delete": ("headrace table delete lake/orders --where 'id = 4711'",),
    "table update": ("headrace table update lake/orders --where 'id = 1' --set 'amount=amount * 2'",),
    "table set-properties": ("headrace table set-properties lake/orders --set delta.appendOnly=false",),
    "table update-schema": ("headrace table update-schema lake/orders --add 'note string'",),
    "table enable-feature": ("headrace table enable-feature lake/orders columnMapping",),
    "table optimize": ("headrace table optimize lake/orders --target-size 128MB",),
    "table vacuum": ("headrace table vacuum lake/orders --retain 168h --dry-run",),
    "table checkpoint": ("headrace table checkpoint lake/orders",),
    "table repair": ("headrace table repair lake/orders --dry-run",),
    "table restore": ("headrace table restore lake/orders --version 0",),
    "table drop": ("headrace table drop lake/orders",),
    "reset": ("headrace reset web.yaml --dry-run", "headrace reset web.yaml --tables"),
}


def add_examples(app: typer.Typer, prefix: str = "") -> None:
    """Append examples to the help of each command; KeyError for a command without examples."""
    for command in app.registered_commands:
        name = command.name or (command.callback.__name__.replace("_", "-") if command.callback else "")
        command.epilog = _epilog(EXAMPLES[prefix + name])
    for group in app.registered_groups:
        if group.typer_instance is not None:
            add_examples(group.typer_instance, f"{prefix}{group.typer_instance.info.name} ")


def _epilog(examples: Sequence[str]) -> str:
    lines = "\n".join(f"  {example}" for example in examples)
    return f"\b\nExample{'s' if len(examples) > 1 else ''}:\n{lines}"  # \b: do not rewrap
