"""The method table against the package, and the way from a name and raw params to a call."""

import typing

import muse_code_msp as msp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refold.errors import RefoldError
from refold.protocol import methods
from refold.protocol.codes import error_object
from refold.protocol.messages import BOOKMARKS, GRANTABLE
from refold.protocol.methods import (
    CLIENT_NOTIFICATIONS,
    NOTIFICATION_CAPABILITIES,
    PROTECTED,
    SERVABLE,
    TABLE,
    Availability,
)

COMMAND = "0198f0ab-8888-7000-8000-0000000000c4"
WITHHELD = {"session/resume", "session/fork", "session/read", "session/rename"}
GATED = {
    "session/userShell",
    "feedback/submit",
    "computerUseSetup/read",
    "computerUseSetup/start",
    "computerUseSetup/check",
}


def refusal(name: str, params: object, granted: tuple[str, ...] = ()) -> RefoldError:
    with pytest.raises(RefoldError) as caught:
        methods.parse(TABLE[name], params, granted)
    return caught.value


# -- the table --------------------------------------------------------------------------------------------------------


def test_the_table_has_every_method_of_the_package() -> None:
    assert set(TABLE) == set(msp.METHODS)
    assert all(name == row.name for name, row in TABLE.items())


@pytest.mark.parametrize("name", TABLE)
def test_a_row_mutates_iff_the_package_wants_a_command_id(name: str) -> None:
    params = msp.METHODS[name]["params"]
    wanted = params is not None and "commandId" in getattr(msp, params).__required_keys__
    assert TABLE[name].mutating is wanted


def test_what_is_gated_needs_a_capability_that_is_never_granted() -> None:
    gated = {name: row for name, row in TABLE.items() if row.availability is Availability.GATED}
    assert set(gated) == GATED
    assert {row.capability for row in gated.values()} <= set(msp.GRANTABLE_CAPABILITIES) - set(GRANTABLE)


def test_an_ephemeral_host_withholds_what_promises_to_last() -> None:
    assert {name for name, row in TABLE.items() if row.durable_only} == WITHHELD


def test_what_cannot_be_opted_out_of() -> None:
    assert set(PROTECTED) == {"approval/resolved", "userInput/settled", "view/gap", "session/leaveCompleted"}


def test_the_other_lists_name_notifications_of_the_package() -> None:
    assert {*PROTECTED, *CLIENT_NOTIFICATIONS, *NOTIFICATION_CAPABILITIES} <= set(msp.NOTIFICATIONS)
    assert {*NOTIFICATION_CAPABILITIES.values()} <= set(GRANTABLE)


# -- find -------------------------------------------------------------------------------------------------------------


def found(
    name: str, *, handlers: typing.Collection[str] = SERVABLE, granted: tuple[str, ...] = (), ephemeral=False
) -> str:
    """`served`, or the kind of the refusal."""
    try:
        return "served" if methods.find(name, handlers, granted, ephemeral) is TABLE[name] else "another row"
    except RefoldError as error:
        return error.kind


@pytest.mark.parametrize("name", TABLE)
def test_what_each_method_answers_by_default(name: str) -> None:
    expected = dict.fromkeys(SERVABLE, "served") | dict.fromkeys([*GATED, "session/rename"], "capability_required")
    assert found(name) == expected.get(name, "method_not_found")


@pytest.mark.parametrize("name", sorted(SERVABLE))
def test_a_row_without_a_handler_is_not_there(name: str) -> None:
    assert found(name, handlers=SERVABLE - {name}, granted=GRANTABLE) == "method_not_found"
    assert found(name, handlers={name}, granted=GRANTABLE) == "served"


@pytest.mark.parametrize("name", sorted(SERVABLE))
def test_what_is_withheld_is_not_there(name: str) -> None:
    expected = "method_not_found" if name in WITHHELD else "served"
    assert found(name, granted=GRANTABLE, ephemeral=True) == expected


@given(st.text())
def test_no_other_name_is_served(name: str) -> None:
    with pytest.raises(RefoldError) as caught:
        methods.find("x" + name, SERVABLE, GRANTABLE, ephemeral=False)
    assert caught.value.kind == "method_not_found"


def test_a_long_name_is_not_repeated_whole() -> None:
    with pytest.raises(RefoldError) as caught:
        methods.find("x" * 10_000, SERVABLE, GRANTABLE, ephemeral=False)
    assert len(caught.value.message) < 200


def test_the_text_of_a_missing_capability() -> None:
    with pytest.raises(RefoldError) as caught:
        methods.find("session/userShell", SERVABLE, GRANTABLE, ephemeral=False)
    assert error_object(caught.value) == {
        "code": -32010,
        "message": "session/userShell requires the userShell capability",
        "data": {"kind": "capabilityRequired", "retryable": False, "capability": "userShell"},
    }


def test_only_what_works_is_granted() -> None:
    assert methods.grantable(SERVABLE, ephemeral=False) == list(GRANTABLE)
    assert methods.grantable(SERVABLE, ephemeral=True) == ["sessionListStream", BOOKMARKS]
    assert methods.grantable(SERVABLE - {"session/rename"}, ephemeral=False) == ["sessionListStream", BOOKMARKS]


# -- parse ------------------------------------------------------------------------------------------------------------


def test_params_are_plain_and_keep_the_names_of_the_wire() -> None:
    raw = {
        "commandId": COMMAND,
        "modelId": "echo",
        "providerId": None,
        "workspaceRoots": ["/a"],
        "futureOptionalField": 1,
        "config": {"mcpServers": {}, "theme": "dark"},
    }
    assert methods.parse(TABLE["session/start"], raw) == {
        "commandId": COMMAND,
        "modelId": "echo",
        "providerId": None,
        "workspaceRoots": ["/a"],
        "config": {"mcpServers": {}},
    }
    assert methods.parse(TABLE["session/read"], {"sessionId": "any text", "x": 1}) == {"sessionId": "any text"}


def test_no_params_are_empty_params() -> None:
    for raw in (None, {}):
        assert methods.parse(TABLE["session/list"], raw) == {}


@pytest.mark.parametrize(
    ("name", "params", "member"),
    [
        ("view/page", {"sessionId": "s"}, "`limit`"),
        ("view/page", {"limit": 1}, "`sessionId`"),
        ("view/page", {"sessionId": "s", "limit": 0}, "$.limit"),
        ("view/page", {"sessionId": "s", "limit": 1001}, "$.limit"),
        ("view/page", {"sessionId": "s", "limit": 10**40}, "$.limit"),
        ("view/page", {"sessionId": "s", "limit": True}, "$.limit"),
        ("view/page", {"sessionId": "s", "limit": 1.5}, "$.limit"),
        ("view/page", {"sessionId": "s", "limit": "1"}, "$.limit"),
        ("view/page", {"sessionId": "s", "limit": 1, "cursor": None}, "$.cursor"),
        ("view/page", {"sessionId": "s", "limit": 1, "direction": "sideways"}, "$.direction"),
        ("view/page", {"sessionId": "s", "limit": 1, "anchor": "newest"}, "`anchor`"),
        (
            "view/page",
            {"sessionId": "s", "limit": 1, "anchor": "latestCompaction", "cursor": "c"},
            "`anchor` and `cursor`",
        ),
        ("session/list", {"limit": 201}, "$.limit"),
        ("session/list", {"limit": 0}, "$.limit"),
        ("item/readOutput", {"sessionId": "s", "itemId": "i", "outputRef": "o", "offsetBytes": -1}, "$.offsetBytes"),
        ("item/readOutput", {"sessionId": "s", "itemId": "i", "outputRef": "o", "lengthBytes": 0}, "$.lengthBytes"),
        ("turn/start", {"sessionId": "s", "input": [{"type": "text", "text": "t"}]}, "`commandId`"),
        ("turn/start", {"commandId": COMMAND, "sessionId": "s"}, "`input`"),
        ("turn/start", {"commandId": COMMAND, "sessionId": "s", "input": []}, "$.input"),
        ("turn/start", {"commandId": COMMAND, "sessionId": "s", "input": [{"type": "song"}]}, "$.input[0].type"),
        ("turn/start", {"commandId": COMMAND, "sessionId": "s", "input": [{"type": "text"}]}, "`input[0]`"),
        ("turn/steer", {"commandId": COMMAND, "sessionId": "s", "expectedTurnId": "t", "input": []}, "$.input"),
        ("session/resume", {"commandId": COMMAND, "sessionId": "s", "history": "all"}, "$.history"),
        ("session/resume", {"commandId": COMMAND, "sessionId": "s", "recoveryMode": None}, "$.recoveryMode"),
        ("session/start", {"commandId": COMMAND, "config": {"mcpServers": {"a": {"transport": "x"}}}}, "transport"),
        ("session/start", {"commandId": 7}, "$.commandId"),
        ("session/start", {"commandId": "0198f0ab"}, "commandId"),
        ("session/start", {"commandId": COMMAND.upper()}, "commandId"),
        ("session/start", {"commandId": "0198f0ab-8888-4000-8000-0000000000c4"}, "commandId"),
        ("model/list", [], "object"),
        ("model/list", "x", "object"),
    ],
)
def test_a_refusal_names_the_member(name: str, params: object, member: str) -> None:
    error = refusal(name, params)
    assert error_object(error)["code"] == -32602
    assert member in error.message


@pytest.mark.parametrize("limit", [1, 1000])
def test_the_ends_of_the_range_are_inside(limit: int) -> None:
    params = {"sessionId": "s", "limit": limit, "anchor": "latestCompaction", "direction": "backward"}
    assert methods.parse(TABLE["view/page"], params) == params


def test_a_page_needs_neither_anchor_nor_cursor() -> None:
    for more in ({}, {"cursor": "c"}):
        params = {"sessionId": "s", "limit": 200, **more}
        assert methods.parse(TABLE["view/page"], params) == params


def test_parts_that_are_no_text_need_none() -> None:
    params = {"commandId": COMMAND, "sessionId": "s", "input": [{"type": "image", "base64Data": "", "mediaType": "i"}]}
    assert methods.parse(TABLE["turn/start"], params) == params


SERVERS = {"mcpServers": {"a": {"transport": "stdio", "command": "x", "args": ["y"]}}}


@pytest.mark.parametrize(
    ("name", "params", "capability"),
    [
        ("session/start", {"commandId": COMMAND, "config": SERVERS}, "sessionMcp"),
        ("session/resume", {"commandId": COMMAND, "sessionId": "s", "config": SERVERS}, "sessionMcp"),
        (
            "turn/start",
            {
                "commandId": COMMAND,
                "sessionId": "s",
                "input": [{"type": "text", "text": ""}],
                "userShell": {"commandText": "ls"},
            },
            "userShell",
        ),
    ],
)
def test_members_need_their_grant_as_methods_do(name: str, params: dict, capability: str) -> None:
    error = refusal(name, params, GRANTABLE)
    assert (error.kind, error.data) == ("capability_required", {"capability": capability})
    assert methods.parse(TABLE[name], params, (capability,)) == params


@given(st.sampled_from(sorted(SERVABLE)), st.dictionaries(st.text(max_size=9), st.none() | st.integers() | st.text()))
def test_whatever_the_params_the_refusal_is_typed(name: str, params: dict) -> None:
    try:
        assert isinstance(methods.parse(TABLE[name], params), dict)
    except RefoldError as error:
        assert error_object(error)["code"] == -32602
