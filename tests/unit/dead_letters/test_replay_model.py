"""The protocol of a replay under every misfortune: real plans, outcomes and marks, in a store that fails at each call.

No lease is taken, so several replays may be at it at once; each letter must still land once.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.delta import log_writer as tail_module
from headrace.delta import snapshot
from headrace.delta.log_writer import LogWriter
from headrace.delta.staged_file import StagedFile
from headrace.errors import Fenced, StorageUnreachable
from headrace.faults import Abandoned
from headrace.ledger import ledger as ledger_module
from headrace.ledger.replays import Replays, writer
from headrace.plan.accounting import Counts
from headrace.write.intent import Intent, IntentKind, ReplayInput, TableIntent
from model.driver import THEN, schema, tried
from model.world import Actor, Violation, World, commits, load

NAME = writer("p")
LETTERS = range(8)
TABLES = "AB"
# One row a spec: where each letter goes; "-" is still dead.
SPECS = ["A" * 4 + "B" * 3 + "-", "AB" * 3 + "--", "-" * 5 + "BBB", "BBAA-AAA"]
FATES = st.sampled_from(["go", "go", "die", "die-after", "lose", "fail", "late"])
ACTION = st.one_of(
    st.tuples(st.just("run"), st.integers(0, 2), st.integers(0, 40), FATES),
    st.tuples(st.just("run"), st.integers(0, 2), st.integers(0, 40), FATES),
    st.tuples(st.just("spec"), st.integers(0, 3)),
    st.just(("land",)),
)


class Replayer:
    """A replay as small as can be: finish the open plan, judge what is not settled, decide, commit, book."""

    def __init__(self, world: World) -> None:
        self.world, self.spec = world, SPECS[world.spec]
        self.state, self.lake = world.store("state"), world.store("lake")
        self.token = f"token-{world.number()}"

    def live(self) -> None:
        """One replay."""
        self.ledger = tried(lambda: Replays.open(self.state, NAME))
        begun = tried(self.ledger.open_batch)
        if begun is not None:
            self.finish(begun)
        intent = self.plan()
        if intent is not None:
            tried(lambda: self.ledger.begin(intent))
            self.finish(intent)

    def plan(self) -> Intent | None:
        """Stage rows and outcomes of the letters that are not settled."""
        settled = {nth for nth, outcome in outcomes(self.world) if outcome == "replayed"}
        mine = [nth for nth in LETTERS if nth not in settled]
        if not mine:
            return None
        number = self.ledger.batch + 1
        went = {name: [nth for nth in mine if self.spec[nth] == name] for name in TABLES}
        tables = tuple(self.stage(name, ids) for name, ids in went.items() if ids)
        told = [[nth, "still_dead" if self.spec[nth] == "-" else "replayed"] for nth in mine]
        taken = ReplayInput(0, (), (), "", (self.put("replays", self.state.child("replays"), told),))
        counts = Counts(len(mine))
        intent = Intent(NAME, number, (), tables, counts, THEN, self.token, self.spec, "d", "0", replay=taken)
        return replace(intent, kind=IntentKind.REPLAY)

    def stage(self, name: str, ids: list[int]) -> TableIntent:
        """One file for a table that may not exist yet."""
        state = tried(lambda: LogWriter.open(self.lake.child(name), [f"headrace:{NAME}"])).state
        table_id = state.table_id if state else f"{name}-{self.world.number()}"
        file = self.put(name, self.lake.child(name), ids)
        return TableIntent(name, table_id, state is None, schema("id"), (), {}, (file,))

    def put(self, name: str, store, content: list) -> StagedFile:
        """A staged file."""
        data, path = json.dumps(content).encode(), f"f-{self.world.number()}"
        tried(lambda: store.put(path, data))
        return StagedFile(name, path, (), len(data), len(content), json.dumps({"numRecords": len(content)}))

    def finish(self, intent: Intent) -> None:
        """Every table, then the outcomes."""
        for table in intent.tables:
            self.commit(table, intent)
        tried(lambda: self.ledger.record(intent, (), THEN))

    def commit(self, table: TableIntent, intent: Intent) -> None:
        """Files and mark; skipped where the mark is."""
        tail = tried(lambda: LogWriter.open(self.lake.child(table.path), [f"headrace:{NAME}"]))

        def attempt() -> None:
            made = None
            if table.create:
                made = tail.create(table.schema, (), {}, table.table_id, table.files, intent.txns(), {})
            if made is None:
                tail.append(table.files, intent.txns(), {}, schema=table.schema)

        tried(attempt)


def rows(world: World, store) -> Iterator:
    """The content of a table's files, without resting."""
    for _, data in commits(store):
        for line in data.splitlines():
            if "add" in (action := json.loads(line)):
                yield from json.loads(store.raw(action["add"]["path"]) or b"[]")


def outcomes(world: World) -> list[tuple[int, str]]:
    return [(nth, outcome) for nth, outcome in rows(world, world.store("state").child("replays"))]


def check(world: World) -> None:
    """Rows are those whose letters have the outcome, each once; marks only grow."""
    there = Counter(nth for name in TABLES for nth in rows(world, world.store("lake").child(name)))
    told = Counter(nth for nth, outcome in outcomes(world) if outcome == "replayed")
    if there != told or any(count > 1 for count in there.values()):
        raise Violation(f"rows {sorted(there.elements())}, outcomes {sorted(told.elements())}")
    for store in (*(world.store("lake").child(name) for name in TABLES), world.store("state").child("replays")):
        marks = [commit.txns[f"headrace:{NAME}"] for commit, _ in commits(store) if commit.txns]
        if marks != sorted(set(marks)):
            raise Violation(f"the marks of {store.root} do not grow: {marks}")


def play(history: list[tuple]) -> World:
    """The whole history; then one alone finishes, all that slept wake up, and again one alone."""
    world, slots, everyone = World(), {}, []

    def start() -> Actor:
        everyone.append(Actor(world, Replayer(world).live))
        return everyone[-1]

    def alone() -> None:
        actor = start()
        actor.finish()
        if isinstance(actor.ended, BaseException):
            raise actor.ended
        check(world)

    try:
        for name, *how in history:
            if name == "spec":
                world.spec = how[0]
            elif name == "land":
                world.land()
            else:
                slot, calls, fate = how
                if slot not in slots or slots[slot].ended:
                    slots[slot] = start()
                slots[slot].go(calls, fate)
        alone()
        world.land()
        for actor in [actor for actor in everyone if not actor.ended]:
            actor.finish()
        world.land()
        alone()
        for actor in everyone:
            if isinstance(actor.ended, BaseException) and not isinstance(
                actor.ended, Fenced | Abandoned | StorageUnreachable
            ):
                raise actor.ended
    finally:
        for actor in everyone:
            actor.go(0, "die")
    return world


@pytest.fixture(autouse=True)
def _in_memory(monkeypatch):
    monkeypatch.setattr(snapshot, "load_state", load)
    monkeypatch.setattr(ledger_module, "_FORGET_EVERY", 1)


SWEEP = [
    [("run", 0, call, fate), ("spec", 1), ("run", 1, 200, "go"), ("spec", 2), ("land",), ("run", 2, 200, "go")]
    for call in range(45)
    for fate in ("go", "die", "die-after", "lose", "late")
]
SLEEPERS = [
    [("run", 0, first, "go"), ("spec", 3), ("run", 1, second, "go")] for first in range(0, 36, 2) for second in range(9)
]


def test_a_misfortune_at_each_single_call():
    for history in SWEEP:
        play(history)


def test_two_sleepers_at_each_pair_of_calls():
    for history in SLEEPERS:
        play(history)


@settings(max_examples=100, database=None, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True)
@given(st.lists(ACTION, min_size=6, max_size=25))
def test_whatever_happens_each_dead_letter_lands_once(history):
    play(history)


def test_all_that_can_be_fixed_is():
    world = play([("run", 0, 200, "go"), ("spec", 2)])
    assert {nth for nth, outcome in outcomes(world) if outcome == "replayed"} == set(LETTERS)


def no_marks(patch):
    """Broken: a table that has the plan gets it again."""
    patch.setattr(tail_module, "_has_batch", lambda *_: False)


def nothing_is_settled(patch):
    """Broken: a letter is taken again, whatever became of it."""
    patch.setattr(Replayer, "plan", lambda self, plan=Replayer.plan: _forgetful(self, plan))


def _forgetful(self, plan):
    world, self.world = self.world, World()
    self.world.number = world.number
    try:
        return plan(self)
    finally:
        self.world = world


def an_open_plan_is_left(patch):
    """Broken: the next plan does not wait for the one before it."""

    def live(self):
        self.ledger = tried(lambda: Replays.open(self.state, NAME))
        if self.ledger.open_batch() is not None:
            self.state.delete([f"replay_intents/{self.ledger.batch + 1:012}"])
        intent = self.plan()
        if intent is not None:
            self.ledger.begin(intent)
            self.finish(intent)

    patch.setattr(Replayer, "live", live)


@pytest.mark.parametrize("broken", [no_marks, nothing_is_settled, an_open_plan_is_left], ids=lambda each: each.__name__)
def test_a_broken_protocol_is_caught(broken, monkeypatch):
    broken(monkeypatch)

    def all_of_them():
        for history in SWEEP + SLEEPERS:
            play(history)

    with pytest.raises((Violation, Fenced)):
        all_of_them()
