"""Secrets reach the agents that are told them, and nothing else: no store, no log, no ctx, no error."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from run_kit import Bench, bench_of, eventually, guard, path, result, seq, step

from refold.engine.agents import Assignment, Report
from refold.engine.secrets import SecretMissing, Secrets
from refold.flowir import Blocked, Failed, Pass, Skip
from refold.records import RunRecord
from refold.store.base import TABLES

# -- where they come from ---------------------------------------------------------------------------------------------


def ref(name: str) -> dict[str, str]:
    return {"$secret": name}


def environ(**secrets: str) -> dict[str, str]:
    return {f"REFOLD_SECRET_{name}": value for name, value in secrets.items()}


def test_a_reference_is_replaced_wherever_it_stands_and_nothing_else_is() -> None:
    secrets = Secrets(environ=environ(KEY="hush"))
    given = {"a": [ref("KEY"), {"b": ref("KEY")}], "KEY": "KEY", "c": ref("KEY") | {"more": 1}, "d": {"$secret": 1}}
    before = json.dumps(given)
    assert secrets.resolve(given) == given | {"a": ["hush", {"b": "hush"}]}
    assert json.dumps(given) == before  # what is stored is the reference


def test_the_environment_comes_before_the_file(tmp_path: Path) -> None:
    file = tmp_path / "secrets.toml"
    file.write_text('A = "filed"\nB = "filed"\nC = 5\n[D]\nE = "deep"\n')
    secrets = Secrets(file, environ(A="set", B=""))
    assert secrets.resolve([ref("A"), ref("B")]) == ["set", "filed"]
    for name in ("C", "D", "E"):
        with pytest.raises(SecretMissing, match=f"secret {name} is not set: give it as REFOLD_SECRET_{name}"):
            secrets.resolve(ref(name))


def test_a_variable_without_the_prefix_is_told_only_to_those_who_could_read_it_anyway() -> None:
    plain = {"PATH": "/bin"}
    with pytest.raises(SecretMissing):
        Secrets(environ=plain).resolve(ref("PATH"))
    assert Secrets(environ=plain, plain_names=True).resolve(ref("PATH")) == "/bin"
    assert Secrets(environ=plain | environ(PATH="mine"), plain_names=True).resolve(ref("PATH")) == "mine"


@pytest.mark.parametrize("text", ["A = ", 'A = "x', b"\xff\xfe"])
def test_a_file_that_cannot_be_read_is_a_secret_that_is_not_there(tmp_path: Path, text: str | bytes) -> None:
    file = tmp_path / "secrets.toml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(SecretMissing, match=r"secrets\.toml cannot be read"):
        Secrets(file, {}).resolve(ref("A"))


def test_a_file_that_comes_later_is_seen(tmp_path: Path) -> None:
    secrets = Secrets(tmp_path / "secrets.toml", {})
    with pytest.raises(SecretMissing):
        secrets.resolve(ref("A"))
    (tmp_path / "secrets.toml").write_text('A = "late"')
    assert secrets.resolve(ref("A")) == "late"


# -- taking them out again --------------------------------------------------------------------------------------------


def told(*values: str) -> Secrets:
    """Secrets that were told already: A, B, C …"""
    names = "ABCDEFGH"
    secrets = Secrets(environ=environ(**dict(zip(names, values, strict=False))))
    for name in names[: len(values)]:
        secrets.resolve(ref(name))
    return secrets


def test_nothing_is_taken_out_before_anything_was_told() -> None:
    secrets, value = Secrets(environ=environ(A="hush")), {"a": "hush"}
    assert secrets.is_silent
    assert secrets.redact(value) is value
    secrets.resolve(ref("A"))
    assert not secrets.is_silent


def test_a_secret_is_taken_out_of_texts_keys_and_all_that_is_inside() -> None:
    given = {"x": ["hush, hush!", ("hush",), 1, None, True], "hush": {"hush": 1.5}, "rush": "hus h"}
    assert told("hush").redact(given) == {
        "x": ["[secret A], [secret A]!", ["[secret A]"], 1, None, True],
        "[secret A]": {"[secret A]": 1.5},
        "rush": "hus h",
    }


@pytest.mark.parametrize("order", [("key", "key-2"), ("key-2", "key")])
def test_of_two_secrets_of_which_one_begins_like_the_other_neither_leaves_a_rest(order: tuple[str, str]) -> None:
    said = told(*order).redact("key-2 key key-2key")
    assert "key" not in said and "-2" not in said


def test_what_stands_for_a_secret_is_not_taken_for_another() -> None:
    assert told("hush", "secret").redact("hush secret") == "[secret A] [secret B]"


@pytest.mark.parametrize("secret", ['a"b', "a\\b", "a\nb", "é", "😀"])
def test_a_secret_is_found_in_json_that_a_text_repeats(secret: str) -> None:
    """Agents are handed their input as JSON, so this is how it looks when they print what they got."""
    secrets = told(secret)
    for text in (json.dumps({"key": secret}), json.dumps({"key": secret}, ensure_ascii=False)):
        assert secrets.redact(f"got: {text}") == 'got: {"key": "[secret A]"}'


@pytest.mark.parametrize(("secret", "number"), [("1234", 1234), ("12.5", 12.5), ("-7", -7), (str(2**80), 2**80)])
def test_a_secret_that_looks_like_a_number_is_found_as_one(secret: str, number: float) -> None:
    assert told(secret).redact([number, number + 1]) == ["[secret A]", number + 1]


texts = st.text(min_size=1, max_size=5)


@given(st.lists(texts, min_size=1, max_size=4), st.recursive(texts, lambda inner: st.lists(inner, max_size=3)), texts)
def test_whatever_the_secrets_are_none_is_left(values: list[str], around: Any, other: str) -> None:
    secrets = told(*values)
    marks = [f"[secret {name}]" for name in "ABCD"]
    clean = json.dumps(secrets.redact([around, *values, other + values[0] + other]), ensure_ascii=False)
    for mark in marks:
        clean = clean.replace(mark, "\0")
    for value in values:
        spelled = json.dumps(value, ensure_ascii=False)[1:-1]
        if len(spelled) > 2 and spelled.isalnum():  # shorter ones are found in JSON's own brackets and commas
            assert spelled not in clean


# -- driven -----------------------------------------------------------------------------------------------------------

CANARY = 'c4nary "in the" mine\n'


@pytest.fixture(params=["memory", "sqlite"])
async def bench(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Bench]:
    secrets = Secrets(environ=environ(KEY=CANARY, WORD="value"))
    async with bench_of(request.param, tmp_path, monkeypatch, secrets=secrets) as bench:
        yield bench


async def assert_nothing_is_kept(bench: Bench, tmp_path: Path) -> None:
    """No row, no frame and no byte of the store holds the canary, in any of its spellings."""
    kept = await bench.store.read(lambda reader: [row for kind in TABLES for row in reader.find(kind)])
    runs = [row for row in kept if isinstance(row, RunRecord)]
    shown = [frame for run in runs for frame in await bench.frames(run)]
    files = b"".join(file.read_bytes() for file in tmp_path.glob("store/*"))
    assert b"c4nary" not in files
    assert "c4nary" not in repr(kept)
    assert "c4nary" not in json.dumps(shown)


OUTCOMES: dict[str, Any] = {
    "passes": lambda text: Report(Pass({"echo": text, text: [text]})),
    "skips": lambda text: Report(Skip(text)),
    "blocks": lambda text: Report(Blocked({"stderr": f"bad key {text}"})),
    "fails": lambda text: Report(Failed(f"no access with {json.dumps(text)}")),
}


@pytest.mark.anyio
@pytest.mark.parametrize("outcome", OUTCOMES)
async def test_an_agent_is_told_the_secret_and_what_it_repeats_is_kept_nowhere(
    bench: Bench, tmp_path: Path, outcome: str
) -> None:
    def act(work: Assignment) -> Report:
        assert work.directive == {"key": CANARY}
        assert "c4nary" not in repr(work.ctx)
        return OUTCOMES[outcome](work.directive["key"])

    bench.crew.acts["a"] = act
    asks = {"kind": "step", "ref": "a", "in": path("$.in"), "out": path("$.a")}
    run = await bench.launch(guard(seq(asks, step("b", "$.a"))), **{"in": {"key": ref("KEY")}})
    after = await bench.ended(run)
    assert after.status == "done"
    assert result(after)["in"] == {"key": ref("KEY")}
    assert "[secret KEY]" in json.dumps(result(after))
    await assert_nothing_is_kept(bench, tmp_path)


@pytest.mark.anyio
async def test_a_retry_announces_no_secret(bench: Bench, tmp_path: Path) -> None:
    fails = lambda work: Report(Failed(CANARY)) if work.attempt == 1 else Report(Pass(1))  # noqa: E731
    bench.crew.acts["a"] = fails
    policy = {"name": "a", "kind": "python", "spec": {"fn": "builtin:echo"}, "retry": {"initial_secs": 0}}
    run = await bench.launch(step("a", ref("KEY")), policy)
    assert (await bench.ended(run)).status == "done"
    assert [each.attempt for each in await bench.attempts(run)] == [1, 2]
    await assert_nothing_is_kept(bench, tmp_path)


@pytest.mark.anyio
async def test_a_bug_that_names_a_secret_is_kept_without_it(bench: Bench, tmp_path: Path, said: list[Any]) -> None:
    def bug(work: Assignment) -> Report:
        raise ValueError(f"cannot use {work.directive}")

    bench.crew.acts["a"] = bug
    after = await bench.ended(await bench.launch(step("a", ref("KEY"))))
    assert after.status == "interrupted"
    assert "cannot use" in result(after)["error"]
    await assert_nothing_is_kept(bench, tmp_path)
    fell = next(entry for entry in said if entry["event"] == "driver_fell")
    assert "cannot use [secret KEY]" in fell["exception"]
    assert "c4nary" not in repr(said)


@pytest.mark.anyio
async def test_a_word_that_refold_uses_itself_may_be_a_secret(bench: Bench) -> None:
    run = await bench.launch(step("a", [ref("WORD"), "text"]))
    assert result(await bench.ended(run)) == {"a": ["[secret WORD]", "text"]}


@pytest.mark.anyio
async def test_a_program_is_told_by_its_spec(bench: Bench, tmp_path: Path) -> None:
    spec = {"program": "sh", "args": ["-c", 'cat; printf %s "$KEY"'], "env": {"KEY": ref("KEY")}}
    run = await bench.launch(step("p", ref("KEY")), {"name": "p", "kind": "subprocess", "spec": spec})
    assert result(await bench.ended(run)) == {"p": '"[secret KEY]"[secret KEY]'}
    await assert_nothing_is_kept(bench, tmp_path)


@pytest.mark.anyio
async def test_a_secret_that_is_not_there_fails_the_step_and_the_flow_may_catch_it(bench: Bench) -> None:
    run = await bench.launch(seq(guard(step("a", {"key": ref("NOBODY")})), step("b", 1)))
    after = await bench.ended(run)
    assert "secret NOBODY is not set: give it as REFOLD_SECRET_NOBODY" in result(after)["err"]
    assert result(after)["b"] == 1
    assert bench.crew.times("a") == 0
    assert [(each.step_ref, each.status) for each in await bench.attempts(run)] == [("a", "failed"), ("b", "passed")]


@pytest.mark.anyio
async def test_what_a_resume_answers_holds_no_secret_either(bench: Bench, tmp_path: Path) -> None:
    gate = bench.crew.hold("b")
    bench.crew.acts["a"] = lambda work: Report(Pass(work.directive))
    run = await bench.launch(seq(step("a", ref("KEY")), step("b", "$.a")))
    await eventually(lambda: bench.crew.times("b"))
    bench = await bench.crash(secrets=Secrets(environ=environ(KEY=CANARY)))
    gate.set()
    assert result(await bench.ended(await bench.resume(run))) == {"a": "[secret KEY]", "b": "[secret KEY]"}
    await assert_nothing_is_kept(bench, tmp_path)


# -- texts that come in pieces ----------------------------------------------------------------------------------------


@given(
    st.lists(st.text("ab", min_size=1, max_size=4), min_size=0, max_size=4, unique=True),
    st.lists(st.text("abc", max_size=5), max_size=12),
)
def test_pieces_are_redacted_as_their_whole_is_and_nothing_of_a_secret_goes_ahead(
    values: list[str], pieces: list[str]
) -> None:
    secrets = told(*values)
    redactor = secrets.redactor()
    said = [redactor.feed(piece) for piece in pieces]
    whole = "".join(pieces)
    assert "".join(said) + redactor.rest() == secrets.redact(whole)
    assert redactor.rest() == ""


def test_a_text_without_secrets_waits_for_nothing() -> None:
    assert Secrets(environ={}).redactor().feed("at once") == "at once"
