"""Framing and JSON-RPC: any chunking gives the same lines, any frame gives a message, our own frames stay whole."""

import json
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from refold.canonical import encode
from refold.errors import InvalidJson, RefoldError
from refold.protocol import jsonrpc
from refold.protocol.jsonrpc import (
    FRAME_LIMIT,
    HEAD_BYTES,
    ID_CHARS,
    Caps,
    FrameTooLarge,
    Line,
    Notification,
    Oversize,
    Refused,
    Request,
    Response,
    Splitter,
)

CAPS = Caps()


def chunked(data: bytes, cuts: list[int]) -> list[bytes]:
    places = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[start:end] for start, end in pairwise(places)]


def read(text: str | bytes) -> jsonrpc.Message:
    return jsonrpc.read(text, CAPS)


# -- lines ------------------------------------------------------------------------------------------------------------

streams = st.lists(st.binary(max_size=40) | st.sampled_from([b"\n", b"\r\n", b"\r", b"x" * 30, b"x" * 31])).map(
    b"".join
)


@given(streams, st.lists(st.integers(min_value=0), max_size=12), st.integers(min_value=1, max_value=31))
def test_lines_do_not_depend_on_chunks(stream: bytes, cuts: list[int], limit: int) -> None:
    at_once = Splitter(limit).feed(stream)
    splitter = Splitter(limit)
    assert [line for chunk in chunked(stream, cuts) for line in splitter.feed(chunk)] == at_once
    one_by_one = Splitter(limit)
    assert [line for byte in stream for line in one_by_one.feed(bytes([byte]))] == at_once


@given(streams, st.integers(min_value=1, max_value=31))
def test_lines_are_those_of_a_plain_split(stream: bytes, limit: int) -> None:
    *ended, rest = stream.split(b"\n")
    expected: list[Line | Oversize] = []
    for raw in ended:
        if len(raw) > limit:
            expected.append(Oversize(raw[:limit]))
        elif line := raw.removesuffix(b"\r"):
            expected.append(Line(line))
    if len(rest) > limit:
        expected.append(Oversize(rest[:limit]))
    assert Splitter(limit).feed(stream) == expected


def test_memory_is_bounded_while_an_oversize_line_passes() -> None:
    splitter = Splitter(limit=100_000)
    found = []
    for _ in range(100):
        found += splitter.feed(b"x" * 9_999)
        assert splitter.buffered <= 100_000
    assert found == [Oversize(b"x" * HEAD_BYTES)]
    assert splitter.feed(b"x\nnext\n") == [Line(b"next")]


def test_a_line_of_exactly_the_limit_is_whole() -> None:
    assert Splitter(4).feed(b"abcd\nabcde\nab\r\n") == [Line(b"abcd"), Oversize(b"abcd"), Line(b"ab")]


def test_an_unfinished_line_is_kept_not_reported() -> None:
    splitter = Splitter()
    assert splitter.feed(b'{"id":') == []
    assert splitter.buffered == 6


# -- messages ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        ('{"jsonrpc":"2.0","id":1,"method":"m"}', Request(1, "m", None)),
        ('{"jsonrpc":"2.0","id":"1","method":"m","params":{"a":1},"trace":{}}', Request("1", "m", {"a": 1})),
        ('{"jsonrpc":"2.0","id":-5,"method":"m","result":{}}', Request(-5, "m", None)),
        ('{"jsonrpc":"2.0","method":"m"}', Notification("m", None)),
        ('{"jsonrpc":"2.0","id":7,"result":{"a":1}}', Response(7, {"a": 1}, None)),
        ('{"jsonrpc":"2.0","id":null,"error":{"code":1}}', Response(None, None, {"code": 1})),
    ],
)
def test_the_four_shapes(frame: str, message: jsonrpc.Message) -> None:
    assert read(frame) == message
    assert read(frame.encode()) == message


@pytest.mark.parametrize(
    ("frame", "request_id", "kind"),
    [
        ("garbage", None, "parse_error"),
        ('{"jsonrpc":"2.0","id":1', None, "parse_error"),
        (b"\xff\xfe", None, "parse_error"),
        ('{"jsonrpc":"2.0","id":1,"id":2,"method":"m"}', None, "parse_error"),
        ('{"jsonrpc":"2.0","id":1,"method":"m","params":{"a":NaN}}', None, "parse_error"),
        ('{"jsonrpc":"2.0","id":1,"method":"m","params":' + "[" * 64 + "]" * 64 + "}", None, "parse_error"),
        ('{"jsonrpc":"2.0","id":1,"method":"m","params":{"a":' + "1" * 65 + "}}", None, "parse_error"),
        ("[1]", None, "not_a_request"),
        ('[{"jsonrpc":"2.0","id":1,"method":"m"}]', None, "not_a_request"),
        ("7", None, "not_a_request"),
        ("{}", None, "not_a_request"),
        ('{"jsonrpc":"2.0","id":1}', 1, "not_a_request"),
        ('{"id":"a","method":"m"}', "a", "not_a_request"),
        ('{"jsonrpc":"1.0","id":"a","method":"m"}', "a", "not_a_request"),
        ('{"jsonrpc":"2.0","id":1,"method":5}', 1, "not_a_request"),
        ('{"jsonrpc":"2.0","id":true,"method":"m"}', None, "not_a_request"),
        ('{"jsonrpc":"2.0","id":1.0,"method":"m"}', None, "not_a_request"),
        ('{"jsonrpc":"2.0","id":null,"method":"m"}', None, "not_a_request"),
        ('{"jsonrpc":"2.0","id":[1],"method":"m"}', None, "not_a_request"),
        ('{"jsonrpc":"2.0","id":"' + "x" * (ID_CHARS + 1) + '","method":"m"}', None, "not_a_request"),
    ],
)
def test_what_is_no_message_is_refused(frame: str | bytes, request_id: object, kind: str) -> None:
    refused = read(frame)
    assert isinstance(refused, Refused)
    assert (refused.id, refused.error.kind) == (request_id, kind)
    assert type(refused.id) is type(request_id)


def test_a_malformed_answer_is_not_refused_under_its_id() -> None:
    # 5 is an id of ours there; an error for 5 would end the client's own request 5.
    refused = read('{"id":5,"result":{}}')
    assert isinstance(refused, Refused) and refused.id is None


def test_one_and_its_text_are_different_ids() -> None:
    first, second = read('{"jsonrpc":"2.0","id":1,"method":"m"}'), read('{"jsonrpc":"2.0","id":"1","method":"m"}')
    assert isinstance(first, Request) and isinstance(second, Request)
    assert first.id != second.id


@given(st.binary(max_size=200) | st.text(max_size=200))
def test_every_frame_gives_a_message(frame: bytes | str) -> None:
    assert isinstance(read(frame), Request | Notification | Response | Refused)


# -- the id of a frame over the cap -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("head", "request_id"),
    [
        ('{"jsonrpc":"2.0","id":"big","method":"m","params":{"x":"xxx', "big"),
        ('{"id":7,"jsonrpc":"2.0","method":"m","params":{"x":"xxx', 7),
        (' { "method" : "m" , "id" : -7 , "params":{"x":"xxx', -7),
        ('{"method":"m\\"","id":"\\u00e9","x":null,"y":"xxx', "é"),
        ('{"id":true,"method":"m","x":"xxx', None),
        ('{"method":"m","params":{"x":1},"id":7,"y":"xxx', None),
        ('{"jsonrpc":"2.0","id":7,"result":{"x":"xxx', None),
        ('{"jsonrpc":"2.0","method":"m","x":"xxx', None),
        ('{"method":"m","id":12345', None),
        ('{"method":"m","id":"abc', None),
        ('{"method":"m","id":"' + "x" * (ID_CHARS + 1) + '","y":"xxx', None),
        ('{"method":"m","id":' + "1" * 65 + ',"y":"xxx', None),
        ('{"method":"m","id":"\\ud800","y":"xxx', None),
        ("xxx", None),
        ("", None),
    ],
)
def test_the_id_is_recovered_if_a_request_shows_it(head: str, request_id: object) -> None:
    refused = jsonrpc.read_oversize(head.encode(), 99)
    assert (refused.id, type(refused.id)) == (request_id, type(request_id))
    assert refused.error.kind == ("parse_error" if request_id is None else "input_too_large")
    assert refused.error.data == {"limit_bytes": 99}


scalars = st.none() | st.booleans() | st.text(max_size=20) | st.integers(min_value=-(10**20), max_value=10**20)


@given(scalars, st.permutations(["id", "method", "jsonrpc", "extra"]), scalars, st.integers(min_value=0, max_value=200))
def test_a_recovered_id_is_the_one_that_was_sent(sent: object, order: list[str], extra: object, cut: int) -> None:
    members = {"id": sent, "method": "m", "jsonrpc": "2.0", "extra": extra}
    frame = json.dumps({name: members[name] for name in order} | {"params": {"x": "x" * 300}})
    refused = jsonrpc.read_oversize(frame.encode()[:cut], 1)
    assert refused.id is None or (refused.id == sent and type(refused.id) is type(sent))


@given(st.binary(max_size=HEAD_BYTES))
@example(b'{"a":' * 800)
@example(b'{"a' + b"\\" * 4000)
def test_no_head_is_too_strange(head: bytes) -> None:
    assert jsonrpc.read_oversize(head, 1).error.kind in {"parse_error", "input_too_large"}


# -- writing ----------------------------------------------------------------------------------------------------------

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(), json_values, max_size=3))
@example({"text": "one\r\ntwo\u2028three"})
def test_our_frames_are_one_line_each(value: dict) -> None:
    for frame in (
        jsonrpc.write_result("é", value),
        jsonrpc.write_request(3, "m", value),
        jsonrpc.write_notification("m", value, 5),
    ):
        assert frame.endswith(b"\n") and frame.count(b"\n") == 1 and b"\r" not in frame
        assert Splitter().feed(frame) == [Line(frame[:-1])]
        body = json.loads(frame)
        assert body["jsonrpc"] == "2.0"
        assert body.get("result", body.get("params")) == value


def test_the_time_of_a_notification_stands_at_the_top() -> None:
    assert json.loads(jsonrpc.write_notification("m", {"a": 1}, 5)) == {
        "jsonrpc": "2.0",
        "method": "m",
        "params": {"a": 1},
        "emittedAtMs": 5,
    }


@given(st.text(), st.dictionaries(st.text(), json_values, max_size=3))
def test_a_notification_that_was_written_for_many_is_the_one_that_is_written_for_one(method: str, params: dict) -> None:
    text = encode({"method": method, "params": params}).encode()
    frame = jsonrpc.wrap_notification(text, 5)
    assert frame == jsonrpc.write_notification(method, params, 5)
    assert jsonrpc.wrap_notification(text, 5, len(frame)) == frame
    with pytest.raises(FrameTooLarge):
        jsonrpc.wrap_notification(text, 5, len(frame) - 1)


def test_no_params_are_left_out_not_null() -> None:
    assert set(json.loads(jsonrpc.write_notification("m", None, None))) == {"jsonrpc", "method"}
    assert set(json.loads(jsonrpc.write_request(1, "m", None))) == {"jsonrpc", "id", "method"}


def test_the_cap_counts_bytes_and_the_line_end() -> None:
    frame = jsonrpc.write_result(1, {"a": "é"})
    assert jsonrpc.write_result(1, {"a": "é"}, len(frame)) == frame
    with pytest.raises(FrameTooLarge) as refused:
        jsonrpc.write_result(1, {"a": "é"}, len(frame) - 1)
    assert refused.value.data == {"limit_bytes": len(frame) - 1}


def test_a_result_that_is_no_json_is_not_sent() -> None:
    with pytest.raises(InvalidJson):
        jsonrpc.write_result(1, {"a": float("nan")})


def test_an_error_frame() -> None:
    error = RefoldError("gone", kind="session_not_found")
    assert json.loads(jsonrpc.write_error("a", error, {"sessionId": "s"})) == {
        "jsonrpc": "2.0",
        "id": "a",
        "error": {"code": -32020, "message": "gone", "data": {"kind": "sessionNotFound", "sessionId": "s"}},
    }
    assert json.loads(jsonrpc.write_error(None, RefoldError("?", kind="parse_error")))["id"] is None


@pytest.mark.parametrize(
    "error",
    [
        RefoldError("many", kind="session_ambiguous", paths=["x" * FRAME_LIMIT]),
        RefoldError("a lone \ud800", kind="session_ambiguous"),
    ],
)
def test_an_error_that_cannot_be_sent_whole_still_says_its_kind(error: RefoldError) -> None:
    assert json.loads(jsonrpc.write_error(1, error)) == {
        "jsonrpc": "2.0",
        "id": 1,
        "error": {"code": -32022, "message": "sessionAmbiguous", "data": {"kind": "sessionAmbiguous"}},
    }
