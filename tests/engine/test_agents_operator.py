"""Agents of the kind `operator`: offers, who holds them, and what an answer becomes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from engine_kit import Ledger, assignment
from hypothesis import given
from hypothesis import strategies as st

from refold.canonical import encode
from refold.engine.agents import OPERATOR, Assignment, Tools, performer
from refold.engine.agents.operator import Offers, report_of
from refold.engine.agents.output import folded
from refold.errors import Unprocessable
from refold.flowir import AgentDef, Blocked, Failed, Pass, Skip, Verdict
from refold.flowir.lint import lint
from refold.records import Json

LIMIT = 1000
STEPS = ("a", "b", "c")
HOLDERS = ("x", "y")

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


def work(step_id: str = "a", attempt: int = 1, verdict: Verdict | None = None, **spec: Json) -> Assignment:
    agent = AgentDef(name="op", kind=OPERATOR, spec=spec, verdict=verdict)
    return assignment(agent, "do it", step_id=step_id, attempt=attempt)


# -- what an answer becomes -------------------------------------------------------------------------------------------


@given(json_values)
def test_a_text_that_holds_a_container_becomes_it_and_every_scalar_stays_as_it_is(value: Json) -> None:
    text = encode(value)
    is_container = isinstance(value, dict | list)
    assert folded(text) == (value if is_container else text)
    assert folded(value) == value or isinstance(value, str)


@given(json_values, st.sampled_from(["", "json", "JSON", "c++"]), st.sampled_from(["```", "````"]))
def test_a_fence_around_a_container_is_taken_off_and_one_around_anything_else_stays(
    value: Json, language: str, fence: str
) -> None:
    text = f" {fence}{language}\n{encode(value)}\n{fence}\n"
    assert folded(text) == (value if isinstance(value, dict | list) else text)


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[1",
        '{"a":1,"a":2}',
        "[NaN]",
        '["\\ud800"]',
        '{"a":1} and more',
        "```\n{\n```",
        "```json\n[1]\n``` so",
        "```",
    ],
)
def test_what_is_not_json_as_everybody_reads_it_stays_a_string(text: str) -> None:
    assert folded(text) == text


def test_folding_takes_time_in_proportion_to_the_text() -> None:
    assert folded("```" + "\n" * 2_000_000 + "x").endswith("x")


def test_each_word_makes_its_outcome() -> None:
    def outcome(said: Any, value: Json) -> Any:
        return report_of(work(), said, value, None, LIMIT).outcome

    assert outcome("pass", '{"a": 1}') == Pass({"a": 1})
    assert outcome("skip", "[1]") == Skip([1])
    assert outcome("blocked", "no") == Blocked("no")
    assert outcome("fail", "broken") == Failed("broken")
    assert outcome("fail", {"code": 7}) == Failed('{"code":7}')
    assert outcome("fail", None) == Failed("failed by its operator")


def test_parts_stand_beside_the_answer_and_are_folded_as_it_is() -> None:
    report = report_of(work(), "pass", "[1]", {"verdict": "PASS", "data": '{"a":1}'}, LIMIT)
    assert report.outcome == Pass({"out": [1], "parts": {"verdict": "PASS", "data": {"a": 1}}})


def test_the_submit_format_of_the_agent_decides_about_strings() -> None:
    assert report_of(work(submit_format="text"), "pass", "[1]", None, LIMIT).outcome == Pass("[1]")
    assert report_of(work(submit_format="json"), "pass", "5", None, LIMIT).outcome == Pass(5)
    assert report_of(work(submit_format="json"), "pass", {"a": 1}, None, LIMIT).outcome == Pass({"a": 1})
    with pytest.raises(Unprocessable) as refused:
        report_of(work(submit_format="json"), "pass", "five", None, LIMIT)
    assert refused.value.kind == "answer_unusable"


@pytest.mark.parametrize(
    ("channel", "value", "parts"),
    [("body", "PASS", None), ("body", "PASS", {"x": 1}), ("part", 0, {"verdict": "PASS"})],
)
def test_a_verdict_of_the_contract_is_taken(channel: str, value: Json, parts: Json) -> None:
    contract = Verdict(channel, ("PASS", "BLOCKED"))
    assert isinstance(report_of(work(verdict=contract), "pass", value, parts, LIMIT).outcome, Pass)


@pytest.mark.parametrize(("channel", "value", "parts"), [("body", "PAS", None), ("part", "PASS", None)])
def test_a_pass_outside_the_contract_is_refused_and_a_refusal_needs_no_verdict(
    channel: str, value: Json, parts: Json
) -> None:
    asked = work(verdict=Verdict(channel, ("PASS", "BLOCKED")))
    with pytest.raises(Unprocessable) as refused:
        report_of(asked, "pass", value, parts, LIMIT)
    assert (refused.value.kind, refused.value.data) == (
        "contract_violated",
        {"channel": channel, "values": ["PASS", "BLOCKED"]},
    )
    assert isinstance(report_of(asked, "blocked", value, parts, LIMIT).outcome, Blocked)
    assert isinstance(report_of(asked, "skip", value, parts, LIMIT).outcome, Skip)


@pytest.mark.parametrize("said", ["pass", "skip", "blocked"])
def test_an_answer_that_is_too_large_is_refused(said: Any) -> None:
    assert report_of(work(), said, "x" * (LIMIT - 2), None, LIMIT).outcome.value == "x" * (LIMIT - 2)
    with pytest.raises(Unprocessable, match="larger than 1000 bytes"):
        report_of(work(), said, "x" * (LIMIT - 1), None, LIMIT)


def test_without_a_server_an_operator_step_fails_and_says_why() -> None:
    agent = AgentDef(name="op", kind=OPERATOR, spec={})
    report = asyncio.run(performer(agent, Tools(reaper=Ledger())).perform(assignment(agent, None)))
    assert isinstance(report.outcome, Failed) and "operators cannot attach" in report.outcome.text


@pytest.mark.parametrize(
    ("spec", "faults"),
    [
        ({}, []),
        ({"instructions": "carefully", "submit_format": "json", "operator_ref": "main", "mine": [1]}, []),
        ({"instructions": 1}, ["$.agents[0].spec.instructions"]),
        ({"submit_format": "yaml"}, ["$.agents[0].spec.submit_format"]),
    ],
)
def test_a_blueprint_names_operators_and_what_is_the_authors_own_stays(spec: Json, faults: list[str]) -> None:
    step = {"kind": "step", "ref": "op", "in": {"op": "lit", "value": 1}, "out": {"op": "path", "at": "$.x"}}
    blueprint = {"id": "b", "flow": step, "agents": [{"name": "op", "kind": OPERATOR, "spec": spec}]}
    found = lint(blueprint).faults
    assert [fault["path"] for fault in found] == faults


# -- offers -----------------------------------------------------------------------------------------------------------


async def _settled() -> None:
    """Lets everything that can go on go on."""
    for _ in range(3):
        await asyncio.sleep(0)


async def _walk(moves: list[tuple[str, str, str]]) -> None:
    """Makes the moves on real offers and on a model: step -> holder, and who answered."""
    offers, tasks = Offers(), {}
    held: dict[str, str | None] = {}
    answered: dict[str, str] = {}
    for move, step, holder in moves:
        if move == "begin" and step not in tasks:
            tasks[step] = asyncio.create_task(offers.perform(work(step)))
            held[step] = None
        elif move == "take":
            took = offers.take(holder)
            free = [name for name, by in held.items() if by is None]
            assert (None if took is None else took.work.step_id) == (free[0] if free else None), "the oldest free one"
            if took is not None:
                held[took.work.step_id] = holder
        elif move == "give back":
            offers.give_back(holder, keep={step})
            held |= {name: None for name, by in held.items() if by == holder and name != step}
        elif move == "submit":
            offer = offers.find(step, 1)
            assert (offer is not None) == (step in held), "open until it is answered"
            if offer is not None:
                offer.settle(report_of(offer.work, "pass", holder, None, LIMIT), holder)
                assert offers.find(step, 1) is None, "answered once"
                answered[step] = holder
                del held[step]
        elif move == "cancel" and step in held:
            tasks[step].cancel()
            del held[step]
        await _settled()
        assert {offer.work.step_id for by in HOLDERS for offer in offers.held(by)} == {k for k, v in held.items() if v}
        assert len(offers.all()) == len(held)
    for step, task in tasks.items():
        if step in answered:
            assert (await task).outcome == Pass(answered[step])
        else:
            task.cancel()
    await asyncio.gather(*tasks.values(), return_exceptions=True)
    assert offers.all() == []


moves = st.tuples(
    st.sampled_from(["begin", "take", "take", "give back", "submit", "cancel"]),
    st.sampled_from(STEPS),
    st.sampled_from(HOLDERS),
)


@given(st.lists(moves, max_size=25))
def test_an_offer_has_one_holder_and_one_answer_whatever_happens(walk: list[tuple[str, str, str]]) -> None:
    asyncio.run(_walk(walk))


@pytest.mark.anyio
async def test_news_wake_those_who_wait_for_a_new_offer_or_one_that_is_given_back() -> None:
    offers = Offers()
    news = offers.news
    performing = asyncio.create_task(offers.perform(work()))
    await news.wait()
    offer = offers.take("x")
    assert offer is not None
    news = offers.news
    offers.give_back("x", keep={"a"})
    assert not news.is_set(), "nothing was given back"
    offers.give_back("x")
    assert news.is_set() and offers.take("y") is offer
    performing.cancel()
    await asyncio.gather(performing, return_exceptions=True)
    assert offer.ended.is_set(), "whoever works on it can learn that it is over"
