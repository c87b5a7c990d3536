"""What the demo must have shown: pure functions of the evidence.

The *ledger* was written by the steps themselves, the *steps* and the *kept* rows are what the server says, the rest is
what the two clients met. A check holds if it finds no fault. None of them trusts the server where the ledger knows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from refold.cli.demo.stage import Entry

Json = Any


class Key(NamedTuple):
    """Which step of a Run: its replay key without the Run."""

    ref: str
    input_hash: str
    occurrence: int


def key_of(row: Json) -> Key:
    """The key of a step or a replay row, as the server shows them."""
    return Key(row["step_ref"], row["input_hash"], row["occurrence"])


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """All that was seen."""

    run_id: str
    before: tuple[Entry, ...]
    """The ledger as it stood after the kill, before the resume."""
    after: tuple[Entry, ...]
    """What the resumed Run added to it."""
    kept: frozenset[Key]
    """The replay log as the new server found it."""
    seen: frozenset[str]
    """The step ids whose Pass a client had been shown before the kill."""
    restarted: Json
    """The Run after the restart, before the resume."""
    resumed: Json
    """What the resume answered."""
    finished: Json
    """The Run at its end."""
    steps: tuple[Json, ...]
    """Every attempt of the Run, in the order of dispatch."""
    history: Json
    """What the returning client was served for its cursor."""
    events: tuple[int, int]
    """How many events it folded before the kill and after its return."""
    all_events: int
    """How many events the whole view has."""
    digests: Mapping[str, str]
    """Who folded, and to which digest."""


class StepFact(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one step. `before` and `after` count the executions that the ledger saw begin."""

    step: str
    ref: str
    lane: tuple[int, ...]
    occurrence: int
    kept: bool
    before: int
    after: int
    ended: int
    passed: bool

    @property
    def verdict(self) -> str:
        """`replayed`: it had passed before the kill and was not executed again. Else how often it ran."""
        if self.kept and self.after == 0:
            return "replayed"
        times = self.before + self.after
        return {0: "never ran", 1: "ran", 2: "ran twice"}.get(times, f"ran {times} times")


class Check(msgspec.Struct, frozen=True):
    """One check: what must hold, and every fault that was found."""

    says: str
    faults: tuple[str, ...]

    @property
    def holds(self) -> bool:
        """Whether no fault was found."""
        return not self.faults


def step_facts(evidence: Evidence) -> list[StepFact]:
    """Every step once, in the order of its first dispatch."""
    ids: dict[Key, set[str]] = {}
    first: dict[Key, Json] = {}
    passed = set()
    for step in evidence.steps:
        key = key_of(step)
        first.setdefault(key, step)
        ids.setdefault(key, set()).add(step["step_id"])
        passed |= {key} if step["status"] == "passed" else set()
    labels = _labels(first.values())
    return [
        StepFact(
            step=labels[key],
            ref=key.ref,
            lane=tuple(index for _, index in step["lane"]),
            occurrence=key.occurrence,
            kept=key in evidence.kept,
            before=_count(evidence.before, "start", ids[key]),
            after=_count(evidence.after, "start", ids[key]),
            ended=_count((*evidence.before, *evidence.after), "end", ids[key]),
            passed=key in passed,
        )
        for key, step in first.items()
    ]


def judge(evidence: Evidence) -> list[Check]:
    """Every check with its faults."""
    facts = step_facts(evidence)
    return [Check(says, tuple(faults(evidence, facts))) for says, faults in CHECKS.items()]


def in_flight(entries: Iterable[Entry]) -> list[Entry]:
    """The executions that began and did not end."""
    entries = tuple(entries)
    ended = {entry.step_id for entry in entries if entry.event == "end"}
    return [entry for entry in entries if entry.event == "start" and entry.step_id not in ended]


# -- the checks -------------------------------------------------------------------------------------------------------

Faults = Iterator[str]


def _interrupted(evidence: Evidence, facts: list[StepFact]) -> Faults:
    found = (evidence.restarted["status"], evidence.restarted["result_ref"])
    if found != ("interrupted", {"error": "server restart"}):
        yield f"it was {found[0]}, with {found[1]}"


def _in_flight(evidence: Evidence, facts: list[StepFact]) -> Faults:
    if not in_flight(evidence.before):
        yield "by the ledger, nothing was being executed"


def _shown_is_kept(evidence: Evidence, facts: list[StepFact]) -> Faults:
    kept = {step["step_id"] for step in evidence.steps if key_of(step) in evidence.kept}
    yield from (f"the Pass of {step_id} is gone" for step_id in sorted(evidence.seen - kept))


def _counted(evidence: Evidence, facts: list[StepFact]) -> Faults:
    if evidence.resumed["replayed_steps"] != len(evidence.kept):
        yield f"it said {evidence.resumed['replayed_steps']}, the log had {len(evidence.kept)}"


def _not_again(evidence: Evidence, facts: list[StepFact]) -> Faults:
    for fact in facts:
        if fact.kept and (fact.before, fact.after) != (1, 0):
            yield f"{fact.step} was executed {fact.before} times before and {fact.after} times after"


def _cut_off_only(evidence: Evidence, facts: list[StepFact]) -> Faults:
    for fact in facts:
        if not fact.kept and (fact.before > 1 or fact.after != 1):
            yield f"{fact.step} was executed {fact.before} times before and {fact.after} times after"


def _known(evidence: Evidence, facts: list[StepFact]) -> Faults:
    known = {step["step_id"] for step in evidence.steps}
    for entry in (*evidence.before, *evidence.after):
        if entry.run != evidence.run_id or entry.step_id not in known:
            yield f"{entry.ref} of {entry.run} under {entry.step_id}"


def _one_key(evidence: Evidence, facts: list[StepFact]) -> Faults:
    keys = {step["step_id"]: key_of(step) for step in evidence.steps}
    given: dict[Key, set[str]] = {}
    for entry in (*evidence.before, *evidence.after):
        if entry.key is not None and entry.step_id in keys:
            given.setdefault(keys[entry.step_id], set()).add(entry.key)
    yield from (f"{key.ref} was given {len(several)} keys" for key, several in given.items() if len(several) > 1)
    shared = Counter(key for several in given.values() for key in several)
    yield from (f"{times} steps were given {key}" for key, times in shared.items() if times > 1)


def _no_orphan(evidence: Evidence, facts: list[StepFact]) -> Faults:
    old = {entry.step_id for entry in evidence.before}
    yield from (f"{entry.ref} {entry.event} in {entry.step_id}" for entry in evidence.after if entry.step_id in old)


def _done(evidence: Evidence, facts: list[StepFact]) -> Faults:
    found = (evidence.finished["run_id"], evidence.finished["status"])
    if found != (evidence.run_id, "done"):
        yield f"{found[0]} was {found[1]}"
    yield from (f"{fact.step} did not pass" for fact in facts if not fact.passed or fact.ended == 0)


def _suffix(evidence: Evidence, facts: list[StepFact]) -> Faults:
    served = (evidence.history["mode"], evidence.history.get("noneReason"))
    if served != ("none", "cursorSuffix"):
        yield f"it was served mode {served[0]}, {served[1]}"


def _each_once(evidence: Evidence, facts: list[StepFact]) -> Faults:
    if sum(evidence.events) != evidence.all_events:
        yield f"{evidence.events[0]} and {evidence.events[1]} events were folded, the view has {evidence.all_events}"


def _one_digest(evidence: Evidence, facts: list[StepFact]) -> Faults:
    if len(set(evidence.digests.values())) != 1:
        yield ", ".join(f"{who} {digest}" for who, digest in evidence.digests.items())


CHECKS: Final[Mapping[str, Callable[[Evidence, list[StepFact]], Faults]]] = {
    "the kill hit steps in flight": _in_flight,
    "after the restart the Run is interrupted, with its reason": _interrupted,
    "every Pass that a client had been shown is in the log": _shown_is_kept,
    "the resume says how many steps it will not run": _counted,
    "by the ledger, what had passed before the kill never ran again": _not_again,
    "by the ledger, the rest ran once after it, and only what was cut off twice": _cut_off_only,
    "nothing was executed that the store does not know": _known,
    "each step has one idempotency key, over both tries": _one_key,
    "no program of the killed server worked on": _no_orphan,
    "the Run ended done, under its own id, every step passed": _done,
    "the client came back with its cursor and was served the suffix alone": _suffix,
    "no event was skipped or folded twice": _each_once,
    "returning client, fresh client and server have one fold digest": _one_digest,
}
"""What must hold, and what finds the faults."""


def _count(entries: Iterable[Entry], event: str, step_ids: set[str]) -> int:
    return sum(entry.event == event and entry.step_id in step_ids for entry in entries)


def _labels(firsts: Iterable[Json]) -> dict[Key, str]:
    """Names for people: `count 3.1` is lane 1 of the third fan-out, `take 3` the third `take`; `list` is alone."""
    firsts = list(firsts)
    total = Counter(step["step_ref"] for step in firsts)
    met = Counter[str]()
    labels = {}
    for step in firsts:
        ref, lane = step["step_ref"], step["lane"]
        met[ref] += 1
        place = ".".join(f"{fork + 1}.{index}" for fork, index in lane) if lane else str(met[ref])
        labels[key_of(step)] = f"{ref} {place}" if lane or total[ref] > 1 else ref
    return labels
