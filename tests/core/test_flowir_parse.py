"""Parsing: every fault at once, each with its JSON path; what is rejected, what is accepted and kept."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import assign, branch, expr, fanout, flow_json, guard, json_values, lit, loop, path, seq, step, unary

from refold.errors import BlueprintInvalid
from refold.flowir import (
    AgentDef,
    Apply,
    Approve,
    Assign,
    Branch,
    Choice,
    Extern,
    Fanout,
    Lit,
    Loop,
    Path,
    Retry,
    Seq,
    Step,
    Try,
    Verdict,
    Wait,
    parse_blueprint,
    parse_flow,
)
from refold.flowir.ir import steps_of

A, ECHO = Path(("a",)), {"name": "echo", "kind": "python", "spec": {"fn": "builtin:echo"}}


def blueprint(flow=None, agents=(ECHO,), **more):
    return {"id": "b", "flow": flow or seq(), "agents": list(agents), **more}


def approve(**more):
    return {"kind": "approve", "action": lit(1), "out": path("$.a"), **more}


def faults_of(parse, value):
    with pytest.raises(BlueprintInvalid) as caught:
        parse(value)
    faults = caught.value.data["faults"]
    assert faults and all(fault.keys() == {"path", "kind", "message", "hint"} for fault in faults)
    assert caught.value.message.count(faults[0]["path"]) >= 1
    return [(fault["path"], fault["kind"]) for fault in faults]


# -- flows ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("json", "node"),
    [
        (step("echo", "$.a", "$.a"), Step("echo", A, A)),
        (seq(), Seq(())),
        (seq(assign("$.a", 1), seq()), Seq((Assign(A, Lit(1)), Seq(())))),
        (branch("$.a", seq(), assign("$.a", None)), Branch(A, Seq(()), Assign(A, Lit(None)))),
        (loop("$.a", "$.a", seq(), 2**32 - 1), Loop(A, A, Seq(()), 2**32 - 1)),
        (fanout("$.a", seq(), "any", "$", "$.a"), Fanout(A, A, Seq(()), "any", Path(()))),
        (fanout("$.a", seq(), "all", "$.a", "$.a", concurrency=2), Fanout(A, A, Seq(()), "all", A, 2)),
        (fanout("$.a", seq(), "all", "$.a", "$.a", concurrency=None), Fanout(A, A, Seq(()), "all", A)),
        (guard(seq(), seq(), "$.a"), Try(Seq(()), Seq(()), A)),
        (guard(seq(), seq(), None), Try(Seq(()), Seq(()))),
        (guard(seq(), seq(), None) | {"err_at": None}, Try(Seq(()), Seq(()))),
        (assign("$.a", unary("not", "$.a")), Assign(A, Apply("not", (A,)))),
        (assign("$.a", {"op": "and", "args": [path("$.a"), lit(1)]}), Assign(A, Apply("and", (A, Lit(1))))),
        (
            assign("$.a", {"op": "in", "haystack": path("$.a"), "needle": lit({"op": 1})}),
            Assign(A, Apply("in", (Lit({"op": 1}), A))),
        ),
        (
            assign("$.a", {"op": "call_extern", "ref": "f", "args": [path("$.a")]}),
            Assign(A, Extern("f", (A,))),
        ),
        (approve(), Approve(Lit(1), A)),
        (
            approve(title="Go on?", choices=[{"id": "y", "label": "Yes", "decision": "approved"}], on_deny="continue"),
            Approve(Lit(1), A, "Go on?", (Choice("y", "Yes", "approved"),), None, "continue"),
        ),
        ({"kind": "wait", "secs": path("$.a")}, Wait(secs=A)),
        ({"kind": "wait", "until": lit("2030-01-01T00:00:00Z")}, Wait(until=Lit("2030-01-01T00:00:00Z"))),
        (assign(lit("$.x"), 1), Assign(Lit("$.x"), Lit(1))),  # an error of the run, not of the text
    ],
)
def test_nodes_and_expressions(json, node):
    assert parse_flow(json) == node


@pytest.mark.parametrize(
    ("json", "path", "kind"),
    [
        (5, "$", "wrong_type"),
        ({}, "$", "missing_key"),
        ({"kind": 1}, "$", "missing_key"),
        ({"kind": "sequence"}, "$.kind", "unknown_kind"),
        ({"kind": "let"}, "$.kind", "unknown_kind"),
        ({"kind": "approve", "action": lit(1)}, "$", "missing_key"),
        (approve(choices=[]), "$", "members_disagree"),
        (approve(choices=[{"id": "a", "label": "A"}]), "$.choices[0]", "missing_key"),
        (approve(choices=["a"]), "$.choices[0]", "wrong_type"),
        (approve(on_deny="skip"), "$.on_deny", "bad_value"),
        (approve(expires_secs=-1), "$.expires_secs", "bad_value"),
        ({"kind": "wait"}, "$", "members_disagree"),
        ({"kind": "wait", "secs": lit(1), "until": lit("x")}, "$", "members_disagree"),
        ({"kind": "wait", "secs": 1}, "$.secs", "wrong_type"),
        ({"kind": "call"}, "$.kind", "node_kind_unavailable"),
        ({"kind": "seq"}, "$", "missing_key"),
        (seq() | {"child": []}, "$.child", "unknown_key"),
        (seq() | {"a b": []}, '$["a b"]', "unknown_key"),
        ({"kind": "seq", "children": {}}, "$.children", "wrong_type"),
        (seq(seq(), seq(None)), "$.children[1].children[0]", "wrong_type"),
        (step(1, "$.a", "$.a"), "$.ref", "wrong_type"),
        (assign("$.a", {"op": "eqq"}), "$.value.op", "unknown_op"),
        (assign("$.a", {"op": None}), "$.value", "missing_key"),
        (assign("$.a", {"op": "eq", "lhs": lit(1)}), "$.value", "missing_key"),
        (assign("$.a", {"op": "lit"}), "$.value", "missing_key"),
        (assign("$.a", {"op": "or", "args": [lit(1), 2]}), "$.value.args[1]", "wrong_type"),
        (assign("$.a", {"op": "path", "at": 1}), "$.value.at", "wrong_type"),
        (assign("$.a", path("$foo")), "$.value.at", "bad_path"),
        (assign(path("a"), 1), "$.at.at", "bad_path"),
        (assign("$.a", unary("len", path("$.a..b"))), "$.value.arg.at", "bad_path"),
        (loop("$.a", "$.a", seq(), True), "$.max", "wrong_type"),
        (loop("$.a", "$.a", seq(), 3.0), "$.max", "wrong_type"),
        (loop("$.a", "$.a", seq(), -1), "$.max", "bad_value"),
        (loop("$.a", "$.a", seq(), 2**32), "$.max", "bad_value"),
        (fanout("$.a", seq(), "first"), "$.join", "bad_value"),
        (fanout("$.a", seq(), 1), "$.join", "wrong_type"),
        (fanout("$.a", seq(), "all", concurrency=0), "$.concurrency", "bad_value"),
        (fanout("$.a", seq(), "all", concurrency=False), "$.concurrency", "wrong_type"),
        (guard(seq(), None, expr("$.")), "$.err_at.at", "bad_path"),
    ],
)
def test_each_fault_names_its_place(json, path, kind):
    assert faults_of(parse_flow, json) == [(path, kind)]


def nested(depth):
    node = assign("$.a", 1)
    for _ in range(depth - 2):  # the assignment and its expressions are the two innermost levels
        node = seq(node)
    return node


def test_nodes_and_expressions_nest_64_deep_and_no_deeper():
    assert parse_flow(nested(64))
    assert {kind for _, kind in faults_of(parse_flow, nested(65))} == {"too_deep"}
    assert faults_of(parse_flow, nested(5000))  # a fault, not an overflow of the stack
    deep = lit(0)
    for _ in range(62):
        deep = unary("not", deep)
    assert parse_flow(assign("$.a", deep))
    assert [kind for _, kind in faults_of(parse_flow, assign("$.a", unary("not", deep)))] == ["too_deep"]


def test_the_steps_of_a_flow_come_in_the_order_of_its_text():
    ask = [step(name, 1, "$.a") for name in "abcdefg"]
    flow = seq(
        branch("$.a", ask[0], ask[1]),
        guard(ask[2], ask[3]),
        loop("$.n", True, seq(ask[4]), 2),
        fanout("$.a", ask[5], "all"),
        assign("$.a", 1),
        ask[6],
    )
    assert "".join(each.ref for each in steps_of(parse_flow(flow))) == "abcdefg"


def test_unknown_words_come_with_a_suggestion():
    with pytest.raises(BlueprintInvalid) as caught:
        parse_flow(seq({"kind": "asign"}, {"kind": "step", "ref": "e", "in": lit(1), "oot": lit(1)}))
    hints = {fault["path"]: fault["hint"] for fault in caught.value.data["faults"]}
    assert hints["$.children[0].kind"] == "did you mean 'assign'?"
    assert hints["$.children[1].oot"] == "did you mean 'out'?"


@given(st.one_of(json_values, flow_json.flatmap(lambda flow: damaged(flow))))
def test_anything_either_parses_or_is_refused_with_faults(value):
    for parse in (parse_flow, parse_blueprint):
        try:
            parse(value)
        except BlueprintInvalid as error:
            assert error.data["faults"]


def damaged(flow):
    """One member somewhere in the flow is replaced by something else."""
    spots = []

    def visit(part):
        for key in part if isinstance(part, dict) else range(len(part)):
            spots.append((part, key))
            if isinstance(part[key], dict | list):
                visit(part[key])

    visit(flow)
    return st.builds(lambda spot, value: replaced(flow, spot, value), st.sampled_from(spots), json_values)


def replaced(part, spot, value):
    if isinstance(part, dict):
        return {
            key: value if part is spot[0] and key == spot[1] else replaced(item, spot, value)
            for key, item in part.items()
        }
    if isinstance(part, list):
        return [
            value if part is spot[0] and index == spot[1] else replaced(item, spot, value)
            for index, item in enumerate(part)
        ]
    return part


# -- blueprints -------------------------------------------------------------------------------------------------------


def test_a_blueprint_with_all_its_parts():
    agent = {
        "name": "sh.1-a_B",
        "kind": "subprocess",
        "spec": {"program": "sh", "args": ["-c", ""], "use_stdin": False, "env": {"A": ""}, "cwd": "/"},
        "profile": {"model": "m"},
        "meta": {"tags": []},
        "runner": {"backend": "x"},
        "runner_ref": "r",
        "verdict": {"channel": "body", "values": ["PASS"]},
        "lints": {"all": "warn"},
        "retry": {"max_attempts": 2, "initial_secs": 0, "max_secs": 1.5, "multiplier": 1, "retry_on": ["blocked"]},
        "timeout_secs": 0.5,
        "on_ambiguous": "fail",
        "approval": "never",
    }
    fn = {"name": "id", "kind": "rust_fn", "spec": {"fn_id": "identity"}, "retry": {}}
    metas = [{"name": "m", "ctx": {"k": 1}}]
    flow = step("sh.1-a_B", lit({"$step_meta": {"ref": "m"}}), "$.a")
    kept = {"audits": [], "operators": [{"name": "seat"}], "strategy": {"strict_refs": True}, "metadata": {"x": 1}}
    came = parse_blueprint(
        blueprint(flow, [agent, fn, ECHO], metas=metas, default_init_ctx={"a": 0}, check_policy="strict", **kept)
    )
    assert (came.id, came.schema_version, came.check_policy) == ("b", "0.1.0", "strict")
    assert came.default_init_ctx == {"a": 0}
    assert came.metas == {"m": {"k": 1}}
    assert came.extras == kept
    assert isinstance(came.flow, Step)
    retry = Retry(max_attempts=2, initial_secs=0, max_secs=1.5, multiplier=1, retry_on=("blocked",))
    verdict = Verdict(channel="body", values=("PASS",))
    assert came.agents[0] == AgentDef(**agent | {"retry": retry, "verdict": verdict})
    assert came.agents[1].retry == Retry()
    assert came.agents[2] == AgentDef(name="echo", kind="python", spec={"fn": "builtin:echo"})


def test_the_smallest_blueprint():
    came = parse_blueprint({"id": "b", "flow": seq()})
    assert (came.agents, came.metas, came.default_init_ctx, came.check_policy, came.extras) == ((), {}, None, None, {})


def test_a_secret_may_stand_where_a_program_gets_text():
    spec = {"program": "x", "args": [{"$secret": "S"}], "env": {"A": {"$secret": "S"}}}
    agent = {"name": "sh", "kind": "subprocess", "spec": spec}
    assert parse_blueprint(blueprint(agents=[agent])).agents[0].spec["args"] == [{"$secret": "S"}]
    spec["env"]["A"] = {"$secret": ""}
    assert faults_of(parse_blueprint, blueprint(agents=[agent])) == [("$.agents[0].spec.env.A.$secret", "bad_value")]


def test_parameters_of_a_python_agent_are_the_authors_own():
    spec = {"fn": "m:f", "anything": {"goes": None}}
    assert parse_blueprint(blueprint(agents=[ECHO | {"spec": spec}])).agents[0].spec == spec


HUMAN = {"name": "ann", "kind": "human"}


def test_options_of_a_question_are_labels_or_say_more():
    spec = {"question": "Which?", "options": ["dry", {"label": "wet", "description": "rain"}], "selection": "multiple"}
    assert parse_blueprint(blueprint(agents=[HUMAN | {"spec": spec}])).agents[0].spec == spec


@pytest.mark.parametrize(
    ("change", "path", "kind"),
    [
        ({"question": None}, ".question", "wrong_type"),
        ({"options": [""]}, ".options[0]", "bad_value"),
        ({"options": ["dry", {"label": ""}]}, ".options[1].label", "bad_value"),
        ({"options": [{"description": "rain"}]}, ".options[0]", "missing_key"),
        ({"options": [1]}, ".options[0]", "wrong_type"),
        ({"selection": "some"}, ".selection", "bad_value"),
        ({"answers": []}, ".answers", "unknown_key"),
    ],
)
def test_faults_of_a_question(change, path, kind):
    agent = HUMAN | {"spec": {"question": "Which?"} | change}
    assert faults_of(parse_blueprint, blueprint(agents=[agent])) == [("$.agents[0].spec" + path, kind)]


@pytest.mark.parametrize(
    ("change", "path", "kind"),
    [
        ({"id": ""}, "$.id", "bad_value"),
        ({"id": 1}, "$.id", "wrong_type"),
        ({"flows": []}, "$.flows", "unknown_key"),
        ({"agents": {}}, "$.agents", "wrong_type"),
        ({"agents": [5]}, "$.agents[0]", "wrong_type"),
        ({"strategy": {"strict": True}}, "$.strategy.strict", "unknown_key"),
        ({"check_policy": "loud"}, "$.check_policy", "bad_value"),
        ({"metas": [{"name": "m", "ctx": []}]}, "$.metas[0].ctx", "wrong_type"),
        ({"metas": [{"name": "m", "ctx": {}}] * 2}, "$.metas[1].name", "duplicate_name"),
        ({"agents": [ECHO, ECHO]}, "$.agents[1].name", "duplicate_name"),
        ({"flow": step("ekko", "$.a", "$.a")}, "$.flow.ref", "unresolved_agent_ref"),
        ({"flow": step("echo", lit({"$step_meta": {"ref": "m"}}), "$.a")}, "$.flow.in.value", "bad_step_meta"),
        ({"flow": step("echo", lit({"$step_meta": 1}), "$.a")}, "$.flow.in.value", "bad_step_meta"),
    ],
)
def test_faults_of_a_blueprint(change, path, kind):
    assert faults_of(parse_blueprint, blueprint() | change) == [(path, kind)]


@pytest.mark.parametrize(
    ("change", "path", "kind"),
    [
        ({"name": "a b"}, ".name", "bad_agent_name"),
        ({"name": "@approve"}, ".name", "bad_agent_name"),
        ({"name": ""}, ".name", "bad_agent_name"),
        ({"name": 1}, ".name", "wrong_type"),
        ({"kind": "pyton"}, ".kind", "unknown_kind"),
        ({"kind": None}, ".kind", "wrong_type"),
        *[({"kind": k}, ".kind", "agent_kind_unavailable") for k in ("llm", "acp", "mcp", "http")],
        *[({"kind": kind}, ".kind", "agent_kind_unsupported") for kind in ("lua", "agent_block")],
        ({"color": 1}, ".color", "unknown_key"),
        ({"spec": None}, ".spec", "wrong_type"),
        ({"spec": {}}, ".spec", "missing_key"),
        ({"spec": {"fn": 1}}, ".spec.fn", "wrong_type"),
        ({"kind": "rust_fn", "spec": {"fn_id": "other"}}, ".spec.fn_id", "bad_value"),
        ({"kind": "subprocess", "spec": {}}, ".spec", "missing_key"),
        ({"kind": "subprocess", "spec": {"program": ""}}, ".spec.program", "bad_value"),
        ({"kind": "subprocess", "spec": {"program": "x", "args": ["a\0b"]}}, ".spec.args[0]", "bad_value"),
        ({"kind": "subprocess", "spec": {"program": "x", "env": {"A": 1}}}, ".spec.env.A", "wrong_type"),
        ({"kind": "subprocess", "spec": {"program": "x", "env": []}}, ".spec.env", "wrong_type"),
        ({"kind": "subprocess", "spec": {"program": "x", "use_stdin": 1}}, ".spec.use_stdin", "wrong_type"),
        ({"kind": "subprocess", "spec": {"program": "x", "shell": True}}, ".spec.shell", "unknown_key"),
        ({"retry": 3}, ".retry", "wrong_type"),
        ({"retry": {"max_attempts": 0}}, ".retry.max_attempts", "bad_value"),
        ({"retry": {"retry_on": ["skip"]}}, ".retry.retry_on[0]", "bad_value"),
        ({"timeout_secs": 0}, ".timeout_secs", "bad_value"),
        ({"timeout_secs": float("nan")}, ".timeout_secs", "bad_value"),
        ({"timeout_secs": "1"}, ".timeout_secs", "wrong_type"),
        ({"on_ambiguous": "guess"}, ".on_ambiguous", "bad_value"),
        ({"approval": "always"}, ".approval", "bad_value"),
    ],
)
def test_faults_of_an_agent(change, path, kind):
    assert faults_of(parse_blueprint, blueprint(agents=[ECHO | change])) == [("$.agents[0]" + path, kind)]


def test_every_fault_is_reported_at_once():
    value = {
        "nope": 1,
        "flow": seq({"kind": "sq"}, step("gone", {"op": "lit"}, path("$.")), {"kind": "call"}),
        "agents": [ECHO, ECHO, {"name": "x"}],
        "metas": 1,
    }
    assert sorted(faults_of(parse_blueprint, value)) == [
        ("$", "missing_key"),
        ("$.agents[1].name", "duplicate_name"),
        ("$.agents[2]", "missing_key"),
        ("$.agents[2]", "missing_key"),
        ("$.flow.children[0].kind", "unknown_kind"),
        ("$.flow.children[1].in", "missing_key"),
        ("$.flow.children[1].out.at", "bad_path"),
        ("$.flow.children[1].ref", "unresolved_agent_ref"),
        ("$.flow.children[2].kind", "node_kind_unavailable"),
        ("$.metas", "wrong_type"),
        ("$.nope", "unknown_key"),
    ]


def test_a_faulty_agent_still_counts_as_declared():
    value = blueprint(step("echo", "$.a", "$.a"), [ECHO | {"kind": "llm"}])
    assert faults_of(parse_blueprint, value) == [("$.agents[0].kind", "agent_kind_unavailable")]
