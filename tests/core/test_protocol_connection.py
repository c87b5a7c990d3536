"""One connection: the handshake, calls and their answers, what is held back, and that nothing a peer sends raises."""

import json
from collections.abc import Collection, Iterator
from itertools import count, pairwise

import muse_code_msp as msp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refold.errors import InvalidJson, MissingAnchor, RefoldError, SessionBusy
from refold.protocol.connection import MOVES, Call, Connection, Notified, Replied, State
from refold.protocol.jsonrpc import FrameTooLarge
from refold.protocol.messages import BOOKMARKS, HostInfo, Limits
from refold.protocol.methods import PROTECTED, SERVABLE, TABLE

SESSION = "0198f0aa-1111-7000-8000-0000000000aa"
COMMAND = "0198f0ab-8888-7000-8000-0000000000c4"
CODES = {(spec["code"], kind) for spec in msp.ERRORS for kind in (spec["kind"], *spec["overrideKinds"])}


def frame(**members: object) -> bytes:
    return json.dumps({"jsonrpc": "2.0", **members}).encode() + b"\n"


def hello(**capabilities: object) -> bytes:
    params = {"clientInfo": {"name": "test", "version": "1"}, "capabilities": capabilities}
    return frame(id="hello", method="initialize", params=params)


INITIALIZED = frame(method="initialized")
LIST = frame(id=1, method="session/list")


def fresh(
    handlers: Collection[str] = SERVABLE, ids: Iterator[int] | None = None, durability: str = "durable", **limits: int
) -> Connection:
    host = HostInfo(version="0", muse_home="/h", platform_os="linux", durability=durability, limits=Limits(**limits))
    return Connection(host, handlers, (ids or count(1)).__next__)


def ready(**more: object) -> Connection:
    """A connection after a handshake that asked for nothing."""
    connection = fresh(**more)
    connection.receive_data(hello() + INITIALIZED)
    connection.data_to_send()
    return connection


def sent(connection: Connection) -> list[dict]:
    """What is to be sent, decoded, after the checks that every frame of ours must pass."""
    frames = connection.data_to_send()
    for data in frames:
        assert data.endswith(b"\n") and data.count(b"\n") == 1 and b"\r" not in data
    bodies = [json.loads(data) for data in frames]
    assert all(body["jsonrpc"] == "2.0" for body in bodies)
    assert all((body["error"]["code"], body["error"]["data"]["kind"]) in CODES for body in bodies if "error" in body)
    return bodies


def answer(connection: Connection, data: bytes) -> dict:
    """Sends `data` and returns the one frame that comes back at once."""
    connection.receive_data(data)
    (body,) = sent(connection)
    return body


def kind(body: dict) -> str:
    return body["error"]["data"]["kind"]


def call(connection: Connection, data: bytes = LIST) -> Call:
    """Sends a request and returns the one call that it opens."""
    connection.receive_data(data)
    (event,) = connection.events()
    assert isinstance(event, Call)
    return event


# -- handshake --------------------------------------------------------------------------------------------------------


def test_the_states_form_a_line() -> None:
    assert list(MOVES.values()) == [State.INITIALIZED, State.READY]
    connection = fresh()
    states = [connection.state]
    for data in (hello(), INITIALIZED, INITIALIZED, hello()):
        connection.receive_data(data)
        states.append(connection.state)
    assert states == [State.NEW, State.INITIALIZED, State.READY, State.READY, State.READY]


@pytest.mark.parametrize("method", ["session/list", "session/userShell", "no/such", "initialized"])
def test_before_initialize_every_request_is_refused(method: str) -> None:
    connection = fresh()
    body = answer(connection, frame(id="a", method=method))
    assert (body["id"], body["error"]["code"], kind(body)) == ("a", -32600, "notInitialized")
    assert connection.events() == []


def test_initialize_comes_once() -> None:
    connection = fresh()
    assert "result" in answer(connection, hello())
    assert kind(answer(connection, hello())) == "alreadyInitialized"
    connection.receive_data(INITIALIZED)
    assert kind(answer(connection, hello())) == "alreadyInitialized"


def test_a_faulty_initialize_may_be_repeated() -> None:
    connection = fresh()
    assert kind(answer(connection, frame(id=1, method="initialize", params={}))) == "invalidParams"
    assert connection.state is State.NEW
    assert "result" in answer(connection, hello())


def test_initialized_before_initialize_does_nothing() -> None:
    connection = fresh()
    connection.receive_data(INITIALIZED + frame(method="initialize"))
    assert connection.state is State.NEW
    assert sent(connection) == []


def test_calls_are_served_between_initialize_and_initialized() -> None:
    connection = fresh()
    connection.receive_data(hello())
    sent(connection)
    connection.reply(call(connection), {"sessions": []})
    assert sent(connection) == [{"jsonrpc": "2.0", "id": 1, "result": {"sessions": []}}]


def test_what_the_client_says_of_itself() -> None:
    connection = fresh()
    assert (connection.client_info, connection.granted, connection.user_input_dialogs) == ({}, (), True)
    connection.receive_data(hello(requestedCapabilities=["zz", BOOKMARKS], userInputDialogs=False, future=1))
    assert connection.client_info == {"name": "test", "version": "1"}
    assert connection.granted == (BOOKMARKS,)
    assert connection.bookmarks
    assert not connection.user_input_dialogs


@pytest.mark.parametrize(
    ("asked", "granted"),
    [
        ([], []),
        (["userShell", "sessionMcp", "feedback"], []),
        (["sessionListStream"], ["sessionListStream"]),
        (
            [BOOKMARKS, "sessionRename", "sessionListStream", BOOKMARKS],
            ["sessionListStream", "sessionRename", BOOKMARKS],
        ),
    ],
)
def test_what_is_granted(asked: list[str], granted: list[str]) -> None:
    connection = fresh()
    assert answer(connection, hello(requestedCapabilities=asked))["result"]["grantedCapabilities"] == granted
    assert connection.bookmarks is (BOOKMARKS in granted)


def test_a_handler_for_nothing_is_a_mistake_of_ours() -> None:
    with pytest.raises(ValueError, match="goal/set, initialize"):
        fresh(handlers={"session/list", "initialize", "goal/set"})


# -- calls ------------------------------------------------------------------------------------------------------------


def test_a_call_and_its_answer() -> None:
    connection = ready()
    opened = call(connection, frame(id="x", method="view/page", params={"sessionId": SESSION, "limit": 5, "new": 1}))
    assert (opened.id, opened.method, opened.row) == ("x", "view/page", TABLE["view/page"])
    assert opened.params == {"sessionId": SESSION, "limit": 5}
    assert sent(connection) == []
    connection.reply(opened, {"events": [], "nextCursor": None})
    assert sent(connection) == [{"jsonrpc": "2.0", "id": "x", "result": {"events": [], "nextCursor": None}}]


def test_a_call_may_be_refused_with_any_error() -> None:
    connection = ready()
    params = {"commandId": COMMAND, "sessionId": SESSION, "cursor": "v:other:9"}
    connection.fail(call(connection, frame(id=9, method="session/resume", params=params)), MissingAnchor(SESSION))
    assert sent(connection) == [
        {
            "jsonrpc": "2.0",
            "id": 9,
            "error": {
                "code": -32011,
                "message": "unknown cursor anchor",
                "data": {"kind": "notFound", "reason": "missingAnchor", "sessionId": SESSION},
            },
        }
    ]
    params = {"commandId": COMMAND, "sessionId": SESSION, "workflowRunId": "R-1"}
    connection.fail(call(connection, frame(id=9, method="workflow/resume", params=params)), SessionBusy("busy"))
    assert sent(connection)[0]["error"]["data"]["commandId"] == COMMAND


def test_ids_are_echoed_exactly() -> None:
    connection = ready()
    calls = [call(connection, frame(id=request_id, method="session/list")) for request_id in (1, "1", -3, "", 2**60)]
    for opened in calls:
        connection.reply(opened, {})
    assert [body["id"] for body in sent(connection)] == [1, "1", -3, "", 2**60]


def test_a_call_is_answered_once() -> None:
    connection = ready()
    opened = call(connection)
    connection.reply(opened, {})
    again = call(connection)  # the id is free again, but the old call is not the new one
    for late in (lambda: connection.reply(opened, {}), lambda: connection.fail(opened, RefoldError("late"))):
        with pytest.raises(ValueError, match="session/list"):
            late()
    assert len(sent(connection)) == 1
    connection.reply(again, {})
    assert len(sent(connection)) == 1


def test_an_id_in_use_is_refused() -> None:
    connection = ready()
    opened = call(connection)
    assert kind(answer(connection, LIST)) == "invalidRequest"
    connection.reply(opened, {})
    assert "result" in sent(connection)[0]


def test_too_many_open_requests_are_refused_and_may_be_retried() -> None:
    connection = ready(open_requests=3)
    calls = [call(connection, frame(id=n, method="session/list")) for n in range(3)]
    body = answer(connection, frame(id=3, method="session/list"))
    assert body["error"]["code"] == -32001
    assert body["error"]["data"] == {"kind": "overloaded", "retryable": True}
    connection.reply(calls[0], {})
    assert call(connection, frame(id=3, method="session/list")).id == 3


def test_the_default_is_256_open_requests() -> None:
    connection = ready()
    connection.receive_data(b"".join(frame(id=n, method="session/list") for n in range(257)))
    assert len(connection.events()) == 256
    assert [body["id"] for body in sent(connection)] == [256]


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ("session/userShell", "capabilityRequired"),
        ("session/rename", "capabilityRequired"),
        ("goal/set", "methodNotFound"),
        ("session/frobnicate", "methodNotFound"),
        ("userInput/engaged", "methodNotFound"),
        ("turn/start", "invalidParams"),
    ],
)
def test_what_cannot_be_called(method: str, expected: str) -> None:
    assert kind(answer(ready(), frame(id=1, method=method, params={}))) == expected


def test_handlers_decide_what_is_served_today() -> None:
    assert kind(answer(ready(handlers={"session/read"}), LIST)) == "methodNotFound"


def test_an_ephemeral_host_has_no_resume() -> None:
    params = {"commandId": COMMAND, "sessionId": SESSION}
    resume = frame(id=1, method="session/resume", params=params)
    assert call(ready(), resume).method == "session/resume"
    assert kind(answer(ready(durability="ephemeral"), resume)) == "methodNotFound"


@pytest.mark.parametrize(
    ("method", "params", "expected"),
    [
        ("session/list", {}, {"kind": "internal", "limitBytes": 2000, "reason": "frameTooLarge"}),
        (
            "item/readOutput",
            {"sessionId": "s", "itemId": "i", "outputRef": "o"},
            {"kind": "outputResultTooLarge", "limitBytes": 2000, "itemId": "i", "outputRef": "o"},
        ),
    ],
)
def test_an_answer_above_the_cap_becomes_a_typed_error(method: str, params: dict, expected: dict) -> None:
    connection = ready(frame_bytes=2000)
    connection.reply(call(connection, frame(id=1, method=method, params=params)), {"text": "x" * 2000})
    (body,) = sent(connection)
    assert (body["id"], body["error"]["code"], body["error"]["data"]) == (1, -32603, expected)


def test_an_answer_that_is_no_json_leaves_the_call_open() -> None:
    connection = ready()
    opened = call(connection)
    with pytest.raises(InvalidJson):
        connection.reply(opened, {"a": float("inf")})
    connection.fail(opened, RefoldError("…"))
    assert kind(sent(connection)[0]) == "internal"


# -- notifications and requests of ours -------------------------------------------------------------------------------


def test_what_we_say_waits_until_the_client_listens() -> None:
    connection = fresh()
    connection.notify("session/started", {"n": 1}, emitted_at_ms=5)
    connection.receive_data(hello())
    assert [body.get("method") for body in sent(connection)] == [None]
    request_id = connection.request("approval/request", {"n": 2})
    connection.notify("item/started", {"n": 3})
    assert sent(connection) == []
    connection.receive_data(INITIALIZED)
    assert sent(connection) == [
        {"jsonrpc": "2.0", "method": "session/started", "params": {"n": 1}, "emittedAtMs": 5},
        {"jsonrpc": "2.0", "id": request_id, "method": "approval/request", "params": {"n": 2}},
        {"jsonrpc": "2.0", "method": "item/started", "params": {"n": 3}},
    ]
    connection.notify("item/completed")
    assert sent(connection) == [{"jsonrpc": "2.0", "method": "item/completed"}]


@pytest.mark.parametrize("muted", [(), ("item/updated",)])
def test_what_is_relayed_is_held_and_muted_as_any_notification(muted: tuple[str, ...]) -> None:
    connection = fresh()
    connection.relay("item/updated", b'{"method":"item/updated","params":{"n":1}}', 5)
    assert sent(connection) == []
    connection.receive_data(hello(optOutNotificationMethods=list(muted)) + INITIALIZED)
    connection.relay("item/updated", b'{"method":"item/updated","params":{"n":2}}', 6)
    told = [{"jsonrpc": "2.0", "method": "item/updated", "params": {"n": n}, "emittedAtMs": 4 + n} for n in (1, 2)]
    assert sent(connection)[1:] == ([] if muted else told)


def test_what_is_held_is_bounded() -> None:
    connection = fresh(held_bytes=1000)
    for _ in range(3):
        connection.notify("m", {"x": "x" * 250})
    for more in (connection.notify, connection.request):
        with pytest.raises(RefoldError) as refused:
            more("m", {"x": "x" * 250})
        assert (refused.value.kind, refused.value.data) == ("backpressured", {"capacity": 1000})
    connection.receive_data(hello() + INITIALIZED)
    assert len(sent(connection)) == 4  # the answer to initialize and three held ones
    for _ in range(9):
        connection.notify("m", {"x": "x" * 250})
    assert len(sent(connection)) == 9


@pytest.mark.parametrize("before", [True, False], ids=["held", "ready"])
def test_opting_out_is_honoured_except_for_what_is_protected(before: bool) -> None:
    connection = fresh()
    wishes = hello(optOutNotificationMethods=["item/delta", "no/such", "approval/request", *PROTECTED])
    if not before:
        connection.receive_data(wishes + INITIALIZED)
        sent(connection)
    for method in ("item/delta", "item/completed", *sorted(PROTECTED)):
        connection.notify(method, {})
    connection.request("approval/request", {})
    if before:
        connection.receive_data(wishes + INITIALIZED)
    methods = [body["method"] for body in sent(connection) if "method" in body]
    assert methods == ["item/completed", *sorted(PROTECTED), "approval/request"]


@pytest.mark.parametrize(("asked", "received"), [([], False), (["sessionListStream"], True)])
def test_the_list_stream_needs_its_grant(asked: list[str], received: bool) -> None:
    connection = fresh()
    connection.notify("session/listChanged", {})
    connection.receive_data(hello(requestedCapabilities=asked) + INITIALIZED)
    connection.notify("session/listChanged", {})
    assert [body.get("method") for body in sent(connection)[1:]] == ["session/listChanged"] * (2 * received)


def test_a_notification_above_the_cap_is_not_sent() -> None:
    connection = ready(frame_bytes=2000)
    with pytest.raises(FrameTooLarge):
        connection.notify("item/completed", {"text": "x" * 2000})
    assert sent(connection) == []


def test_request_ids_grow_over_all_connections_of_a_process() -> None:
    ids = count(1)
    first, second = ready(ids=ids), ready(ids=ids)
    given_ids = [connection.request("approval/request") for connection in (first, second, second, first)]
    assert given_ids == [1, 2, 3, 4]
    assert [body["id"] for body in sent(first)] == [1, 4]


def test_replies_to_our_requests() -> None:
    connection = ready()
    first, second = connection.request("approval/request"), connection.request("userInput/request")
    connection.receive_data(frame(id=second, result={"a": 1}) + frame(id=first, error={"code": -32601, "message": ""}))
    assert connection.events() == [
        Replied(second, {"a": 1}, None),
        Replied(first, None, {"code": -32601, "message": ""}),
    ]


def test_a_reply_counts_on_the_connection_that_was_asked() -> None:
    ids = count(1)
    first, second = ready(ids=ids), ready(ids=ids)
    asked, other = first.request("approval/request"), second.request("approval/request")
    second.receive_data(frame(id=asked, result={"by": "a stranger"}))
    assert second.events() == []
    first.receive_data(frame(id=asked, result={"by": "who was asked"}))
    second.receive_data(frame(id=other, result={}))
    assert first.events() == [Replied(asked, {"by": "who was asked"}, None)]
    assert second.events() == [Replied(other, {}, None)]


def test_calls_of_two_connections_may_have_one_id() -> None:
    first, second = ready(), ready()
    one, two = call(first), call(second)
    second.reply(two, {"for": "second"})
    first.reply(one, {"for": "first"})
    assert [body["result"] for connection in (first, second) for body in sent(connection)] == [
        {"for": "first"},
        {"for": "second"},
    ]


@pytest.mark.parametrize("reply_id", [99, "1", None, True, 1.0, [1]])
def test_replies_to_nothing_are_ignored(reply_id: object) -> None:
    connection = ready()
    connection.request("approval/request")
    sent(connection)
    connection.receive_data(frame(id=reply_id, result={}) + frame(id=reply_id, error={}))
    assert (connection.events(), sent(connection)) == ([], [])


def test_a_second_reply_is_ignored() -> None:
    connection = ready()
    request_id = connection.request("approval/request")
    connection.receive_data(frame(id=request_id, result={}) * 2)
    assert len(connection.events()) == 1


def test_notifications_of_the_client() -> None:
    engaged = frame(method="userInput/engaged", params={"sessionId": "s", "userInputId": "u", "x": 1})
    connection = fresh()
    connection.receive_data(engaged + hello())
    assert connection.events() == []
    faulty = frame(method="userInput/engaged", params={"sessionId": 5}) + frame(method="userInput/engaged", params=[])
    connection.receive_data(engaged + faulty + frame(method="no/such", params={}) + frame(method="turn/start"))
    assert connection.events() == [Notified("userInput/engaged", {"sessionId": "s", "userInputId": "u"})]
    assert [body["id"] for body in sent(connection)] == ["hello"]


# -- framing ----------------------------------------------------------------------------------------------------------

CONVERSATION = (
    hello(requestedCapabilities=["sessionListStream"]).replace(b"\n", b"\r\n")
    + b"\n\r\n"
    + INITIALIZED.replace(b"\n", b"\r\n")
    + frame(
        id="a1", method="session/userShell", params={"sessionId": SESSION, "commandId": COMMAND, "commandText": "ls"}
    )
    + frame(id=2, method="session/resume", params={"sessionId": SESSION, "commandId": COMMAND, "cursor": "é" * 9})
    + b"garbage\n"
    + frame(id="big", method="session/list", params={"x": "x" * 5000})
    + b"x" * 5000
    + b"\n"
    + LIST
    + b'{"jsonrpc":"2.0","id":"half'
)


def outcome(chunks: Iterator[bytes], **more: object) -> tuple[list[object], list[bytes]]:
    connection = fresh(frame_bytes=4000, **more)
    events: list[object] = []
    frames: list[bytes] = []
    for chunk in chunks:
        connection.receive_data(chunk)
        events += connection.events()
        frames += connection.data_to_send()
    return [(e.id, e.method, e.params) if isinstance(e, Call) else e for e in events], frames


def test_a_conversation() -> None:
    events, frames = outcome(iter([CONVERSATION]))
    resume = {"sessionId": SESSION, "commandId": COMMAND, "cursor": "é" * 9}
    assert events == [(2, "session/resume", resume), (1, "session/list", {})]
    bodies = [json.loads(data) for data in frames]
    assert [(body["id"], kind(body) if "error" in body else "result") for body in bodies] == [
        ("hello", "result"),
        ("a1", "capabilityRequired"),
        (None, "parseError"),
        ("big", "inputTooLarge"),
        (None, "parseError"),
    ]
    assert bodies[3]["error"]["data"]["limitBytes"] == 4000


def test_a_conversation_byte_by_byte() -> None:
    assert outcome(bytes([byte]) for byte in CONVERSATION) == outcome(iter([CONVERSATION]))


@given(st.lists(st.integers(min_value=0, max_value=len(CONVERSATION)), max_size=10))
def test_a_conversation_cut_anywhere(cuts: list[int]) -> None:
    places = [0, *sorted(cuts), len(CONVERSATION)]
    chunks = (CONVERSATION[start:end] for start, end in pairwise(places))
    assert outcome(chunks) == outcome(iter([CONVERSATION]))


def test_what_is_not_collected_yet_is_measured_and_comes_frame_by_frame_in_order() -> None:
    connection = ready()
    assert (connection.next_to_send(), connection.unsent_bytes) == (None, 0)
    for method in ("session/started", "session/closed"):
        connection.notify(method, {"text": "ü"})
    opened = call(connection)
    connection.reply(opened, {})
    waiting = connection.unsent_bytes
    first = connection.next_to_send()
    assert first is not None and connection.unsent_bytes == waiting - len(first)
    rest = connection.data_to_send()
    assert len(first) + sum(map(len, rest)) == waiting
    assert [json.loads(each).get("method") for each in (first, *rest)] == ["session/started", "session/closed", None]
    assert (connection.next_to_send(), connection.unsent_bytes, connection.data_to_send()) == (None, 0, [])


def test_whole_frames_are_read_as_lines_are() -> None:
    connection = fresh(frame_bytes=4000)
    members = {"jsonrpc": "2.0", "id": "big", "method": "session/list", "params": {"x": "é" * 2000}}
    big = json.dumps(members, ensure_ascii=False)
    assert len(big) < 4000 < len(big.encode())
    lone = '{"jsonrpc":"2.0","id":"\ud800","method":"session/list"}'
    for text in (hello().decode().rstrip(), '{"jsonrpc":"2.0",\n"method":"initialized"}', LIST, big, lone, ""):
        connection.receive_frame(text)
    assert connection.state is State.READY
    assert [event.method for event in connection.events()] == ["session/list"]
    assert [body["id"] for body in sent(connection)] == ["hello", "big", None, None]


# -- nothing that a peer sends raises ---------------------------------------------------------------------------------

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=6,
)
params_like = st.dictionaries(
    st.sampled_from(["sessionId", "commandId", "limit", "cursor", "input", "clientInfo", "capabilities", "turnId"]),
    json_values | st.just(COMMAND) | st.just([{"type": "text", "text": "t"}]),
)
message_like = st.fixed_dictionaries(
    {"jsonrpc": st.just("2.0")},
    optional={
        "id": st.integers(max_value=5) | st.text(max_size=3) | json_values,
        "method": st.sampled_from([*TABLE, "initialized", "userInput/engaged"]) | json_values,
        "params": params_like | json_values,
        "result": json_values,
        "error": json_values,
    },
)
lines = (message_like | json_values).map(lambda value: json.dumps(value).encode()) | st.binary(max_size=60)


@given(st.booleans(), st.lists(lines, max_size=8))
def test_whatever_comes_is_accepted_or_answered(open_first: bool, received: list[bytes]) -> None:
    connection = ready() if open_first else fresh()
    if open_first:
        connection.request("approval/request")
        sent(connection)
    for data in received:
        connection.receive_data(data + b"\n")
        connection.receive_frame(data)
    connection.events()
    sent(connection)


@given(message_like.filter(lambda body: isinstance(body.get("method"), str)))
def test_every_request_is_answered_exactly_once(body: dict) -> None:
    connection = ready()
    connection.receive_data(json.dumps(body).encode() + b"\n")
    calls = [event for event in connection.events() if isinstance(event, Call)]
    answers = sent(connection)
    for opened in calls:
        connection.reply(opened, {})
    answers += sent(connection)
    assert len(answers) == ("id" in body)
    for told in answers:
        assert told["id"] == (body["id"] if type(body["id"]) in (int, str) else None)
