"""Templates and runners: which programs agents are, how placeholders are filled in, what a printed document means."""

from __future__ import annotations

import string
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import json_values, seq

from refold.errors import BlueprintInvalid, FlowError
from refold.flowir import Blocked, Pass, parse_blueprint
from refold.flowir.templates import (
    PLACEHOLDERS,
    Output,
    Template,
    answer,
    check_templates,
    fill,
    placeholders,
    point,
    template_of,
)

Json = Any

SAY = {"name": "say", "argv": ["printf", "{prompt}"]}
BY_SAY = {"backend": "subprocess", "template": "say"}


def worker(**more: Json) -> Json:
    return {"name": "worker", "kind": "subprocess", "spec": {}, **more}


def blueprint(agent: Json, **more: Json) -> Json:
    return {"id": "b", "flow": seq(), "agents": [agent], **more}


def spec_of(agent: Json, **more: Json) -> Json:
    return parse_blueprint(blueprint(agent, **more)).agents[0].spec


def faults_of(value: Json) -> list[tuple[str, str]]:
    with pytest.raises(BlueprintInvalid) as caught:
        parse_blueprint(value)
    return [(fault["path"], fault["kind"]) for fault in caught.value.data["faults"]]


# -- who runs an agent ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("agent", "more"),
    [
        (worker(runner=BY_SAY), {}),
        (worker(runner_ref="r"), {"runners": [{"name": "r", "runner": BY_SAY}]}),
        (worker(), {"runners": [{"name": "r", "runner": BY_SAY}], "default_runner": "r"}),
        (worker(runner=BY_SAY, runner_ref="nobody"), {}),
    ],
)
def test_the_runner_of_an_agent_is_its_own_then_the_named_one_then_the_default(agent: Json, more: Json) -> None:
    assert spec_of(agent, subprocesses=[SAY], **more) == {"template": SAY}


def test_a_template_that_the_blueprint_does_not_declare_is_the_servers_to_have() -> None:
    assert spec_of(worker(runner=BY_SAY)) == {"template": "say"}


def test_a_program_is_not_replaced_by_the_default_runner() -> None:
    spec = {"program": "true"}
    runners = [{"name": "r", "runner": BY_SAY}]
    assert spec_of(worker(spec=spec), runners=runners, default_runner="r", subprocesses=[SAY]) == spec


def test_what_the_profile_says_is_overridden_by_the_runner() -> None:
    profile = {"system_prompt": "be brief", "model": "small", "tools": ["Read", "Grep"], "mood": "good"}
    assert spec_of(worker(runner=BY_SAY, profile=profile)) == {
        "template": "say",
        "system": "be brief",
        "model": "small",
        "tools_csv": "Read,Grep",
    }
    runner = BY_SAY | {"overrides": {"model": "large", "tools": ["Edit"], "cwd": "/src"}}
    assert spec_of(worker(runner=runner, profile=profile)) == {
        "template": "say",
        "system": "be brief",
        "model": "large",
        "tools_csv": "Edit",
        "cwd": "/src",
    }


def test_runners_with_other_backends_are_kept_and_change_nothing() -> None:
    runner = {"backend": "ws_operator", "variant": "x", "tools": []}
    echo = {"name": "echo", "kind": "python", "spec": {"fn": "builtin:echo"}, "runner": runner}
    agent = parse_blueprint(blueprint(echo)).agents[0]
    assert (agent.runner, agent.spec) == (runner, {"fn": "builtin:echo"})


@pytest.mark.parametrize(
    ("value", "faults"),
    [
        (blueprint(worker()), [("$.agents[0].spec", "missing_key")]),
        (blueprint(worker(runner={"backend": "ws_operator"})), [("$.agents[0].spec", "missing_key")]),
        (blueprint(worker(runner=BY_SAY, spec={"program": "x"})), [("$.agents[0].spec", "members_disagree")]),
        (blueprint(worker(runner={"backend": "subprocess"})), [("$.agents[0].runner", "missing_key")]),
        (blueprint(worker(runner=BY_SAY | {"x": 1})), [("$.agents[0].runner.x", "unknown_key")]),
        (blueprint(worker(runner=5)), [("$.agents[0].runner", "wrong_type")]),
        (blueprint(worker(runner=BY_SAY, profile=5)), [("$.agents[0].profile", "wrong_type")]),
        (
            blueprint(worker(runner=BY_SAY | {"overrides": {"cwd": "{home}"}})),
            [("$.agents[0].runner.overrides.cwd", "unknown_placeholder")],
        ),
        (
            blueprint(worker(runner_ref="s")),
            [("$.agents[0].runner_ref", "unresolved_runner_ref"), ("$.agents[0].spec", "missing_key")],
        ),
        (
            blueprint(worker(spec={"program": "x"}), default_runner="s"),
            [("$.default_runner", "unresolved_runner_ref")],
        ),
        (
            blueprint(worker(runner=BY_SAY), subprocesses=[SAY, SAY]),
            [("$.subprocesses[1].name", "duplicate_name")],
        ),
        (blueprint(worker(runner=BY_SAY, profile={"model": 5})), [("$.agents[0].profile.model", "wrong_type")]),
        (
            blueprint(worker(spec={"template": SAY})),
            [
                ("$.agents[0].spec.template", "unknown_key"),
            ],
        ),
    ],
)
def test_faults_of_runners(value: Json, faults: list[tuple[str, str]]) -> None:
    assert faults_of(value) == faults


@pytest.mark.parametrize(
    ("change", "path", "kind"),
    [
        ({"argv": []}, ".argv", "bad_value"),
        ({"argv": "sh"}, ".argv", "wrong_type"),
        ({"argv": [""]}, ".argv[0]", "bad_value"),
        ({"argv": ["sh", 5]}, ".argv[1]", "wrong_type"),
        ({"argv": ["sh", "{promt}"]}, ".argv[1]", "unknown_placeholder"),
        ({"stdin": "{prompt} {x}"}, ".stdin", "unknown_placeholder"),
        ({"env": {"A": "{x}"}}, ".env.A", "unknown_placeholder"),
        ({"cwd": "{x}"}, ".cwd", "unknown_placeholder"),
        ({"cwd": ""}, ".cwd", "bad_value"),
        ({"shell": True}, ".shell", "unknown_key"),
        ({"stream_mode": "sse_events"}, ".stream_mode", "option_unavailable"),
        ({"output": {}}, ".output", "missing_key"),
        ({"output": {"format": "xml"}}, ".output.format", "bad_value"),
        ({"output": {"format": "json", "result_ptr": "result"}}, ".output.result_ptr", "bad_pointer"),
        ({"output": {"format": "json", "ok_from": "ok"}}, ".output.ok_from", "bad_pointer"),
        ({"output": {"format": "json", "stats": {"usage": "/u"}}}, ".output.stats.usage", "unknown_key"),
    ],
)
def test_faults_of_a_template(change: Json, path: str, kind: str) -> None:
    assert faults_of(blueprint(worker(runner=BY_SAY), subprocesses=[SAY | change])) == [
        ("$.subprocesses[0]" + path, kind)
    ]


def test_an_unknown_placeholder_comes_with_a_suggestion() -> None:
    with pytest.raises(BlueprintInvalid) as caught:
        parse_blueprint(blueprint(worker(runner=BY_SAY), subprocesses=[SAY | {"stdin": "{promt}"}]))
    assert caught.value.data["faults"][0]["hint"] == "did you mean 'prompt'?"


def test_what_is_no_lower_case_word_in_braces_is_text() -> None:
    argv = ["printf", '{"ok": true}', "{1}", "{ prompt }", "${HOME}", "{Prompt}", "{}"]
    assert spec_of(worker(runner=BY_SAY), subprocesses=[{"name": "say", "argv": argv}])["template"]["argv"] == argv


def test_a_template_with_all_its_parts_has_no_faults() -> None:
    output = {"format": "json", "result_ptr": "/a", "ok_from": "/b", "stats": {"usage_ptr": "", "model_ptr": "/m"}}
    whole = SAY | {
        "stdin": "{prompt}",
        "env": {"A": "", "B": {"$secret": "B"}},
        "cwd": "{work_dir}/x",
        "output": output,
    }
    assert spec_of(worker(runner=BY_SAY), subprocesses=[whole]) == {"template": whole}


def test_the_templates_of_a_configuration_are_read_like_those_of_a_blueprint() -> None:
    assert check_templates({"say": {"argv": ["true"]}}) == [{"argv": ["true"], "name": "say"}]
    with pytest.raises(BlueprintInvalid) as caught:
        check_templates({"a": {"argv": []}, "b": 5, "c.d": {"argv": ["x"], "stdin": "{y}"}})
    assert [(fault["path"], fault["kind"]) for fault in caught.value.data["faults"]] == [
        ("$.subprocesses.a.argv", "bad_value"),
        ("$.subprocesses.b", "wrong_type"),
        ('$.subprocesses["c.d"].stdin', "unknown_placeholder"),
    ]


# -- filling in -------------------------------------------------------------------------------------------------------

plain = st.text(st.sampled_from(string.ascii_letters + string.digits + ' {}"$'), max_size=12)
texts = st.lists(st.one_of(plain, st.sampled_from([f"{{{word}}}" for word in PLACEHOLDERS])), max_size=5).map("".join)
templates = st.builds(
    Template,
    name=st.just("t"),
    argv=st.lists(texts, min_size=1, max_size=3).map(tuple),
    stdin=st.none() | texts,
    env=st.dictionaries(st.sampled_from("AB"), texts),
    cwd=st.none() | texts,
)
values = st.fixed_dictionaries(dict.fromkeys(PLACEHOLDERS, texts))


def by_hand(text: str, values: dict[str, str]) -> str:
    """Substitution as one would do it with a finger on the text: left to right, never looking at what was put in."""
    done = ""
    while text:
        word = next((word for word in PLACEHOLDERS if text.startswith(f"{{{word}}}")), None)
        done, text = (done + text[0], text[1:]) if word is None else (done + values[word], text[len(word) + 2 :])
    return done


@given(templates, values)
def test_filling_in_is_one_pass_of_substitution(template: Template, values: dict[str, str]) -> None:
    filled = fill(template, values)
    assert filled.argv == tuple(by_hand(part, values) for part in template.argv)
    assert filled.env == {key: by_hand(part, values) for key, part in template.env.items()}
    assert filled.stdin == (None if template.stdin is None else by_hand(template.stdin, values))
    assert filled.cwd == (None if template.cwd is None else by_hand(template.cwd, values))


@given(templates, values, st.sets(st.sampled_from(sorted(PLACEHOLDERS))))
def test_only_what_a_template_uses_must_have_a_value(
    template: Template, values: dict[str, str], missing: set[str]
) -> None:
    known = {word: value for word, value in values.items() if word not in missing}
    lacking = placeholders(template) & missing
    if not lacking:
        assert fill(template, known) == fill(template, values)
        return
    with pytest.raises(FlowError) as caught:
        fill(template, known)
    assert all(f"{{{word}}} is {PLACEHOLDERS[word]}" in caught.value.message for word in lacking)


def test_a_body_becomes_a_template() -> None:
    assert template_of({"name": "a", "argv": ["b"]}) == Template(name="a", argv=("b",))
    body = {"name": "a", "argv": ["b"], "stdin": "c", "env": {"D": "e"}, "cwd": "f", "output": {"format": "json"}}
    output = Output(result_ptr="", ok_from="exit_code")
    assert template_of(body) == Template(name="a", argv=("b",), stdin="c", env={"D": "e"}, cwd="f", output=output)
    body["output"] |= {"result_ptr": "/a", "ok_from": "/b", "stats": {"usage_ptr": "/c"}}
    assert template_of(body).output == Output("/a", "/b")


# -- the answer -------------------------------------------------------------------------------------------------------


def test_what_a_document_stands_for() -> None:
    document = {"result": [1], "ok": True, "no": False}
    assert answer(Output(), document) == Pass(document)
    assert answer(Output("/result/0"), document) == Pass(1)
    assert answer(Output("/result", "/ok"), document) == Pass([1])
    assert answer(Output("/result", "/no"), document) == Blocked([1])


@pytest.mark.parametrize(
    ("output", "text"),
    [
        (Output("/gone"), "nothing at /gone"),
        (Output("/result", "/gone"), "nothing at /gone"),
        (Output("/result", "/result"), "array at /result, expected a boolean"),
        (Output("/result/1"), "nothing at /result/1"),
        (Output("/result/-"), "nothing at /result/-"),
        (Output("/result/00"), "nothing at /result/00"),
        (Output("/ok/x"), "nothing at /ok/x"),
    ],
)
def test_a_pointer_that_leads_nowhere_is_an_error(output: Output, text: str) -> None:
    with pytest.raises(FlowError, match=text):
        answer(output, {"result": [1], "ok": True})


@pytest.mark.parametrize(("pointer", "found"), [("/~01", 1), ("/a~1b", 2), ("/", 3), ("/~0", 4)])
def test_a_pointer_escapes_what_it_is_made_of(pointer: str, found: Json) -> None:
    assert point({"~1": 1, "a/b": 2, "": 3, "~": 4}, pointer) == found


def pointers(value: Json, at: str = "") -> list[tuple[str, Json]]:
    """Every part of a document with the pointer to it, by RFC 6901."""
    parts = enumerate(value) if isinstance(value, list) else value.items() if isinstance(value, dict) else ()
    below = [(f"{at}/{str(key).replace('~', '~0').replace('/', '~1')}", part) for key, part in parts]
    return [(at, value), *(found for where, part in below for found in pointers(part, where))]


@given(json_values)
def test_a_pointer_leads_to_every_part_of_a_document(document: Json) -> None:
    for pointer, part in pointers(document):
        assert point(document, pointer) is part
