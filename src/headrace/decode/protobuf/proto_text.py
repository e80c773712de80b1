"""Parse `.proto` texts to descriptors.

Names stay as they are written; the linker resolves and checks them. Options are skipped, except those that change the
encoding: a registry can store options that no compiler accepts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from google.protobuf import descriptor_pb2
from google.protobuf.descriptor_pb2 import FieldDescriptorProto

from headrace.decode.protobuf.schema import BadProtobufSchema, ParsedFile

_CHARACTERS = 4 * 1024 * 1024
_DEPTH = 32  # nested messages, the limit of protoc
_TOKEN = re.compile(
    r"""(?P<blank>\s+|//[^\n]*|/\*.*?\*/)
    |(?P<word>[A-Za-z_]\w*)
    |(?P<number>0[xX][0-9A-Fa-f]+|(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)
    |(?P<text>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
    |(?P<sign>[{}\[\]()<>=;,.:+/-])""",
    re.VERBOSE | re.DOTALL,
)
_SCALARS = {
    kind: getattr(FieldDescriptorProto, f"TYPE_{kind.upper()}")
    for kind in (
        *("double", "float", "int64", "uint64", "int32", "fixed64", "fixed32", "bool"),
        *("string", "bytes", "uint32", "sfixed32", "sfixed64", "sint32", "sint64"),
    )
}
_LABELS = {"optional": 1, "required": 2, "repeated": 3}
_EDITIONS = {"2023": 1000, "2024": 1001}

Options = dict[str, Any]


def parsed(text: str, name: str) -> ParsedFile:
    """The descriptor of a `.proto` text; BadSchema with file and line when the text is not valid."""
    if len(text) > _CHARACTERS:
        raise BadProtobufSchema(f"{name} has more than {_CHARACTERS} characters")
    parser = _Parser(text, name)
    return ParsedFile(parser.file(), parser.lines)


class _Parser:
    def __init__(self, text: str, name: str) -> None:
        self._text, self._name = text, name
        self._tokens = list(self._scan())
        self._at = 0
        self._syntax = "proto2"
        self.lines: dict[str, int] = {}  # of imports and type names, where they occur first

    # ---- tokens ----

    def _scan(self) -> Iterator[tuple[str, str, int]]:
        at = 0
        while at < len(self._text):
            token = _TOKEN.match(self._text, at)
            if token is None:
                raise BadProtobufSchema(
                    f"{self._name}:{self._line(at)}: {self._text[at : at + 20]!r} is not valid syntax"
                )
            if token.lastgroup != "blank":
                yield str(token.lastgroup), token[0], at
            at = token.end()

    def _line(self, at: int) -> int:
        return self._text.count("\n", 0, at) + 1

    def _wrong(self, expected: str) -> NoReturn:
        _, seen, at = self._tokens[self._at] if self._at < len(self._tokens) else ("", "the end", len(self._text))
        raise BadProtobufSchema(f"{self._name}:{self._line(at)}: expected {expected}, saw {seen[:40]}")

    def _peek(self, ahead: int = 0) -> str:
        at = self._at + ahead
        return self._tokens[at][1] if at < len(self._tokens) else ""

    def _take(self, kind: str, expected: str) -> str:
        if self._at >= len(self._tokens) or self._tokens[self._at][0] != kind:
            self._wrong(expected)
        self._at += 1
        return self._tokens[self._at - 1][1]

    def _skip(self, text: str) -> bool:
        if self._peek() == text:
            self._at += 1
            return True
        return False

    def _need(self, text: str) -> None:
        if not self._skip(text):
            self._wrong(f"'{text}'")

    def _word(self) -> str:
        return self._take("word", "a name")

    def _full_name(self) -> str:
        """A name with dots; it can begin with one."""
        parts = ["" if self._skip(".") else self._word()]
        if parts == [""]:
            parts.append(self._word())
        while self._skip("."):
            parts.append(self._word())
        return ".".join(parts)

    def _quoted(self) -> str:
        whole = self._take("text", "a quoted string")[1:-1]
        while self._at < len(self._tokens) and self._tokens[self._at][0] == "text":
            whole += self._take("text", "")[1:-1]
        return whole

    def _whole(self) -> int:
        sign = -1 if self._skip("-") else 1
        text = self._take("number", "an integer")
        try:
            octal = len(text) > 1 and text[0] == "0" and text.isdigit()
            return sign * int(text, 8 if octal else 0)
        except ValueError:
            self._at -= 1
            self._wrong("an integer")

    # ---- the file ----

    def file(self) -> Any:
        file = descriptor_pb2.FileDescriptorProto(name=self._name)
        if self._peek() in ("syntax", "edition"):
            self._syntax_of(file)
        while self._at < len(self._tokens):
            self._top(file)
        return file

    def _syntax_of(self, file: Any) -> None:
        word = self._word()
        self._need("=")
        value = self._quoted()
        self._need(";")
        if word == "edition" and value in _EDITIONS:
            self._syntax, file.edition = "editions", _EDITIONS[value]
        elif word == "syntax" and value in ("proto2", "proto3"):
            self._syntax = value
        else:
            raise BadProtobufSchema(f"{self._name}: {word} {value[:40]!r} is not supported")
        if value != "proto2":
            file.syntax = self._syntax

    def _top(self, file: Any) -> None:
        if self._skip(";"):
            return
        self._visibility()
        word = self._word()
        if word == "import":
            self._import(file)
        elif word == "package":
            file.package = self._full_name()
            self._need(";")
        elif word == "option":
            _set_features(file.options, self._option())
            self._need(";")
        elif word == "message":
            self._message(file.message_type.add(name=self._word()), 1)
        elif word == "enum":
            self._enum(file.enum_type.add(name=self._word()))
        elif word == "extend":
            self._extend()
        elif word == "service":
            self._word()
            self._block()
        else:
            self._at -= 1
            self._wrong("import, package, option, message, enum, extend or service")

    def _import(self, file: Any) -> None:
        how = self._word() if self._peek() in ("public", "weak", "option") else ""
        at = self._at
        name = self._quoted()
        self.lines.setdefault(name, self._line(self._tokens[at][2]))
        self._need(";")
        if how == "option":  # only defines options
            return
        if how == "public":
            file.public_dependency.append(len(file.dependency))
        file.dependency.append(name)

    # ---- messages ----

    def _message(self, message: Any, depth: int) -> None:
        if depth > _DEPTH:
            self._wrong(f"at most {_DEPTH} levels of nested messages")
        self._need("{")
        optionals: list[Any] = []
        while not self._skip("}"):
            self._element(message, depth, optionals)
        for each in optionals:  # after all others: an `optional` field of proto3 is the only member of a oneof
            names = {choice.name for choice in message.oneof_decl} | {other.name for other in message.field}
            name = f"_{each.name}"
            while name in names:
                name = f"X{name}"
            each.oneof_index = len(message.oneof_decl)
            message.oneof_decl.add(name=name)

    def _visibility(self) -> None:
        """Skip the visibility of a type, which does not change the encoding."""
        if self._peek() in ("export", "local") and self._peek(1) in ("message", "enum") and self._peek(3) == "{":
            self._at += 1

    def _element(self, message: Any, depth: int, optionals: list[Any]) -> None:
        if self._skip(";"):
            return
        self._visibility()
        # A keyword begins its statement here: a field of a type with such a name is written with a leading dot.
        statement = self._statement(self._peek(), message, depth)
        if statement is not None:
            self._at += 1
            statement()
            return
        field = self._field(message, depth)
        if field is not None and field.proto3_optional:
            optionals.append(field)

    def _statement(self, word: str, message: Any, depth: int) -> Callable[[], None] | None:
        statements: dict[str, Callable[[], None]] = {
            "message": lambda: self._message(message.nested_type.add(name=self._word()), depth + 1),
            "enum": lambda: self._enum(message.enum_type.add(name=self._word())),
            "oneof": lambda: self._oneof(message, depth),
            "extend": self._extend,
            "option": lambda: self._message_option(message),
            "extensions": self._statement_end,
            "reserved": self._statement_end,
        }
        return statements.get(word)

    def _message_option(self, message: Any) -> None:
        options = self._option()
        self._need(";")
        if options.get("message_set_wire_format") == "true":
            raise BadProtobufSchema(
                f"{self._name}: {message.name} uses message_set_wire_format, which is not supported"
            )
        _set_features(message.options, options)

    def _field(self, message: Any, depth: int, oneof: int | None = None) -> Any:
        label = self._peek() if self._peek() in _LABELS else ""
        if label:
            self._at += 1
        if self._peek() == "map" and self._peek(1) == "<":
            return self._map(message)
        field = message.field.add(label=_LABELS[label or "optional"])
        if oneof is not None:
            field.oneof_index = oneof
        if self._peek() == "group" and self._peek(2) == "=":
            self._group(message, field, depth)
            return field
        if not label and oneof is None and self._syntax == "proto2":
            self._wrong("required, optional or repeated")
        self._typed(field)
        field.name = self._word()
        self._numbered(field)
        self._need(";")
        if label == "optional" and self._syntax == "proto3":
            field.proto3_optional = True
        return field

    def _typed(self, field: Any) -> None:
        at = self._at
        name = self._full_name()
        if name in _SCALARS:
            field.type = _SCALARS[name]
        else:
            field.type_name = name  # a message or an enum: the linker decides
            if name not in self.lines:
                self.lines[name] = self._line(self._tokens[at][2])

    def _numbered(self, field: Any) -> None:
        self._need("=")
        field.number = self._number()
        options = self._bracketed()
        if "packed" in options:
            field.options.packed = options["packed"] == "true"
        _set_features(field.options, options)

    def _number(self) -> int:
        number = self._whole()
        if not 0 < number < 1 << 29:
            self._at -= 1
            self._wrong("a field number from 1 to 536870911")
        return number

    def _group(self, message: Any, field: Any, depth: int) -> None:
        self._at += 1
        name = self._word()
        field.name, field.type, field.type_name = name.lower(), FieldDescriptorProto.TYPE_GROUP, name
        self._numbered(field)
        self._message(message.nested_type.add(name=name), depth + 1)

    def _map(self, message: Any) -> None:
        self._at += 1
        self._need("<")
        entry = descriptor_pb2.DescriptorProto()
        entry.options.map_entry = True
        self._typed(entry.field.add(name="key", number=1, label=1))
        self._need(",")
        self._typed(entry.field.add(name="value", number=2, label=1))
        self._need(">")
        name = self._word()
        entry.name = "".join(part[:1].upper() + part[1:] for part in name.split("_")) + "Entry"
        message.nested_type.append(entry)
        self._numbered(message.field.add(name=name, label=_LABELS["repeated"], type_name=entry.name, type=11))
        self._need(";")

    def _oneof(self, message: Any, depth: int) -> None:
        at = len(message.oneof_decl)
        message.oneof_decl.add(name=self._word())
        self._need("{")
        while not self._skip("}"):
            if self._peek() == "option" and self._peek(2) != "=":
                self._at += 1
                self._option()
                self._need(";")
            elif not self._skip(";"):
                self._field(message, depth, at)

    def _enum(self, enum: Any) -> None:
        self._need("{")
        while not self._skip("}"):
            if self._skip(";"):
                continue
            word = self._word()
            if word == "option" and self._peek() != "=":
                options = self._option()
                if "allow_alias" in options:
                    enum.options.allow_alias = options["allow_alias"] == "true"
                _set_features(enum.options, options)
                self._need(";")
            elif word == "reserved" and self._peek() != "=":
                self._statement_end()
            else:
                self._need("=")
                enum.value.add(name=word, number=self._whole())
                self._bracketed()
                self._need(";")

    def _extend(self) -> None:
        """Skip extensions: their fields are unknown fields."""
        self._full_name()
        self._block()

    # ---- what has no meaning here ----

    def _block(self) -> None:
        self._need("{")
        opened = 1
        while opened:
            if self._at >= len(self._tokens):
                self._wrong("'}'")
            opened += {"{": 1, "}": -1}.get(self._peek(), 0) if self._tokens[self._at][0] == "sign" else 0
            self._at += 1

    def _statement_end(self) -> None:
        while self._peek() not in (";", "}", ""):
            if self._peek() == "{":
                self._block()
            else:
                self._at += 1
        self._need(";")

    # ---- options ----

    def _bracketed(self) -> Options:
        options: Options = {}
        if self._skip("["):
            while True:
                options |= self._option()
                if self._skip("]"):
                    break
                self._need(",")
        return options

    def _option(self) -> Options:
        """One option; custom options are skipped."""
        custom, parts = False, []
        while True:
            if self._skip("("):
                custom = True
                self._full_name()
                self._need(")")
            else:
                parts.append(self._word())
            if not self._skip("."):
                break
        self._need("=")
        value = self._constant()
        return {} if custom else {".".join(parts): value}

    def _constant(self) -> Any:
        if self._peek() == "{":
            begin = self._at
            self._block()
            inner = self._tokens[begin + 1 : self._at - 1]
            return {inner[at][1]: inner[at + 2][1] for at in range(len(inner) - 2) if inner[at + 1][1] == ":"}
        kind = self._tokens[self._at][0] if self._at < len(self._tokens) else ""
        if kind == "text":
            return self._quoted()
        if not self._skip("-"):
            self._skip("+")
        if self._at < len(self._tokens) and self._tokens[self._at][0] == "word":
            return self._full_name()
        return self._take("number", "a constant")


def _set_features(target: Any, options: Options) -> None:
    """Set the features of an edition, which define presence and encoding."""
    features = {key.removeprefix("features."): value for key, value in options.items() if key.startswith("features.")}
    if isinstance(inner := options.get("features"), dict):
        features |= inner
    for name, value in features.items():
        field = target.features.DESCRIPTOR.fields_by_name.get(name)
        known = field.enum_type.values_by_name.get(value) if field is not None and field.enum_type else None
        if known is not None:
            setattr(target.features, name, known.number)
