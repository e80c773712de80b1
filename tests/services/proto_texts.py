"""Random `.proto` texts that use the whole grammar, and protoc to compile them."""

from __future__ import annotations

import random
import re
import tempfile
from importlib import resources
from pathlib import Path

from grpc_tools import protoc

SCALARS = [
    *("double", "float", "int64", "uint64", "int32", "fixed64", "fixed32", "bool"),
    *("string", "bytes", "uint32", "sfixed32", "sfixed64", "sint32", "sint64"),
]
MAP_KEYS = [kind for kind in SCALARS if kind not in ("double", "float", "bytes")]
PACKABLE = [kind for kind in SCALARS if kind not in ("string", "bytes")]
# Keywords are valid names of fields.
NAMES = ["id", "message", "enum", "option", "oneof", "reserved", "extend", "map", "group", "optional", "syntax", "to"]
BLANKS = ["", " ", "\n", "\t// {;\n", '/* } " */', " /* ; */ "]
STRANGERS = [*"=+-.;[]{},", "1", "0.5", "inf", '"a"', "optional", "export", "local", "extend", "public", "group", "#x"]
FEATURES = {
    "field_presence": ["EXPLICIT", "IMPLICIT"],
    "repeated_field_encoding": ["PACKED", "EXPANDED"],
    "message_encoding": ["LENGTH_PREFIXED", "DELIMITED"],
    "enum_type": ["OPEN", "CLOSED"],
    "utf8_validation": ["VERIFY", "NONE"],
}
_WELL_KNOWN = Path(str(resources.files("grpc_tools"))) / "_proto"


def compiled(text: str) -> bytes | None:
    """The descriptor set that protoc makes of a text; None when protoc refuses the text."""
    with tempfile.TemporaryDirectory(prefix="headrace-protoc-") as folder:
        source, output = Path(folder) / "t.proto", Path(folder) / "t.desc"
        source.write_text(text)
        folders = [f"-I{folder}", f"-I{_WELL_KNOWN}"]
        status = protoc.main(["protoc", *folders, "--include_imports", f"--descriptor_set_out={output}", str(source)])
        return output.read_bytes() if status == 0 else None


def text(pick: random.Random) -> str:
    """A file with messages, enums, options and comments, in one of the syntaxes."""
    return _Writer(pick).file()


def damaged(pick: random.Random) -> str:
    """Such a file with one or two tokens lost, replaced or added."""
    tokens = re.findall(r'\w+|\s+|"[^"\n]*"|.', text(pick))
    for _ in range(pick.randrange(1, 3)):
        at, other = pick.randrange(len(tokens)), pick.choice([*tokens, *STRANGERS])
        tokens[at : at + pick.randrange(2)] = pick.choice([[], [f" {other} "]])
    return "".join(tokens)


class _Writer:
    def __init__(self, pick: random.Random) -> None:
        self.pick = pick
        self.syntax = pick.choice(["proto2", "proto3", "2023", "2024"])
        self.edition = self.syntax.startswith("2")
        self.package = pick.choice(["", "a", "a.b", "message.option"])
        self.messages: list[str] = []  # full names that a field can refer to
        self.enums: list[str] = []

    def file(self) -> str:
        parts = [f'{"edition" if self.edition else "syntax"} = "{self.syntax}";']
        parts = [] if self.syntax == "proto2" and self.chance(0.5) else parts
        parts += [f"package {self.package};"] if self.package else []
        parts += ['import "google/protobuf/descriptor.proto";', "extend google.protobuf.FieldOptions {"]
        parts += [f"{'' if self.edition else 'optional '}string note = 50000; }}"]
        parts += ["option java_package = \"x\" 'y';"] if self.chance(0.3) else []
        parts += ["option features.enforce_naming_style = STYLE_LEGACY;"] if self.syntax == "2024" else []
        parts += [f"option {self.feature(*FEATURES)};"] if self.edition and self.chance(0.4) else []
        for nth in range(self.pick.randrange(1, 4)):
            parts.append(self.enum("", f"E{nth}") if self.chance(0.3) else self.message("", f"M{nth}", 2))
        if self.messages:
            name = self.pick.choice(self.messages)
            parts.append(f"service S {{ rpc Get ({name}) returns (stream {name}) {{ }} ; }}")
        return "".join(f"{self.blank()}{part}" for part in parts) + self.blank()

    def chance(self, share: float) -> bool:
        return self.pick.random() < share

    def blank(self) -> str:
        return self.pick.choice(BLANKS)

    def number(self, value: int) -> str:
        return self.pick.choice([str(value), hex(value), f"0{value:o}" if value else "0"])

    def feature(self, *names: str) -> str:
        name = self.pick.choice(names)
        return f"features.{name} = {self.pick.choice(FEATURES[name])}"

    def full_name(self, *names: str) -> str:
        return "".join(f".{name}" for name in (self.package, *names) if name)

    def enum(self, scope: str, name: str) -> str:
        prefix = f"{scope}_{name}".replace(".", "_").strip("_").upper()
        values = [f"{prefix}_{nth} = {self.number(nth * 3)};" for nth in range(self.pick.randrange(1, 4))]
        values += [f"{prefix}_N = -{self.number(5)} [deprecated = true];"] if self.chance(0.3) else []
        if self.chance(0.2):
            values = ["option allow_alias = true;", *values, f"{prefix}_ALIAS = 0;"]
        values += ["reserved 1000 to max;"] if self.chance(0.2) else []
        self.enums.append(self.full_name(scope, name))
        return f"enum {name} {{ {self.blank().join(values)} }}"

    def message(self, scope: str, name: str, depth: int) -> str:
        inner = f"{scope}.{name}".strip(".")
        parts = [
            self.enum(inner, f"I{nth}") if self.chance(0.4) else self.message(inner, f"I{nth}", depth - 1)
            for nth in range(self.pick.randrange(3) if depth else 0)
        ]
        names = self.pick.sample(NAMES, self.pick.randrange(6)) + [f"f_{nth}" for nth in range(self.pick.randrange(3))]
        numbers = self.pick.sample([*range(1, 40), 2047, 18_999, (1 << 29) - 1], len(names))
        parts += [self.field(inner, each, number) for each, number in zip(names, numbers, strict=True)]
        if self.chance(0.3):
            choices = [f"{self.kind(inner)} choice_{nth} = {100 + nth};" for nth in range(2)]
            parts.append(f"oneof {self.pick.choice(['choice', 'oneof_'])} {{ {' '.join(choices)} }}")
        parts += ["option deprecated = true;"] if self.chance(0.2) else []
        parts += ["reserved 200, 300 to 310;"] if self.chance(0.2) else []
        parts += ["extensions 400 to 500;"] if self.chance(0.2) and self.syntax != "proto3" else []
        self.pick.shuffle(parts)
        self.messages.append(self.full_name(scope, name))
        return f"message {name} {{ {self.blank().join(parts)} }}{self.pick.choice(['', ';'])}"

    def field(self, scope: str, name: str, number: int) -> str:
        kind, at = self.kind(scope), f"{name} = {self.number(number)}"
        if self.chance(0.15):
            return f"map < {self.pick.choice(MAP_KEYS)},{kind}> {at};"
        if self.chance(0.1) and self.syntax == "proto2":
            label = self.pick.choice(["optional", "required", "repeated"])
            return f"{label} group G{number} = {number} {{ optional int32 x = 1; }}"
        if self.chance(0.3):
            return f"repeated {kind} {at}{self.options(self.encoding(kind))};"
        labels = {"proto2": ["optional ", "required "], "proto3": ["", "optional "]}.get(self.syntax, [""])
        return f"{self.pick.choice(labels)}{kind} {at}{self.options(self.presence(kind))};"

    def encoding(self, kind: str) -> list[str]:
        """Options of a repeated field."""
        if kind not in PACKABLE or self.chance(0.5):
            return []
        return (
            [self.feature("repeated_field_encoding")]
            if self.edition
            else [f"packed = {self.pick.choice(['true', 'false'])}"]
        )

    def presence(self, kind: str) -> list[str]:
        """Options of a single field."""
        if self.syntax == "proto2" and kind in ("int32", "string") and self.chance(0.5):
            return ["default = -0x7" if kind == "int32" else "default = 'a\\n' \"]\""]
        if not self.edition or self.chance(0.5):
            return []
        if kind in self.messages:
            return [self.feature("message_encoding")]
        names = ["field_presence", "utf8_validation"] if kind == "string" else ["field_presence"]
        return [self.feature(*names)] if kind in SCALARS else []

    def options(self, options: list[str]) -> str:
        options = [*options, "deprecated=true"] if self.chance(0.1) else options
        if self.chance(0.1):
            options = [*options, f'({self.full_name("note")}) = "]; {{ //"']
        return f" [{', '.join(options)}]" if options else ""

    def kind(self, scope: str) -> str:
        """A scalar, or a type by its full name or, where it is nested here, by its relative name."""
        known = self.messages + self.enums
        if not known or self.chance(0.6):
            return self.pick.choice(SCALARS)
        name = self.pick.choice(known)
        return self.pick.choice([name, name.removeprefix(f"{self.full_name(scope)}.")])
