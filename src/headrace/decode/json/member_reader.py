"""Read the members of JSON objects to columns: for texts that match no template.

`members.py` finds keys and values; here each key is looked up in the payload schema, level by level, and all values of
one node of the schema are read at once by `scalar_text.py`, which vouches for each. Texts with a value of another type,
a new field that the contract does not ignore, or anything else that is not certain, are left to the next path.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.decode.base import DecodeLimits
from headrace.decode.byte_scan import Mask, Numbers, TextBytes, bools, cut
from headrace.decode.json.exact import ABSENT, inner_default
from headrace.decode.json.members import Keys, Members, MemberScan, keys_at
from headrace.decode.json.scalar_text import JSON_SCALARS, leaf, list_of_leaves, quoted_texts
from headrace.decode.payload import PayloadNode, PayloadSchema, payload_schema_of
from headrace.decode.scalars import UnfitValue
from headrace.reasons import Reason

Path = tuple[str, ...]
IsNewField = Callable[[PayloadNode, str, str], bool]  # of an object, a key and the object's path; raises UnfitValue

_BLOCK = 1 << 22  # bytes of the texts that are read at once: what is derived from them stays in the CPU cache
_SHARE = 16  # one text in so many must be read
_PAUSE = 63  # maximum number of batches passed over after one with fewer
_NODES, _ENTRIES, _BITS = 1 << 16, 1 << 20, 20  # limits of the tables; nodes are sorted as uint16
_UNREAD, _UNKNOWN, _ROOT = 0, 1, 2  # nodes: a value that no column reads, a key that the schema does not have

# Types of values by their first byte; those that have members are told apart by `Members.opens`.
_TEXT, _BRACES, _BRACKETS, _NULL, _WORD, _OBJECT, _OBJECTS, _TYPES = range(8)
_TYPE = np.full(256, _WORD, np.uint8)
_TYPE[list(b'"{[n')] = _TEXT, _BRACES, _BRACKETS, _NULL
_NO_COLUMNS = payload_schema_of(pa.schema([]))
_NULL_WORD = int.from_bytes(b"null", "little")


@dataclass(frozen=True, slots=True)
class ReadTexts:
    """The texts that were read, by position, and their columns."""

    index: Numbers
    columns: list[pa.Array]
    new_fields: Counter[str]  # ignored new fields, dotted, with the number of texts that have them


class MemberReader:
    """A payload schema, compiled to tables of its nodes and keys."""

    def __init__(self, layout: PayloadSchema, limits: DecodeLimits, is_new_field: IsNewField, ignore: bool) -> None:
        self.layout = layout
        self.is_new_field = is_new_field
        self.ignore = ignore
        self._limits = limits
        self._pause = self._idle = 0
        self.nodes = [PayloadNode("skip"), PayloadNode("skip")]
        self.where = ["", ""]  # the path of each node as a prefix of names
        self.ids: dict[Path, int] = {}
        self.paths: list[Path] = [(), ()]
        self._add(layout.root, (), "")
        names = dict.fromkeys(key for node in self.nodes if node.kind == "object" for key in node.children)
        self.names = _Names(list(names))
        objects = [id_ for id_, node in enumerate(self.nodes) if node.kind in ("object", "map")]
        self.row_of = np.zeros(len(self.nodes), np.int64)  # of `below`; the first row is for values that are not read
        self.row_of[objects] = np.arange(1, len(objects) + 1)
        self._is_small = len(self.nodes) <= _NODES and (len(objects) + 1) * (len(names) + 1) <= _ENTRIES
        if not self.is_usable:
            return  # the tables could take gigabytes
        self.below = np.full((len(objects) + 1, len(names) + 1), _UNREAD, np.int64)  # the node of each key of an object
        self.within = np.full((2, len(self.nodes)), _UNREAD, np.int64)  # the node of an object, of an array's objects
        self.fits = np.zeros((len(self.nodes), _TYPES), bool)
        for path, id_ in self.ids.items():
            self._compile(path, id_)
        self.fits[:_ROOT, :] = True
        self.unread = np.array([node.kind in ("skip", "json") for node in self.nodes])
        self.defaults = {id_: inner_default(self.nodes[id_], ".".join(path)) for path, id_ in self.ids.items()}

    def _add(self, node: PayloadNode, path: Path, where: str) -> None:
        self.ids[path] = len(self.nodes)
        self.nodes.append(node)
        self.paths.append(path)
        self.where.append(where)
        for key, child in node.children.items() if node.kind in ("object", "list", "map") else ():
            self._add(child, (*path, key), where if key == "*" and node.kind != "object" else f"{where}{key}.")

    def _compile(self, path: Path, id_: int) -> None:
        node = self.nodes[id_]
        self.fits[id_, _NULL] = True
        if node.kind == "object":
            self.below[self.row_of[id_]] = _UNKNOWN
            for key in node.children:
                self.below[self.row_of[id_], self.names.ids[key]] = self.ids[(*path, key)]
        elif node.kind == "map":
            self.below[self.row_of[id_]] = self.ids[(*path, "*")]
        if node.kind in ("object", "map"):
            self.within[0, id_] = id_
            self.fits[id_, [_BRACES, _OBJECT]] = True
        elif node.kind == "list":
            # Of other lists, for example those of lists, only null is read.
            element = self.ids[(*path, "*")]
            self.fits[id_, _BRACKETS] = self.nodes[element].kind in ("leaf", "object", "map")
            if self.nodes[element].kind in ("object", "map"):
                self.within[1, id_] = element
                self.fits[id_, _OBJECTS] = True
        elif node.kind == "leaf":
            self.fits[id_, _TEXT if quoted_texts(node) else _WORD] = True
        else:
            self.fits[id_] = True

    @property
    def is_usable(self) -> bool:
        """Whether the tables are small, the keys can be told apart, and no two columns read the same value."""
        return self._is_small and self.names.are_distinct and not self.layout.overlaps

    def read(self, texts: pa.StringArray) -> ReadTexts:
        """Read the texts of which everything is certain; if these are few, more and more batches are passed over."""
        parts, indices, new_fields = [], [np.zeros(0, np.int64)], Counter[str]()
        for begin, end in _blocks(TextBytes(texts).starts) if not self._idle else ():
            columns, places, names = self._read_block(texts.slice(begin, end - begin))
            parts.append(columns)
            indices.append(places + begin)
            new_fields.update(names)
        empty = [pa.nulls(0, item.type) for item in self.layout.schema]
        columns = [pa.concat_arrays(each) for each in zip(empty, *parts, strict=True)]
        index = np.concatenate(indices)
        if self._idle:
            self._idle -= 1
        else:
            self._pause = 0 if len(index) * _SHARE >= len(texts) else min(_PAUSE, 2 * self._pause + 1)
            self._idle = self._pause
        return ReadTexts(index, columns, new_fields)

    def _read_block(self, texts: pa.StringArray) -> tuple[list[pa.Array], Numbers, Counter[str]]:
        index = np.arange(len(texts))
        while len(index):
            members = MemberScan(TextBytes(texts), self._limits).run()
            if isinstance(members, Members):
                columns, good, names = _Block(self, members, len(texts)).read()
                return columns, index[good], names
            index, texts = index[~members], texts.filter(pa.array(~members))
        return [pa.nulls(0, item.type) for item in self.layout.schema], index, Counter()


class JsonChecker:
    """Checks values that no column reads into."""

    def __init__(self, limits: DecodeLimits) -> None:
        self._limits = limits

    def valid(self, texts: pa.StringArray, depth: int) -> Mask | None:
        """Which texts, from so many objects deep, are certainly JSON; NULL is. None: all of them."""
        distinct = texts.dictionary_encode()
        # Each as the only member of an object; a text such as `1,"a":2` would be two. A space before a value is not
        # part of it, though it may be part of the text.
        objects = pc.binary_join_element_wise('{"":', distinct.dictionary, "}", "")
        limits = replace(self._limits, depth=self._limits.depth - depth)
        reader = MemberReader(_NO_COLUMNS, limits, _is_second_member, ignore=True)
        valid = np.zeros(len(objects), bool)
        valid[reader.read(objects).index] = True
        valid &= ~bools(pc.starts_with(distinct.dictionary, " "))
        if valid.all():
            return None
        return bools(pc.fill_null(pa.array(valid).take(distinct.indices), True))


def _is_second_member(_node: PayloadNode, key: str, _where: str) -> bool:
    if key:
        raise UnfitValue(Reason.MALFORMED, "the text is more than one value")
    return False


def _blocks(starts: Any) -> Iterator[tuple[int, int]]:
    begin, count = 0, len(starts) - 1
    while begin < count:
        end = max(begin + 1, int(np.searchsorted(starts, starts[begin] + _BLOCK, side="right")) - 1)
        yield begin, end
        begin = end


class _Names:
    """The keys of a schema, with numbers from 1."""

    def __init__(self, names: list[str]) -> None:
        raw = [name.encode() for name in names]
        self.ids = {name: at for at, name in enumerate(names, 1)}
        self._texts = pa.array(["", *names], pa.string())
        ends = np.cumsum([8, *map(len, raw)])
        content = np.frombuffer(b"\0" * 8 + b"".join(raw) + b"\0" * 8, np.uint8)
        self._keys = keys_at(content, ends[:-1], ends[1:])
        self._bits = next((bits for bits in range(4, _BITS) if self._places_differ(bits)), _BITS)
        self.are_distinct = self._places_differ(self._bits)
        self._table = np.zeros(1 << self._bits, np.int64)
        self._table[self._places(self._keys)] = np.arange(1, len(names) + 1)

    def _places_differ(self, bits: int) -> bool:
        places = self._keys.hashes >> np.uint64(64 - bits)
        return len(np.unique(places)) == len(places)

    def _places(self, keys: Keys) -> Numbers:
        return (keys.hashes >> np.uint64(64 - self._bits)).view(np.int64)

    def find(self, members: Members) -> Numbers:
        """The number of each member's key, 0 for unknown keys."""
        if len(self._texts) == 1:
            return np.zeros(len(members.rows), np.int64)
        keys = members.keys
        numbers = self._table.take(self._places(keys))
        known = self._keys
        same = known.first.take(numbers - 1) == keys.first
        same &= known.last.take(numbers - 1) == keys.last
        same &= known.sizes.take(numbers - 1) == keys.sizes
        numbers *= same
        long = np.flatnonzero((keys.sizes > 16) & (numbers > 0))
        if len(long):
            texts = cut(members.content, members.key_starts[long], members.key_ends[long], pa.string())
            numbers[long] *= bools(pc.equal(texts, self._texts.take(pa.array(numbers[long]))))
        return numbers


@dataclass(frozen=True, slots=True)
class _Slots:
    """The objects that are the parents of some values."""

    rows: Numbers  # the text of each object
    there: Mask | None = None  # which objects are not null; None: all


class _Block:
    """The members of some texts, and the columns that are built from them."""

    def __init__(self, reader: MemberReader, members: Members, count: int) -> None:
        self._reader = reader
        self._members = members
        self._count = count
        self._doubt = np.zeros(count, bool)
        self._read: dict[tuple[pa.DataType, str], tuple[Any, Numbers]] = {}  # numbers and booleans by type
        comma = int(members.key_ends[0]) + 2 if len(members.rows) else 0
        self._comma = ", " if len(members.rows) and members.starts[0] > comma else ","

    def read(self) -> tuple[list[pa.Array], Mask, Counter[str]]:
        """The columns of the texts that are certain, which texts these are, and their new fields."""
        self._find_nodes()
        self._check_types()
        names = self._new_names()
        self._check_unread()
        self._group()
        everything = _Slots(np.arange(self._count))
        columns = [
            self._field(self._reader.ids[column.path], everything, self._members.rows)
            for column in self._reader.layout.columns
        ]
        good = ~self._doubt
        if not good.all():
            columns = [column.filter(pa.array(good)) for column in columns]
        return columns, good, self._count_names(names, good)

    def _refuse(self, members: Any) -> None:
        """Doubt the texts of some members."""
        self._doubt[self._members.rows[members]] = True

    def _find_nodes(self) -> None:
        """Find the node of each member's value: the parents of a level are members of the level before."""
        members, reader = self._members, self._reader
        keys = reader.names.find(members)
        width, below = reader.below.shape[1], reader.below.ravel()
        self._nodes = np.empty(len(keys), np.int64)
        self._object_nodes = np.empty(len(keys), np.int64)  # by the first member of an object
        self._parents = np.empty(len(keys), np.int64)  # likewise
        for depth, level in enumerate(members.levels):
            if depth == 0:
                self._object_nodes[level.objects] = _ROOT
            else:
                element = members.elements[level.objects].view(np.int8)
                self._object_nodes[level.objects] = reader.within[element, self._nodes[level.parents]]
            self._parents[level.objects] = level.parents
            which = level.members
            rows = reader.row_of.take(self._object_nodes.take(members.objects[which]))
            self._nodes[which] = below.take(rows * width + keys[which])

    def _check_types(self) -> None:
        """Doubt values of another type than their column's; they are not read."""
        members = self._members
        types = _TYPE.take(members.content.take(members.starts))
        sizes = members.ends - members.starts
        doubt = np.zeros(len(types), bool)
        if (braces := np.flatnonzero((types == _BRACES) & ~members.opens)).size:
            doubt[braces] = sizes[braces] != 2  # `{}` has no members
        if (null := np.flatnonzero(types == _NULL)).size:
            words = np.ndarray(len(members.content) - 3, "<u4", members.content, strides=(1,))
            doubt[null] = (words[members.starts[null]] != _NULL_WORD) | (sizes[null] != 4)
        opens = np.flatnonzero(members.opens)
        types[opens] += _OBJECT - _BRACES
        fits = self._reader.fits.ravel().take(self._nodes * _TYPES + types)
        doubt |= ~fits
        if doubt.any():
            self._refuse(doubt)
            self._nodes[doubt] = _UNREAD
        self._types = types

    def _check_unread(self) -> None:
        """Check the values that no column reads, or that are kept as text."""
        members = self._members
        unread = self._reader.unread.take(self._nodes)
        unread &= ~members.opens
        unread &= (self._types != _NULL) & (self._types != _BRACES)
        if (which := np.flatnonzero(unread)).size:
            texts = cut(members.content, members.starts[which], members.ends[which], pa.string())
            valid = bools(pc.match_substring_regex(texts, JSON_SCALARS))
            self._refuse(which[~valid])

    def _new_names(self) -> list[tuple[str, Numbers]]:
        """New fields that are ignored, with the members that are there; others are doubted."""
        members, reader = self._members, self._reader
        which = np.flatnonzero(self._nodes == _UNKNOWN)
        if not reader.ignore and not reader.layout.exploded:
            self._refuse(which)
            return []
        if not len(which):
            return []
        keys = cut(members.content, members.key_starts[which], members.key_ends[which], pa.string()).dictionary_encode()
        texts = keys.dictionary.to_pylist()
        pairs = self._object_nodes[members.objects[which]] * len(texts) + keys.indices.to_numpy()
        order = np.argsort(pairs, kind="stable")
        bounds = np.flatnonzero(np.diff(pairs[order], prepend=-1, append=-1))
        names: list[tuple[str, Numbers]] = []
        lower: dict[tuple[int, str], Numbers] = {}
        for begin, end in pairwise(bounds.tolist()):
            node, at = divmod(int(pairs[order[begin]]), len(texts))
            here = which[order[begin:end]]
            twin = lower.setdefault((node, texts[at].lower()), here)
            try:
                is_new = reader.is_new_field(reader.nodes[node], texts[at], reader.where[node])
            except UnfitValue:
                self._refuse(here)
                continue
            if twin is not here or (is_new and not reader.ignore):
                self._refuse(here)
                self._refuse(twin if twin is not here else here)
            elif is_new:
                names.append((reader.where[node] + texts[at], here))
        return names

    def _count_names(self, names: list[tuple[str, Numbers]], good: Mask) -> Counter[str]:
        rows: dict[str, Numbers] = {}
        for name, members in names:
            here = self._members.rows[members]
            rows[name] = np.concatenate([rows[name], here]) if name in rows else here
        counts = {name: len(np.unique(each[good[each]])) for name, each in rows.items()}
        return Counter({name: count for name, count in counts.items() if count})

    def _group(self) -> None:
        """Sort the members by node, and number the objects of each node."""
        members = self._members
        self._order = np.argsort(self._nodes.astype(np.uint16), kind="stable")
        counts = np.bincount(self._nodes, minlength=len(self._reader.nodes))
        self._bounds = np.concatenate([[0], np.cumsum(counts)])
        ranks = np.arange(len(self._nodes)) - np.repeat(self._bounds[:-1], counts)
        self._ranks = np.empty_like(ranks)
        self._ranks[self._order] = ranks
        self._numbers = np.zeros(len(ranks), np.int64)  # by the first member of an object
        self._elements: dict[int, Numbers] = {}
        for level in members.levels[1:]:
            self._numbers[level.objects] = self._ranks[level.parents]
            in_array = level.objects[members.elements[level.objects]]
            nodes = self._object_nodes[in_array]
            for node in np.unique(nodes[nodes > _UNKNOWN]).tolist():
                objects = in_array[nodes == node]
                objects = objects[self._nodes[self._parents[objects]] > _UNKNOWN]
                self._elements[node] = objects
                self._numbers[objects] = np.arange(len(objects))

    def _values_of(self, id_: int) -> Numbers:
        """The members whose values are of a node."""
        return self._order[self._bounds[id_] : self._bounds[id_ + 1]]

    def _field(self, id_: int, parents: _Slots, slots: Numbers | None = None) -> pa.Array:
        """The values of a node, one per parent object."""
        node, which, count = self._reader.nodes[id_], self._values_of(id_), len(parents.rows)
        values = self._build(id_)
        at = self._numbers[self._members.objects[which]] if slots is None else slots[which]
        default = self._reader.defaults[id_]
        if len(which) != count:
            values = spread_values(values, at, count)
            if default is not ABSENT:
                absent = np.ones(count, bool) if parents.there is None else parents.there.copy()
                absent[at] = False
                values = pc.if_else(pa.array(absent), pa.array([default], values.type)[0], values)
        if not node.nullable and values.null_count:
            missing = bools(values.is_null())
            self._doubt[parents.rows[missing if parents.there is None else missing & parents.there]] = True
        return values

    def _build(self, id_: int) -> pa.Array:
        """The values of a node, in the order of the texts."""
        node, which = self._reader.nodes[id_], self._values_of(id_)
        nulls = self._types[which] == _NULL
        there = None if not nulls.any() else ~nulls
        if node.kind == "object":
            return self._structs(id_, _Slots(self._members.rows[which], there))
        if node.kind == "map":
            return self._maps(id_, _Slots(self._members.rows[which], there))
        if node.kind == "list" and self._holds_objects(id_):
            return self._lists(id_, which, there)
        some = which if there is None else which[there]
        if not len(some):
            return pa.nulls(len(which), node.type)
        values = self._scalars(node, some)
        if there is None:
            return values
        return spread_values(values, np.flatnonzero(there), len(which))

    def _scalars(self, node: PayloadNode, which: Numbers) -> pa.Array:
        """Leaves, lists of leaves, or JSON text."""
        members = self._members
        starts, ends = members.starts[which], members.ends[which]
        if node.kind == "json":
            return cut(members.content, starts, ends, pa.string()).cast(node.type)
        if node.kind == "list":
            texts = cut(members.content, starts + 1, ends - 1, pa.string())
            good = members.content.take(ends - 1) == ord("]")
            values = list_of_leaves(node, texts, self._comma, good)
            self._refuse(which[~good])
            return values
        if _is_fixed(node):
            return self._fixed(node, which)
        if quoted_texts(node):
            wrong = (ends - starts < 2) | (members.content.take(ends - 1) != ord('"'))
            if wrong.any():
                self._refuse(which[wrong])
            starts, ends = starts + 1, np.maximum(starts + 1, ends - 1)
        values, certain = leaf(node, cut(members.content, starts, ends, pa.string()))
        if certain is not None:
            self._refuse(which[~certain])
        return values

    def _fixed(self, node: PayloadNode, which: Numbers) -> pa.Array:
        """Numbers and booleans: those of all nodes of one type are read at once, in the order of the texts."""
        key = (node.type, node.unit)
        if key not in self._read:
            self._read[key] = self._read_fixed(node)
        values, places = self._read[key]
        if pa.types.is_boolean(node.type):
            return pa.array(values.take(places.take(which)))
        return pa.Array.from_buffers(node.type, len(which), [None, pa.py_buffer(values.take(places.take(which)))])

    def _read_fixed(self, node: PayloadNode) -> tuple[Any, Numbers]:
        """The values of a type, without those that are not certain, and the place of each member among them."""
        members, nodes = self._members, self._reader.nodes
        alike = [each.kind == "leaf" and (each.type, each.unit) == (node.type, node.unit) for each in nodes]
        which = np.flatnonzero(np.array(alike).take(self._nodes) & (self._types != _NULL))
        texts = cut(members.content, members.starts[which], members.ends[which], pa.string())
        values, certain = leaf(node, texts)
        if certain is not None:
            self._refuse(which[~certain])
        places = np.zeros(len(self._nodes), np.int64)
        places[which] = np.arange(len(which))
        if pa.types.is_boolean(node.type):
            return bools(values), places
        return np.frombuffer(values.buffers()[1], f"u{node.type.bit_width // 8}")[values.offset :], places

    def _holds_objects(self, id_: int) -> bool:
        return bool(self._reader.within[1, id_])

    def _structs(self, id_: int, slots: _Slots) -> pa.Array:
        node, path = self._reader.nodes[id_], self._reader.paths[id_]
        children = [self._field(self._reader.ids[(*path, key)], slots) for key in node.children]
        mask = None if slots.there is None else pa.array(~slots.there)
        return pa.StructArray.from_arrays(children, fields=list(node.type), mask=mask)

    def _lists(self, id_: int, which: Numbers, there: Mask | None) -> pa.Array:
        """Lists of objects."""
        node, element = self._reader.nodes[id_], int(self._reader.within[1, id_])
        objects = self._elements.get(element, np.zeros(0, np.int64))
        empty = self._types[which] == _BRACKETS
        self._refuse(which[empty & (self._members.ends[which] - self._members.starts[which] != 2)])
        offsets = _offsets(self._ranks[self._parents[objects]], len(which))
        slots = _Slots(self._members.rows[objects])
        inner = self._structs if self._reader.nodes[element].kind == "object" else self._maps
        mask = None if there is None else pa.array(~there)
        return pa.ListArray.from_arrays(offsets, inner(element, slots), type=node.type, mask=mask)

    def _maps(self, id_: int, slots: _Slots) -> pa.Array:
        members, node = self._members, self._reader.nodes[id_]
        element = self._reader.ids[(*self._reader.paths[id_], "*")]
        which = self._values_of(element)
        keys = cut(members.content, members.key_starts[which], members.key_ends[which], pa.string())
        items = self._build(element)
        if items.null_count and not self._reader.nodes[element].nullable:
            self._refuse(which[bools(items.is_null())])
        offsets = _offsets(self._numbers[members.objects[which]], len(slots.rows))
        mask = None if slots.there is None else pa.array(~slots.there)
        return pa.MapArray.from_arrays(offsets, keys, items, type=node.type, mask=mask)


def _is_fixed(node: PayloadNode) -> bool:
    kind = node.type
    return node.kind == "leaf" and bool(
        pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
    )


def spread_values(values: pa.Array, at: Numbers, count: int) -> pa.Array:
    """Values at ascending positions among `count`, NULL elsewhere."""
    there = np.zeros(count, bool)
    there[at] = True
    kind = values.type
    if values.null_count or values.offset or not (pa.types.is_primitive(kind) or pa.types.is_string(kind)):
        return values.take(pa.array(np.cumsum(there) - 1, mask=~there))
    if pa.types.is_boolean(kind):
        spread = np.zeros(count, bool)
        spread[at] = values.to_numpy(zero_copy_only=False)
        return pa.array(spread, mask=~there)
    valid = pa.py_buffer(np.packbits(there, bitorder="little"))
    if pa.types.is_string(kind):  # the same bytes: an absent text starts where the next one does
        _, offsets, content = values.buffers()
        places = np.zeros(count + 1, np.int32)
        places[1:][at] = np.diff(np.frombuffer(offsets, np.int32)[: len(values) + 1])
        return pa.Array.from_buffers(kind, count, [valid, pa.py_buffer(np.cumsum(places, dtype=np.int32)), content])
    width = f"u{kind.bit_width // 8}"
    filled = np.zeros(count, width)
    filled[at] = np.frombuffer(values.buffers()[1], width)[: len(values)]
    return pa.Array.from_buffers(kind, count, [valid, pa.py_buffer(filled)])


def _offsets(owners: Numbers, count: int) -> pa.Int32Array:
    counts = np.bincount(owners, minlength=count)
    return pa.array(np.concatenate([[0], np.cumsum(counts)]).astype(np.int32))
