"""Own structs say what the package's types say, and the answer to `initialize` is one that clients take."""

import types
import typing

import msgspec
import muse_code_msp as msp
import pytest

from refold.protocol import messages
from refold.protocol.messages import HostInfo, InitializeParams, Limits, initialize_result
from refold.protocol.methods import TABLE, Availability

OWN = {
    name: row.params
    for name, row in TABLE.items()
    if isinstance(row.params, type) and issubclass(row.params, msgspec.Struct)
}


def shape(tp: object) -> object:
    """A type as plain data, so that a struct and the TypedDict that it stands for are equal. Ranges are left out."""
    origin = typing.get_origin(tp)
    if origin is typing.Annotated:
        return shape(typing.get_args(tp)[0])
    if origin in (typing.Union, types.UnionType):
        return frozenset(shape(arm) for arm in typing.get_args(tp) if arm is not msgspec.UnsetType)
    if origin is typing.Literal:
        return ("one of", frozenset(typing.get_args(tp)))
    if origin in (list, dict):
        return (origin.__name__, *map(shape, typing.get_args(tp)))
    if typing.is_typeddict(tp):
        hints = typing.get_type_hints(tp)
        return ("object", frozenset((name, name in tp.__required_keys__, shape(hint)) for name, hint in hints.items()))
    if isinstance(tp, type) and issubclass(tp, msgspec.Struct):
        return ("object", frozenset(_struct_members(tp)))
    return tp


def _struct_members(tp: type[msgspec.Struct]) -> typing.Iterator[tuple[str, bool, object]]:
    hints = typing.get_type_hints(tp, include_extras=True)
    for member in msgspec.structs.fields(tp):
        yield member.encode_name, member.required, _alone(shape(hints[member.name]))
    if (config := tp.__struct_config__).tag_field is not None:
        yield config.tag_field, True, ("one of", frozenset([config.tag]))


def _alone(value: object) -> object:
    """A union of one arm, which is what `T | UnsetType` leaves, is that arm."""
    return next(iter(value)) if isinstance(value, frozenset) and len(value) == 1 else value


def test_the_methods_with_own_structs() -> None:
    assert {"initialize", "session/start", "session/resume", "view/page"} <= set(OWN)


@pytest.mark.parametrize("name", OWN)
def test_an_own_struct_has_the_members_of_the_package(name: str) -> None:
    assert shape(OWN[name]) == shape(getattr(msp, msp.METHODS[name]["params"]))


def test_the_shapes_tell_types_apart() -> None:
    """The comparison above is worth something: it sees a name, a type, a null and a requirement."""

    class Wrong(msgspec.Struct, rename="camel"):
        limit: int
        session_id: str | None

    class Optional(msgspec.Struct, rename="camel"):
        limit: int | msgspec.UnsetType = msgspec.UNSET
        session_id: str | msgspec.UnsetType = msgspec.UNSET

    class Right(msgspec.Struct, rename="camel"):
        limit: int
        session_id: str

    class Typed(typing.TypedDict):
        limit: int
        sessionId: str

    assert shape(Right) == shape(Typed)
    assert shape(Wrong) != shape(Typed) != shape(Optional)


@pytest.mark.parametrize("name", [name for name, row in TABLE.items() if row.availability is not Availability.ABSENT])
def test_msgspec_can_read_every_type_of_the_table(name: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert("no object", TABLE[name].params)


@pytest.mark.parametrize("name", ["", "Caps", "a b", "a\n", "ä", "x" * 129])
def test_client_names_have_a_pattern(name: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=r"\$\.clientInfo\.name"):
        msgspec.convert({"clientInfo": {"name": name, "version": "1"}}, InitializeParams)


@pytest.mark.parametrize(("platform", "family"), [("linux", "unix"), ("macos", "unix"), ("windows", "windows")])
@pytest.mark.parametrize("durability", ["durable", "ephemeral"])
def test_the_result_of_initialize(platform: str, family: str, durability: str) -> None:
    host = HostInfo(version="1.2.3", muse_home="/home/a/.refold", platform_os=platform, durability=durability)
    result = initialize_result(host, ("sessionRename",))
    assert msgspec.convert(result, msp.InitializeResult)
    assert {**result, "refoldLimits": None} == {
        "serverInfo": {"name": "refold", "version": "1.2.3"},
        "userAgent": f"refold/1.2.3 ({platform})",
        "museHome": "/home/a/.refold",
        "platformFamily": family,
        "platformOs": platform,
        "schema": {"version": msp.SCHEMA_VERSION, "fingerprint": msp.SCHEMA_FINGERPRINT},
        "grantedCapabilities": ["sessionRename"],
        "experimentalApi": False,
        "sessionDurability": durability,
        "refoldLimits": None,
    }
    assert host.ephemeral is (durability == "ephemeral")


def test_the_numbers_are_announced() -> None:
    host = HostInfo(version="1", muse_home="/", platform_os="linux", limits=Limits(frame_bytes=2048))
    assert initialize_result(host, ())["refoldLimits"] == {
        "depth": 64,
        "keys": 10_000,
        "numberChars": 64,
        "frameBytes": 2048,
        "openRequests": 256,
        "heldBytes": 8 * 1024 * 1024,
        "readerEvents": 10_000,
        "readerBytes": 8 * 1024 * 1024,
    }


def test_what_is_grantable_is_known_to_the_package_or_ours() -> None:
    assert set(messages.GRANTABLE) - {messages.BOOKMARKS} <= set(msp.GRANTABLE_CAPABILITIES)
