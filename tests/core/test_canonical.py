"""JSON in its three forms: stored, at the edge, canonical."""

from __future__ import annotations

import enum
import json
import math
import os
import struct
import subprocess
import sys
import uuid

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from strategies import json_values, texts

from refold import canonical as module
from refold.canonical import canonical, canonical_row, decode, decode_strict, digest, encode, encode_known, type_name
from refold.errors import InvalidJson

LOOP: list = []
LOOP.append(LOOP)

UNWRITABLE = {
    "nan": math.nan,
    "infinity": [-math.inf],
    "nan beside null": [None, math.nan],
    "lone surrogate": "\ud800",
    "lone surrogate beside a float": ["a\udfff", 1e300],
    "surrogate key": {"\ud800": 1},
    "surrogate key beside a float": {"\ud800": 1e300},
    "integer key": {1: 2},
    "boolean key": {True: [2**70]},
    "null key": [{None: 1e300}],
    "bytes": b"x",
    "set": {1},
    "object": object(),
    "uuid": uuid.UUID(int=0),
    "uuid beside a float": [uuid.UUID(int=0), 1e300],
    "itself": LOOP,
    "digits beyond the interpreter's limit": 10**5000,
}


@pytest.mark.parametrize("write", [encode, canonical, digest])
@pytest.mark.parametrize("value", UNWRITABLE.values(), ids=UNWRITABLE.keys())
def test_what_json_cannot_carry_is_refused_by_every_writer(write, value):
    with pytest.raises(InvalidJson) as caught:
        write(value)
    assert caught.value.data["reason"] in ("value", "depth")


# -- stored -----------------------------------------------------------------------------------------------------------


def exact(value):
    """A form in which 1, 1.0, True and "1" differ, and -0.0 differs from 0.0."""
    if isinstance(value, dict):
        return {key: exact(item) for key, item in value.items()}
    return list(map(exact, value)) if isinstance(value, list) else (type(value).__name__, repr(value))


@given(json_values)
def test_stored_text_gives_back_exactly_what_went_in(value):
    text = encode(value)
    assert exact(decode(text)) == exact(value)
    assert exact(decode(text.encode())) == exact(value)


@given(json_values)
def test_what_is_known_to_be_json_is_written_without_a_look_and_comes_out_the_same(value):
    assert exact(decode(encode_known(value))) == exact(value)


def test_what_no_text_can_hold_is_refused_also_if_it_was_trusted():
    for value in ("\ud800", {"a": ["\udfff"]}):
        with pytest.raises(InvalidJson):
            encode_known(value)


@given(json_values)
def test_stored_text_is_the_standard_librarys_whichever_way_it_is_written(value):
    assert encode(value) == json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def test_stored_text_is_compact_and_keeps_letters():
    assert encode({"b": [1, 2.5, "é"], "a": None}) == '{"b":[1,2.5,"é"],"a":null}'


def test_a_tuple_and_a_named_string_are_stored_as_array_and_string():
    class Word(enum.StrEnum):
        NO = "no"

    assert encode((("a", 1), Word.NO)) == '[["a",1],"no"]'
    assert canonical(((1e300,), Word.NO)) == b'[[1e+300],"no"]'


@pytest.mark.parametrize("text", ["", "{", "nul", b"\xff"])
def test_stored_text_that_is_no_json_is_a_typed_error(text):
    with pytest.raises(InvalidJson):
        decode(text)


# -- canonical --------------------------------------------------------------------------------------------------------

APPENDIX_B = """
0000000000000000 0
8000000000000000 0
0000000000000001 5e-324
8000000000000001 -5e-324
7fefffffffffffff 1.7976931348623157e+308
ffefffffffffffff -1.7976931348623157e+308
4340000000000000 9007199254740992
c340000000000000 -9007199254740992
4430000000000000 295147905179352830000
44b52d02c7e14af5 9.999999999999997e+22
44b52d02c7e14af6 1e+23
44b52d02c7e14af7 1.0000000000000001e+23
444b1ae4d6e2ef4e 999999999999999700000
444b1ae4d6e2ef4f 999999999999999900000
444b1ae4d6e2ef50 1e+21
3eb0c6f7a0b5ed8c 9.999999999999997e-7
3eb0c6f7a0b5ed8d 0.000001
41b3de4355555553 333333333.3333332
41b3de4355555554 333333333.33333325
41b3de4355555555 333333333.3333333
41b3de4355555556 333333333.3333334
41b3de4355555557 333333333.33333343
becbf647612f3696 -0.0000033333333333333333
43143ff3c1cb0959 1424953923781206.2
"""


@pytest.mark.parametrize(("bits", "text"), [line.split() for line in APPENDIX_B.strip().splitlines()])
def test_floats_are_written_as_rfc_8785_appendix_b_says(bits, text):
    (number,) = struct.unpack(">d", bytes.fromhex(bits))
    assert canonical(number).decode() == text


def test_the_sample_document_of_rfc_8785():
    value = json.loads(
        r"""{"numbers": [333333333.33333329, 1E30, 4.50, 2e-3, 0.000000000000000000000000001],
             "string": "\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/", "literals": [null, true, false]}"""
    )
    expected = (
        r'{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],'
        r'"string":"€$\u000f\nA' + "'" + r'B\"\\\\\"/"}'
    )
    assert canonical(value).decode() == expected


def test_members_are_ordered_by_utf_16_code_units():
    keys = ["\r", "1", "\x80", "ö", "€", "😀", "\ufb33"]  # U+1F600 goes before U+FB33: its first unit is 0xD83D
    assert list(json.loads(canonical(dict.fromkeys(reversed(keys), 0)))) == keys


@given(json_values)
def test_the_fast_path_writes_what_the_slow_one_writes(value):
    assert canonical(value) == module._canonical_slow(value)


@given(st.one_of(st.integers(), st.integers(-(2**70), 2**70), st.integers(-(10**60), 10**60)))
def test_integers_of_any_size_are_written_with_all_their_digits(number):
    assert canonical([number]) == b"[%d]" % number


@given(st.dictionaries(texts, json_values, max_size=5), st.randoms())
def test_the_order_in_which_members_were_written_does_not_matter(value, random):
    members = list(value.items())
    random.shuffle(members)
    assert digest(dict(members)) == digest(value)


def test_what_is_equal_and_what_is_not():
    for left, right in [(1.0, 1), (-0.0, 0), (1e16, 10**16), (4.50, 4.5)]:
        assert digest(left) == digest(right)
    for left, right in [(2**53, 2**53 + 1), (1, True), (1, "1"), (None, "null"), ("é", "e\u0301"), (1e21, 10**21)]:
        assert digest(left) != digest(right)


GOLDEN = {
    "null": (None, "74234e98afe7498fb5daf1f36ac2d78acc339464f950703b8c019892f982b90b"),
    "text": ("wörk", "1dd127699de65b0d3577cac8a36dee98e7c012c64c0bcd3697958c0f9deababb"),
    "numbers": (
        [1.0, 2**53 + 1, 10**30, 1e21, -0.0, 0.1],
        "328ec6700a2f9add2703fe55ac7503e2018f0494f05965c3c7f06580223b2dfc",
    ),
    "object": (
        {"é": 1, "a": [True, None], "😀": {"z": "\n", "\ufb33": 0.5}},
        "674c55b2ca9013d646f4c92593004903ddf71559bc18d42a587d3c631487ca85",
    ),
}


@pytest.mark.parametrize(("value", "expected"), GOLDEN.values(), ids=GOLDEN.keys())
def test_golden_digests(value, expected):
    assert digest(value) == expected


def test_digests_do_not_depend_on_the_process():
    program = (
        "from refold.canonical import digest; print(digest({'b': {'é', 'é'}.pop(), 'a': [1.5, {'y': 1, 'x': 2}]}))"
    )
    came = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in ("1", "77")
    }
    assert came == {digest({"a": [1.5, {"x": 2, "y": 1}], "b": "é"}) + "\n"}


# -- at the edge ------------------------------------------------------------------------------------------------------


@given(json_values)
def test_the_edge_reads_what_is_fine(value):
    text = json.dumps(value)
    assert exact(decode_strict(text)) == exact(value)
    assert exact(decode_strict(text.encode())) == exact(value)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b'"\xff"', "utf8"),
        (b'"\xed\xa0\x80"', "utf8"),
        ("", "syntax"),
        ("1 2", "syntax"),
        ("[1,]", "syntax"),
        ("'a'", "syntax"),
        ('"\x01"', "syntax"),
        ("\ufeff1", "syntax"),
        ("01", "syntax"),
        ("NaN", "number"),
        ("[-Infinity]", "number"),
        ("1e400", "number"),
        ("-1e999", "number"),
        ("1" * 65, "number_length"),
        ("0." + "1" * 63, "number_length"),
        ('{"a":1,"b":2,"a":3}', "duplicate_key"),
        (r'{"a":1,"\u0061":3}', "duplicate_key"),
        ('"\ud800"', "surrogate"),
        (r'"\ud800"', "surrogate"),
        (r'["\uDFFFx"]', "surrogate"),
        (r'{"\udc00":1}', "surrogate"),
        (r'"\ude00\ud83d"', "surrogate"),
        ("[" * 65 + "]" * 65, "depth"),
        ('{"a":' * 65 + "1" + "}" * 65, "depth"),
        ("[" * 200_000, "depth"),
    ],
)
def test_the_edge_refuses_by_name(text, reason):
    with pytest.raises(InvalidJson) as caught:
        decode_strict(text)
    assert caught.value.data["reason"] == reason


def test_the_edge_accepts_up_to_its_limits():
    assert decode_strict("[" * 64 + "]" * 64)
    assert decode_strict("[" + "[]," * 100 + "[]]") == [[]] * 101  # many brackets are not many levels
    assert decode_strict("[" * 63 + "[],{}" + "]" * 63)
    assert decode_strict('{"a":' * 64 + "1" + "}" * 64)
    assert decode_strict("1" * 64) == int("1" * 64)
    assert decode_strict(r'"\ud83d\ude00 \\ud800"') == "😀 \\ud800"
    assert decode_strict("18446744073709551616") == 2**64
    assert decode_strict(json.dumps(dict.fromkeys(map(str, range(10_000)), 0)))


def test_limits_can_be_set():
    for text, limit in [("[[1]]", {"max_depth": 1}), ('{"a":1,"b":2}', {"max_keys": 1}), ("123", {"max_number": 2})]:
        assert decode_strict(text)
        with pytest.raises(InvalidJson):
            decode_strict(text, **limit)
    with pytest.raises(InvalidJson, match="10001 keys"):
        decode_strict(json.dumps(dict.fromkeys(map(str, range(10_001)), 0)))


def test_type_names_are_jsons():
    named = {"null": None, "boolean": True, "number": 1, "string": "", "array": [], "object": {}}
    assert {type_name(value) for value in named.values()} == set(named)
    assert type_name(True) == "boolean" and type_name(1.5) == "number" and type_name(()) == "array"
    assert type_name(b"") == "bytes"


@given(st.lists(st.none() | st.text() | st.integers()))
@example(['é\n"', 2**64, None])
@example([-(2**63), 2**53 + 1, "\x00"])
def test_a_row_of_texts_and_integers_has_one_spelling(members):
    assert canonical_row(members) == canonical(members)


def test_a_row_with_a_lone_surrogate_is_refused_as_anywhere():
    with pytest.raises(InvalidJson):
        canonical_row(["\ud800"])
