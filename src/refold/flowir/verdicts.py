"""Verdict contracts: an agent declares which words its verdict may be, and a pass with another word is none.

`verdict: {channel, values}` of an agent. Channel `body`: the answer itself is the word. Channel `part`: the answer is
`{"out", "parts"}`, and `parts.verdict` is the word. A refusal or a skip needs no verdict.

The typo that this is for: a gate says `BLOKED`, no branch tests for that, and the flow goes on as if it had passed. So
the contract is enforced on answers (`violation`), and conditions that test a verdict for a word that it can never be
are pointed out (`warnings`). Source of the rule: mse 2.4 and 3.3.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from refold.canonical import encode
from refold.flowir import path
from refold.flowir.ir import AgentDef, PathKeys, Verdict
from refold.flowir.reading import At, Fields, Reading, array, choice, hint_for, members, need, text

Json = Any

BODY, PART = "body", "part"
_VERDICT: Final[Fields] = {"channel": need(choice(BODY, PART)), "values": need(array(text))}
_SUFFIX: Final[Mapping[str, PathKeys]] = {BODY: (), PART: ("parts", "verdict")}
"""Where a verdict lies beneath the `out` of the step that gave it."""
_TARGET: Final[Mapping[str, str]] = {"step": "out", "assign": "at", "fanout": "out", "approve": "out", "call": "out"}
"""Which member of a node says where it writes."""


def verdict(reading: Reading, value: Json, at: At) -> Verdict | None:
    """Reads the contract of an agent."""
    before = len(reading.faults)
    got = members(reading, value, at, _VERDICT)
    if got is not None and got.get("values") == ():
        reading.fault(at.member("values"), "bad_value", "a contract without values can never be kept")
    return Verdict(**got) if got is not None and len(reading.faults) == before else None


def violation(contract: Verdict | None, answer: Json) -> str | None:
    """What is wrong with a passed answer under a contract; None if nothing is."""
    if contract is None:
        return None
    parts = answer.get("parts") if type(answer) is dict and answer.keys() <= {"out", "parts"} else None
    said = {BODY: answer if parts is None else answer.get("out"), PART: _member(parts, "verdict")}[contract.channel]
    if type(said) is str and said in contract.values:
        return None
    came = "none" if said is None else encode(said)[:200]
    return f"verdict contract: expected one of {', '.join(contract.values)} in the {contract.channel}, got {came}"


def _member(value: Json, key: str) -> Json:
    return value.get(key) if type(value) is dict else None


# -- conditions -------------------------------------------------------------------------------------------------------


def warnings(flow: Json, agents: Iterable[AgentDef]) -> list[Json]:
    """What the conditions of a flow get wrong about verdicts, as faults are written.

    `flow` is the JSON of a flow that parses. Only a path is compared with literals; what is computed is not followed.
    """
    contracts = {agent.name: agent.verdict for agent in agents if agent.verdict is not None}
    reading, at = Reading(), At().member("flow")
    given = _given(flow, contracts)
    for node, here in _nodes(flow, at):
        if node["kind"] in ("branch", "loop"):
            for read, words, place in _tests(node["cond"], here.member("cond")):
                _judge(reading, given, read, words, place)
    return reading.faults


def _given(flow: Json, contracts: Mapping[str, Verdict]) -> dict[PathKeys, Verdict]:
    """Which contract the value at a path is under: none, where anybody without it writes there too."""
    given: dict[PathKeys, Verdict | None] = {}
    for node, _ in _nodes(flow, At()):
        target = node.get(_TARGET.get(node["kind"], ""), {})
        if target.get("op") == "path":
            keys, contract = path.parse(target["at"]), contracts.get(node.get("ref", ""))
            given[keys] = contract if given.setdefault(keys, contract) == contract else None
    return {keys: contract for keys, contract in given.items() if contract is not None}


def _nodes(node: Json, at: At) -> Iterator[tuple[Json, At]]:
    yield node, at
    for index, child in enumerate(node.get("children", ())):
        yield from _nodes(child, at.member("children").item(index))
    for key in ("then", "else", "body", "catch"):
        if key in node:
            yield from _nodes(node[key], at.member(key))


def _tests(expr: Json, at: At) -> Iterator[tuple[PathKeys, list[Json], At]]:
    """Yields each comparison of a path with literals in a condition: what is read, with what, and where."""
    match expr:
        case {"op": "eq" | "ne", "lhs": {"op": "path", "at": read}, "rhs": {"op": "lit", "value": word}}:
            yield path.parse(read), [word], at.member("rhs")
        case {"op": "eq" | "ne", "lhs": {"op": "lit", "value": word}, "rhs": {"op": "path", "at": read}}:
            yield path.parse(read), [word], at.member("lhs")
        case {"op": "in", "needle": {"op": "path", "at": read}, "haystack": {"op": "lit", "value": list(words)}}:
            yield path.parse(read), words, at.member("haystack")
        case {"op": "and" | "or", "args": list(args)}:
            for index, arg in enumerate(args):
                yield from _tests(arg, at.member("args").item(index))
        case {"op": "not", "arg": arg}:
            yield from _tests(arg, at.member("arg"))


def _judge(reading: Reading, given: Mapping[PathKeys, Verdict], read: PathKeys, words: list[Json], at: At) -> None:
    for out, contract in given.items():
        if read == out + _SUFFIX[contract.channel]:
            for word in words:
                if word not in contract.values:
                    message = f"{path.show(read)} is never {encode(word)[:80]}: that is no value of its contract"
                    hint = hint_for(str(word), contract.values)
                    reading.fault(at, "verdict_value_not_in_contract", message, hint)
        elif any(read == out + suffix for suffix in _SUFFIX.values()):
            message = f"{path.show(read)} holds no verdict: the contract puts it into the {contract.channel}"
            hint = f"test {path.show(out + _SUFFIX[contract.channel])}"
            reading.fault(at, "verdict_channel_mismatch", message, hint)
