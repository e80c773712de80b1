"""Functions, operators and types that an expression may use. All others are rejected."""

from __future__ import annotations

from collections.abc import Mapping


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


# Excluded: functions that are not deterministic (random, uuid), that read more than the row
# (settings, files, catalogs), or that make large results from small input (repeat, range, format with a width).
FUNCTIONS: Mapping[str, tuple[str, ...]] = {
    "Text": _words(
        "ascii bit_length char_length character_length chr concat concat_ws contains ends_with instr lcase left length "
        "lower lpad ltrim nfc_normalize octet_length ord position prefix replace reverse right rpad rtrim split "
        "split_part starts_with str_split string_split string_to_array strip_accents strlen strpos substr substring "
        "suffix translate trim ucase unicode upper url_decode url_encode"
    ),
    "Patterns": _words(
        "ilike_escape like_escape not_ilike_escape not_like_escape regexp_escape regexp_extract regexp_extract_all "
        "regexp_full_match regexp_matches regexp_replace regexp_split_to_array"
    ),
    "Numbers": _words(
        "abs acos asin atan atan2 bit_count cbrt ceil ceiling cos cot degrees even exp fdiv floor fmod greatest "
        "isfinite isinf isnan least ln log log10 log2 mod pi pow power radians round round_even sign signbit sin sqrt "
        "tan trunc xor"
    ),
    "Dates and times": _words(
        "century current_date current_timestamp date_add date_diff date_part date_sub date_trunc datediff datepart "
        "datesub datetrunc day dayname dayofmonth dayofweek dayofyear days_in_month decade epoch epoch_ms epoch_ns "
        "epoch_us hour isodow isoyear last_day make_date make_timestamp make_timestamp_ms make_timestamptz "
        "microsecond millisecond minute month monthname now quarter second strftime strptime time_bucket timezone "
        "to_days to_hours to_microseconds to_milliseconds to_minutes to_months to_quarters to_seconds to_timestamp "
        "to_weeks to_years today try_strptime week weekday weekofyear year yearweek"
    ),
    "Bytes and digests": _words("base64 decode encode from_base64 from_hex hex md5 sha1 sha256 to_base64 to_hex unhex"),
    "JSON": _words(
        "json json_array json_array_length json_contains json_exists json_extract json_extract_path "
        "json_extract_path_text json_extract_string json_keys json_merge_patch json_object json_quote json_type "
        "json_valid json_value to_json"
    ),
    "Choice": ("if", "nullif", "typeof"),
    "Lists": _words(
        "array_append array_contains array_extract array_length array_position array_prepend array_slice "
        "array_to_string flatten len list_append list_apply list_avg list_bool_and list_bool_or list_concat "
        "list_contains list_count list_distinct list_extract list_filter list_first list_has_all list_has_any "
        "list_intersect list_last list_max list_min list_position list_prepend list_reverse list_reverse_sort "
        "list_slice list_sort list_sum list_transform list_unique list_value"
    ),
    "Structs and maps": _words(
        "cardinality element_at map map_concat map_contains map_entries map_extract map_extract_value "
        "map_from_entries map_keys map_values struct_concat struct_extract struct_insert struct_keys struct_pack "
        "struct_update"
    ),
}

NAMES = frozenset(name for names in FUNCTIONS.values() for name in names)

# Operators that DuckDB's parser spells as functions.
SYMBOLS = frozenset(_words("+ - * / // % ** ^ & | ~ << >> @ || ->> ~~ !~~ ~~* !~~* ~~~ ^@ @> <@ &&"))

# Strict, and of a type that their arguments decide.
NULL_IN_NULL_OUT = frozenset(
    _words("+ - * / // % ** ^ & | ~ << >> @ abs ceil ceiling even floor mod round round_even trunc")
)

# Operators that DuckDB's parser gives a class of their own.
CLASSES = frozenset(
    _words("BETWEEN CASE CAST COLUMN_REF COMPARISON CONJUNCTION CONSTANT FUNCTION LAMBDA OPERATOR TYPE")
)
OPERATORS = frozenset(
    _words(
        "ARRAY_CONSTRUCTOR ARRAY_EXTRACT ARRAY_SLICE COMPARE_IN COMPARE_NOT_IN OPERATOR_COALESCE OPERATOR_IS_NOT_NULL "
        "OPERATOR_IS_NULL OPERATOR_NOT OPERATOR_TRY STRUCT_EXTRACT"
    )
)

TYPES = frozenset(
    _words(
        "bigint binary blob bool boolean bytea char date datetime dec decimal double float float4 float8 hugeint int "
        "int1 int128 int16 int2 int32 int4 int64 int8 integer interval json list long map numeric real short smallint "
        "string struct text timestamp timestamp_ms timestamp_s timestamp_us timestamptz tinyint ubigint uinteger "
        "usmallint utinyint uuid varbinary varchar"
    )
) | {"timestamp with time zone"}

# Arguments (by position) that determine the size of the result: must be a literal up to WIDEST.
BOUNDED: Mapping[str, int] = {"lpad": 1, "rpad": 1}
WIDEST = 1000

# Arguments that must be literals, because they are inserted once per match.
INSERTED: Mapping[str, int] = {"array_to_string": 1, "regexp_replace": 2, "replace": 2}
GROWTH = 128  # maximum ratio of output to input length of a text

# Replaced by the batch's clock, so that a repeated batch gives the same rows.
CLOCK: Mapping[str, str] = {
    "now": "TIMESTAMPTZ",
    "current_timestamp": "TIMESTAMPTZ",
    "current_date": "DATE",
    "today": "DATE",
}

# Names of rejected syntax in diagnostics.
REFUSED: Mapping[str, str] = {
    "SUBQUERY": "a subquery",
    "WINDOW": "a window function",
    "STAR": "a star or COLUMNS(…)",
    "PARAMETER": "a parameter",
    "POSITIONAL_REFERENCE": "a positional reference",
    "COLLATE": "a collation",
    "DEFAULT": "DEFAULT",
    "GROUPING_FUNCTION": "GROUPING",
}

_AGGREGATES = _words("any_value array_agg avg count count_star first last list max median min mode string_agg sum")

WHY: Mapping[str, str] = {
    "random": "it is not deterministic",
    "uuid": "it is not deterministic",
    "gen_random_uuid": "it is not deterministic",
    "uuidv7": "it is not deterministic",
    "age": "it reads the clock; use date_diff",
    "ago": "it reads the clock; use now() - interval",
    "hash": "its result depends on the DuckDB version; use md5 or sha256",
    "repeat": "its result size is unbounded",
    "range": "its result size is unbounded",
    "generate_series": "its result size is unbounded",
    "format": "its result size is unbounded; use || and lpad",
    "printf": "its result size is unbounded; use || and lpad",
    "list_reduce": "its result size is unbounded",
    "unnest": "use `explode` to produce several rows",
    **dict.fromkeys(_AGGREGATES, "aggregates are not supported"),
    "row": "its fields have no names; use {'name': …}, and only one expression",
}


def allow_list_reference() -> str:
    """The allow-list as the Markdown table of the documentation."""
    rows = [f"| {family} | {' '.join(f'`{name}`' for name in names)} |" for family, names in FUNCTIONS.items()]
    symbols = " ".join(f"`{symbol}`".replace("|", "\\|") for symbol in sorted(SYMBOLS))
    types = " ".join(f"`{name}`" for name in sorted(TYPES))
    head = ["| family | names |", "|---|---|"]
    return "\n".join([*head, *rows, f"| Operators | {symbols} |", f"| Types of casts | {types} |"]) + "\n"
