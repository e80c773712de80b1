"""Orasi's Delta Lake connector: a deltalake.toml, or its sections in other files of the bridge."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.importers.imported import Imported, pipeline_name, spell_milliseconds
from headrace.importers.object_store import option_name, set_storage, store_of
from headrace.importers.settings import Findings, Key, Place, Section, Setting, section_of
from headrace.importers.spec_draft import SpecDraft, Value
from headrace.spec.units import spell_size
from headrace.spec.yaml_reader import YamlNode

SYSTEM = "Orasi"
_API = "a stream appends; DeltaConfig.from_toml of the builder API reads the key"
_READER = "the file describes a writer; DuckDB, Spark and the Table API read the table"
_PROTOCOL = "the protocol of a table follows from its features"
_CODECS = {"snappy": "snappy", "gzip": "gzip", "zstd": "zstd", "lz4": "lz4", "none": "none", "uncompressed": "none"}

DELTALAKE = {
    "table_path": Key(),
    "table_name": Key(),
    "partition_by": Key("texts"),
    "partition_strategy": Key(default="value", choices=("value", "hash", "time")),
    "partition_buckets": Key("integer", 16, minimum=2, maximum=10_000),
    "table": Key("section"),
    "operations": Key("section"),
    "schema": Key("section"),
    "storage": Key("section"),
}
TABLE = {
    "optimize_enabled": Key("flag", True),
    "vacuum_enabled": Key("flag", True),
    "retention_hours": Key("integer", 168, maximum=876_000),
    "compression": Key(default="SNAPPY"),
    "parallelism": Key("integer", minimum=1),
    "batch_size": Key("integer", 10_000, minimum=1),
}
OPERATIONS = {
    "upsert_enabled": Key("flag", True),
    "delete_enabled": Key("flag", True),
    "bulk_insert_enabled": Key("flag", True),
    "streaming_enabled": Key("flag", True),
}
SCHEMA = {
    "auto_evolution": Key("flag", True),
    "strict_mode": Key("flag", False),
    "allow_nullable": Key("flag", True),
    "merge_schema": Key("flag", True),
}
STORAGE = {
    "file_size_target": Key("integer", 134_217_728, minimum=1),
    "file_size_max": Key("integer", minimum=1),
    "min_file_size": Key("integer", minimum=1),
}
BRIDGE = {  # [delta_lake] and [lakehouses.delta_lake], of the connector, the bridge and its exporter
    "type": Key(choices=("DeltaLake",)),
    "storage_path": Key(),
    "table_location": Key(),
    "table_name": Key(),
    "catalog": Key(reason="tables are at a path", advice="Set table.catalog_table to register them in a catalog"),
    "table_format_version": Key("integer", reason=_PROTOCOL),
    "enable_transactions": Key("flag", True),
    "partition_columns": Key("texts"),
    "compression": Key(default="SNAPPY"),
    "writer_config": Key("section"),
    "reader_config": Key("section"),
    "max_records_per_file": Key("integer", reason="files are bounded by table.target_file_size"),
    "create_table_if_not_exists": Key("flag", True),
    "write_mode": Key(default="Append", choices=("Append", "Overwrite", "ErrorIfExists")),
    "storage_options": Key("section"),
}
WRITER = {
    "batch_size": Key("integer", 10_000, minimum=1),
    "flush_interval_ms": Key("integer", 5_000),
    "compression_codec": Key(default="snappy"),
    "partition_columns": Key("texts"),
    "table_format_version": Key("integer", reason=_PROTOCOL),
    "transaction_timeout_secs": Key("integer", reason="a commit is one write of the log, without a timeout"),
    "vacuum_retention_hours": Key("integer", 168, maximum=876_000),
}
READER = {
    "query_timeout_secs": Key("integer", reason=_READER),
    "max_records_per_query": Key("integer", reason=_READER),
    "parallel_threads": Key("integer", reason=_READER),
    "cache_size_bytes": Key("integer", reason=_READER),
    "enable_predicate_pushdown": Key("flag", reason=_READER),
    "enable_column_pruning": Key("flag", reason=_READER),
}
OVERRIDES = {
    "DELTA_LAKE_STORAGE_PATH": "storage_path",
    "DELTA_LAKE_CATALOG": "catalog",
    "DELTA_LAKE_TABLE_FORMAT_VERSION": "table_format_version",
    "DELTA_LAKE_ENABLE_TRANSACTIONS": "enable_transactions",
    "DELTA_LAKE_PARTITION_COLUMNS": "partition_columns",
    "DELTA_LAKE_COMPRESSION": "compression",
}
_PARTS = ("year", "month", "day")  # of the timestamp; `date` and `hour` are derived by partition_by


def is_orasi(root: YamlNode) -> bool:
    """Whether a TOML document configures Orasi's connector."""
    section = root.child("deltalake")
    keys = ("table_path", "table", "operations", "schema", "storage")
    is_own = section is not None and any(section[1].child(key) for key in keys)
    return is_own or _bridge_section(root) is not None or root.child("table_path") is not None


def _bridge_section(root: YamlNode) -> tuple[str, YamlNode] | None:
    lakehouses = root.child("lakehouses")
    if lakehouses is not None and (section := lakehouses[1].child("delta_lake")):
        return "lakehouses.delta_lake", section[1]
    section = root.child("delta_lake")
    if section is not None:
        return "delta_lake", section[1]
    return ("", root) if root.child("storage_path") or root.child("table_location") else None


def import_orasi(root: YamlNode, file: str, environment: Mapping[str, Setting]) -> Imported:
    """Import the configuration of the connector as a pipeline that receives OTLP."""
    findings, place = Findings(), Place(file)
    draft = SpecDraft(place, SYSTEM)
    bridge = _bridge_section(root)
    if bridge is not None:
        _import_bridge(draft, _bridge(root, bridge, place, environment, findings), findings)
    else:
        own = root.child("deltalake")
        if own is not None:
            section_of(root, "", place, {"deltalake": Key("section")}, findings)
        name, node = ("deltalake", own[1]) if own else ("", root)
        _import_own(draft, section_of(node, name, place, DELTALAKE, findings), findings)
    return Imported(SYSTEM, file, [draft], findings)


def _bridge(
    root: YamlNode, bridge: tuple[str, YamlNode], place: Place, environment: Mapping[str, Setting], findings: Findings
) -> Section:
    """Section of the bridge, with the variables that override its keys."""
    name, node = bridge
    if name:
        top, *_ = name.split(".")
        others = _others(root, top) if top == "lakehouses" else {}
        outer = section_of(root, "", place, {top: Key("section"), **others}, findings)
        if top == "lakehouses":
            lakehouses = root.child(top)
            outer.section(
                top, {"delta_lake": Key("section"), **_others(lakehouses[1] if lakehouses else root, "delta_lake")}
            )
    entries = {}
    if isinstance(node.content, Mapping):
        for key, (spot, inner) in node.content.items():
            entries[key] = Setting(f"{name}.{key}" if name else key, inner, Place(place.file, spot))
    for variable, key in OVERRIDES.items():
        if variable in environment:
            findings.overrides.append(variable)
            value = environment[variable].value
            is_list = key == "partition_columns"
            entries[key] = environment[variable].as_value(value.split(",") if is_list else value)
    return Section(name, place, entries, BRIDGE, findings)


def _others(node: YamlNode, own: str) -> dict[str, Key]:
    """Sections of the bridge that are not about its Delta table."""
    entries = node.content if isinstance(node.content, Mapping) else {}
    reason = "a section of the bridge, not of its Delta table"
    return {
        key: Key("anything", reason=reason)
        for key, (_, inner) in entries.items()
        if key != own and isinstance(inner.content, Mapping)
    }


def _import_own(draft: SpecDraft, config: Section, findings: Findings) -> None:
    table, operations = config.section("table", TABLE), config.section("operations", OPERATIONS)
    schema, storage = config.section("schema", SCHEMA), config.section("storage", STORAGE)
    streaming = operations.get("streaming_enabled")
    if not streaming.value:
        message = "there is no stream to import: the operation is disabled"
        findings.error(streaming.place, streaming.name, message, "true, or `DeltaConfig.from_toml` of the builder API")
    findings.fulfill(streaming, "a pipeline always streams")
    for key in ("upsert_enabled", "delete_enabled", "bulk_insert_enabled"):
        findings.fulfill(operations.get(key), _API)
    path = config.required("table_path")
    _set_head(draft, config.get("table_name"), path)
    partitions = config.texts("partition_by")
    strategy, buckets = config.get("partition_strategy"), config.get("partition_buckets")
    if strategy.value != "hash":
        config.skip("partition_buckets", "partition_strategy is not hash")
    draft_partitions(draft, partitions, int(buckets.value) if strategy.value == "hash" else 0)
    findings.fulfill(
        strategy, "partition_by says it for each column" if partitions else "there are no partition columns"
    )
    _set_contract(draft, schema, findings)
    _set_compression(draft, table.get("compression"), findings)
    _set_sizes(draft, storage, findings)
    _set_state(draft, path)
    draft.set("flush.rows", table.get("batch_size"))
    _set_maintenance(draft, table, findings)
    draft.set("spark.cores", table.get("parallelism"))


def _import_bridge(draft: SpecDraft, config: Section, findings: Findings) -> None:
    writer = config.section("writer_config", WRITER)
    config.section("reader_config", READER)
    findings.fulfill(config.get("type"), "the table is a Delta table")
    findings.fulfill(config.get("enable_transactions"), "every batch is one transaction")
    location = config.get("table_location")
    path = location if location.is_set else config.required("storage_path")
    if location.is_set:
        config.skip("storage_path", "table_location is the path of the table")
    _set_head(draft, config.get("table_name"), path)
    columns = config.texts("partition_columns") or writer.texts("partition_columns")
    draft_partitions(draft, columns, 0)
    if config.texts("partition_columns"):
        writer.skip("partition_columns", "partition_columns of the section around it applies")
    create = config.get("create_table_if_not_exists")
    draft.set("table.create", create.as_value("auto" if create.value else "never"), native_default="auto")
    mode = config.get("write_mode")
    if mode.value != "Append":
        findings.skip(mode, "a stream appends", "Set table.mode, or choose another path")
    codec = config.get("compression")
    if codec.is_set:
        writer.skip("compression_codec", "compression of the section around it applies")
    _set_compression(draft, codec if codec.is_set else writer.get("compression_codec"), findings)
    _set_state(draft, path)
    node = config.get("storage_options").value
    options: dict[str, Setting] = {}
    if isinstance(node, YamlNode) and isinstance(node.content, Mapping):
        store = store_of(str(path.value))
        for key, (spot, inner) in node.content.items():
            name = f"{config.name}.storage_options.{key}".removeprefix(".")
            options[option_name(store, key)] = Setting(name, inner.plain(), Place(config.place.file, spot))
    set_storage(draft, store_of(str(path.value)), options, findings, prefix="orasi")
    every = writer.get("flush_interval_ms")
    draft.set("flush.every", every.as_value(spell_milliseconds(max(every.value, 100))), native_default="5s")
    draft.set("flush.rows", writer.get("batch_size"))
    hours = writer.get("vacuum_retention_hours")
    if hours.is_set:
        draft.set("maintenance.retention", hours.as_value(spell_milliseconds(hours.value * 3_600_000)))


def _set_head(draft: SpecDraft, name: Setting, path: Setting) -> None:
    """Set the name, the source and the path: the bridge receives OTLP."""
    text = str(name.value or str(path.value or "").rstrip("/").rpartition("/")[2])
    origin = name if name.is_set else path
    draft.set("pipeline", origin.as_value(pipeline_name(text)))
    draft.set("source.otlp.grpc", "localhost:4317", f"replaces the receivers of {SYSTEM}'s bridge")
    draft.set("source.otlp.http", "localhost:4318")
    if "://" in str(path.value):
        comment = "a local directory that survives restarts; requests wait here until they are in the table"
        draft.set("source.otlp.spool.path", f"./spool/{pipeline_name(text)}", comment)
    draft.set("decode.otlp.layout", "telemetry", f"columns of {SYSTEM}'s table")
    draft.set("table.path", path)


def _set_state(draft: SpecDraft, path: Setting) -> None:
    draft.set("table.source", False, f"{SYSTEM} has no column _source")


def draft_partitions(draft: SpecDraft, columns: list[Setting], buckets: int) -> None:
    """Set partition columns; parts of the timestamp are derived from it."""
    parts = {column.value: f'{column.value}("timestamp")' for column in columns if column.value in _PARTS}
    if parts:
        draft.append("transform", {"set": parts})
    partitions: list[Value] = []
    for column in columns:
        if buckets:
            hashed = {"hash": column, "buckets": buckets, "as": column.as_value(f"{column.value}_bucket")}
            partitions.append(hashed)
        elif column.value in ("date", "hour"):
            partitions.append({column.value: column.as_value("timestamp"), "as": column})
        else:
            partitions.append(column)
    if partitions:
        draft.set("table.partition_by", partitions)


def _set_contract(draft: SpecDraft, schema: Section, findings: Findings) -> None:
    strict, nullable = schema.get("strict_mode"), schema.get("allow_nullable")
    evolution, merge = schema.get("auto_evolution"), schema.get("merge_schema")
    if strict.value:
        draft.set("table.strict", strict)
        for setting in (evolution, merge):
            findings.fulfill(setting, "strict_mode takes precedence")
    else:
        findings.fulfill(strict, "records that do not fit are dead letters")
        first = merge if evolution.value and not merge.value else evolution
        grows = evolution.value and merge.value
        draft.set("table.contract.new_field", first.as_value("evolve" if grows else "reject"), native_default="evolve")
        findings.fulfill(merge if first is evolution else evolution, "both must be true for new fields to be added")
    if nullable.value:
        findings.fulfill(nullable, "columns are nullable unless they are declared otherwise")
    else:
        advice = "Declare table.columns with nullable: false"
        findings.skip(nullable, "attributes of a signal are absent in others, so their columns need NULL", advice)


def _set_compression(draft: SpecDraft, codec: Setting, findings: Findings) -> None:
    native = _CODECS.get(str(codec.value).lower())
    if native is None:
        findings.error(codec.place, codec.name, f"unknown value '{str(codec.value)[:60]}'", ", ".join(_CODECS))
        return
    draft.set("table.compression", codec.as_value(native), native_default="snappy")


def _set_sizes(draft: SpecDraft, storage: Section, findings: Findings) -> None:
    target, largest, least = (storage.get(key) for key in STORAGE)
    draft.set("table.target_file_size", target.as_value(spell_size(target.value)))
    if least.is_set:
        draft.set("table.min_file_size", least.as_value(spell_size(least.value)))
    if largest.is_set and largest.value >= 2 * target.value:
        draft.set("table.max_file_size", largest.as_value(spell_size(largest.value)))
    elif largest.is_set:
        findings.skip(largest, "files are split above twice the target at the earliest")


def _set_maintenance(draft: SpecDraft, table: Section, findings: Findings) -> None:
    """Maintenance compacts and vacuums; it is enabled if both are."""
    optimize, vacuum, hours = (table.get(key) for key in ("optimize_enabled", "vacuum_enabled", "retention_hours"))
    if optimize.value and vacuum.value:
        draft.set("maintenance.retention", hours.as_value(spell_milliseconds(hours.value * 3_600_000)))
        for setting in (optimize, vacuum):
            findings.fulfill(setting, "maintenance compacts and vacuums")
        return
    for setting in (optimize, vacuum):
        if setting.value:
            advice = "Run `headrace table optimize` or `headrace table vacuum` regularly"
            findings.skip(setting, "maintenance compacts and vacuums together, and one of them is disabled", advice)
        else:
            findings.fulfill(setting, "a pipeline without the key maintenance does not compact or vacuum")
    table.skip("retention_hours", "without maintenance, nothing is deleted")
