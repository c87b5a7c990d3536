"""Verdict contracts: which answers keep them, and which conditions get them wrong."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import json_values, lit, path, seq, step

from refold.errors import BlueprintInvalid
from refold.flowir import Verdict, parse_blueprint
from refold.flowir.build import and_, assign, branch, eq, in_, loop, ne, not_, or_
from refold.flowir.lint import lint
from refold.flowir.verdicts import violation

Json = Any

BODY, PART = Verdict("body", ("PASS", "BLOCKED")), Verdict("part", ("PASS", "BLOCKED"))


def staged(verdict: Json, out: Json = "report") -> Json:
    return {"out": out, "parts": {"verdict": verdict}}


@pytest.mark.parametrize(
    ("contract", "answer"),
    [
        (None, "anything"),
        (BODY, "PASS"),
        (BODY, staged("no verdict", out="BLOCKED")),
        (PART, staged("PASS")),
        (PART, {"out": 1, "parts": {"verdict": "BLOCKED", "notes": "n"}}),
    ],
)
def test_an_answer_that_keeps_its_contract(contract: Verdict | None, answer: Json) -> None:
    assert violation(contract, answer) is None


@pytest.mark.parametrize(
    ("contract", "answer", "text"),
    [
        (BODY, "BLOKED", 'expected one of PASS, BLOCKED in the body, got "BLOKED"'),
        (BODY, "PASS\n", r'got "PASS\n"'),
        (BODY, ["PASS"], 'got ["PASS"]'),
        (BODY, None, "got none"),
        (BODY, {"out": "PASS"}, 'got {"out":"PASS"}'),
        (BODY, staged("PASS"), 'got "report"'),
        (PART, "PASS", "expected one of PASS, BLOCKED in the part, got none"),
        (PART, staged("OK"), 'got "OK"'),
        (PART, {"out": "PASS", "parts": {}}, "got none"),
        (PART, {"out": "PASS", "parts": "PASS"}, "got none"),
        (PART, {"parts": {"verdict": "PASS"}, "more": 1}, "got none"),
    ],
)
def test_an_answer_that_breaks_its_contract(contract: Verdict, answer: Json, text: str) -> None:
    said = violation(contract, answer)
    assert said is not None
    assert said.startswith("verdict contract: ")
    assert text in said


@given(st.sampled_from([BODY, PART]), json_values)
def test_every_answer_either_says_one_of_the_words_or_breaks_the_contract(contract: Verdict, answer: Json) -> None:
    said = (answer, answer.get("out"), (answer.get("parts") or {})) if isinstance(answer, dict) else (answer,)
    if violation(contract, answer) is None:
        assert any(word in part for word in contract.values for part in said if isinstance(part, dict | str))


# -- lint -------------------------------------------------------------------------------------------------------------


def flow_of(cond: Json, **agents: Verdict) -> Json:
    verdicts = {name: {"channel": each.channel, "values": list(each.values)} for name, each in agents.items()}
    echo = {"kind": "python", "spec": {"fn": "builtin:echo"}}
    return {
        "id": "b",
        "flow": seq(*(step(name, 1, f"$.{name}") for name in verdicts), branch(cond, seq())),
        "agents": [{"name": name, "verdict": verdict, **echo} for name, verdict in verdicts.items()],
    }


def warnings_of(value: Json) -> list[tuple[str, str]]:
    found = lint(value)
    assert found.faults == ()
    return [(each["path"].removeprefix("$.flow."), each["kind"]) for each in found.warnings]


@pytest.mark.parametrize(
    "cond",
    [
        eq("$.gate", "PASS"),
        ne("BLOCKED", "$.gate"),
        in_("$.gate", ["PASS", "BLOCKED"]),
        and_(eq("$.gate", "PASS"), or_(not_(eq("$.gate", "BLOCKED")))),
        eq("$.other", "OOPS"),
        eq("$.gate", "$.other"),
    ],
)
def test_conditions_that_know_the_contract(cond: Json) -> None:
    assert warnings_of(flow_of(cond, gate=BODY)) == []


NOT_THERE, ELSEWHERE = "verdict_value_not_in_contract", "verdict_channel_mismatch"


@pytest.mark.parametrize(
    ("contract", "cond", "where", "kind"),
    [
        (BODY, eq("$.gate", "PASSED"), "rhs", NOT_THERE),
        (BODY, ne("PASSED", "$.gate"), "lhs", NOT_THERE),
        (BODY, eq("$.gate", 1), "rhs", NOT_THERE),
        (BODY, in_("$.gate", ["PASS", "SKIP"]), "haystack", NOT_THERE),
        (BODY, not_(and_(True, or_(eq("$.gate", "X")))), "arg.args[1].args[0].rhs", NOT_THERE),
        (BODY, eq("$.gate.parts.verdict", "PASS"), "rhs", ELSEWHERE),
        (PART, eq("$.gate", "PASS"), "rhs", ELSEWHERE),
        (PART, eq('$.gate.parts["verdict"]', "X"), "rhs", NOT_THERE),
    ],
)
def test_conditions_that_get_the_contract_wrong(contract: Verdict, cond: Json, where: str, kind: str) -> None:
    assert warnings_of(flow_of(cond, gate=contract)) == [(f"children[1].cond.{where}", kind)]


def test_a_warning_says_what_is_wrong_and_what_to_write() -> None:
    (warning,) = lint(flow_of(eq("$.gate", "PAS"), gate=BODY)).warnings
    assert warning["message"] == '$.gate is never "PAS": that is no value of its contract'
    assert warning["hint"] == "did you mean 'PASS'?"


def test_conditions_of_loops_inside_of_everything_are_looked_at() -> None:
    value = flow_of(True, gate=BODY)
    inner = loop("$.n", eq("$.gate", "X"), seq(), 1)
    value["flow"]["children"].append({"kind": "try", "body": seq(), "catch": seq(inner)})
    assert warnings_of(value) == [("children[2].catch.children[0].cond.rhs", NOT_THERE)]


def test_a_place_that_others_write_to_is_under_no_contract() -> None:
    value = flow_of(eq("$.gate", "X"), gate=BODY)
    value["flow"]["children"].append(assign("$.gate", "X"))
    assert warnings_of(value) == []
    two = flow_of(eq("$.gate", "X"), gate=BODY, second=PART)
    two["flow"]["children"][1]["out"] = path("$.gate")
    assert warnings_of(two) == []


def test_faults_come_without_warnings() -> None:
    found = lint(flow_of({"op": "nope"}, gate=BODY))
    assert [fault["kind"] for fault in found.faults] == ["unknown_op"]
    assert (found.warnings, found.blueprint) == ((), None)


@pytest.mark.parametrize(
    ("verdict", "at", "kind"),
    [
        ({"channel": "body", "values": []}, ".values", "bad_value"),
        ({"channel": "mail", "values": ["A"]}, ".channel", "bad_value"),
        ({"channel": "body"}, "", "missing_key"),
        ({"channel": "body", "values": ["A", 5]}, ".values[1]", "wrong_type"),
        ({"channel": "body", "values": ["A"], "x": 1}, ".x", "unknown_key"),
        ("PASS", "", "wrong_type"),
    ],
)
def test_faults_of_a_contract(verdict: Json, at: str, kind: str) -> None:
    value = flow_of(lit(True), gate=BODY)
    value["agents"][0]["verdict"] = verdict
    with pytest.raises(BlueprintInvalid) as caught:
        parse_blueprint(value)
    faults = [(fault["path"], fault["kind"]) for fault in caught.value.data["faults"]]
    assert faults == [(f"$.agents[0].verdict{at}", kind)]
