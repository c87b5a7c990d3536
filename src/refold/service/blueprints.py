"""Registered Blueprints: versions by content hash, and how a reference becomes a body.

A Run never holds a reference: `resolve` gives the body that goes whole into its launch snapshot, so that an edited
Blueprint never changes a resume.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from refold.canonical import decode, digest, encode
from refold.engine.clock import Clock
from refold.errors import BlueprintInvalid, InvalidRequest, NotFound, Unprocessable
from refold.flowir import Blueprint, parse_blueprint
from refold.records import AGENT_NAME, BlueprintRecord
from refold.store import Reader, Store, Tx

Json = Any
SubprocessMode = Literal["any", "declared", "off"]

ECHO: Json = {
    "id": "echo",
    "flow": {
        "kind": "step",
        "ref": "echo",
        "in": {"op": "path", "at": "$.input"},
        "out": {"op": "path", "at": "$.output"},
    },
    "agents": [{"name": "echo", "kind": "python", "spec": {"fn": "builtin:echo"}}],
}
"""What a Session runs when neither it nor the configuration names a Blueprint."""


class Resolved(msgspec.Struct, frozen=True, kw_only=True):
    """A Blueprint as it will be run: `id` is None for an inline one, `version` the hash of `value`."""

    id: str | None
    version: str
    value: Json
    blueprint: Blueprint

    @property
    def name(self) -> str:
        """How people see it: its id, or `inline:<version>`."""
        return self.id or f"inline:{self.version}"

    def snapshot(self) -> Json:
        """What the launch snapshot holds of it."""
        return {"id": self.id, "version": self.version, "value": self.value}


class Blueprints:
    """The store of Blueprints."""

    def __init__(self, store: Store, clock: Clock, default: str | None = None) -> None:
        self._store = store
        self._clock = clock
        self._default = default

    @property
    def default_id(self) -> str:
        """The id of the Blueprint that a Session gets when it names none."""
        return self._default or ECHO["id"]

    async def add(self, value: Json) -> BlueprintRecord:
        """Registers `value` as the head of its id; what is the head already stays it, without a copy.

        Raises BlueprintInvalid with every fault.
        """
        blueprint = parse_blueprint(value)
        if not AGENT_NAME.fullmatch(blueprint.id):
            raise BlueprintInvalid(
                f"blueprint id {blueprint.id[:80]!r} is not a name: expected letters, digits, and any of _ . -",
                faults=[{"path": "$.id", "kind": "bad_name", "message": "not a name", "hint": "use A-Z a-z 0-9 _ . -"}],
            )
        version, at = digest(value), self._clock.now_ms()

        def put(tx: Tx) -> BlueprintRecord:
            head = _head(tx, blueprint.id)
            if head is not None and head.version == version:
                return head
            row = BlueprintRecord(blueprint_id=blueprint.id, version=version, body_json=encode(value), created_at=at)
            return tx.insert(row)

        return await self._store.write(put)

    async def heads(self) -> list[BlueprintRecord]:
        """The head of every id, by id."""
        rows = await self._store.read(lambda reader: reader.find(BlueprintRecord))
        return sorted({row.blueprint_id: row for row in rows}.values(), key=lambda row: row.blueprint_id)

    async def head(self, blueprint_id: str) -> BlueprintRecord:
        """The newest version of an id; raises NotFound."""
        row = await self._store.read(lambda reader: _head(reader, blueprint_id))
        if row is None:
            raise _unknown(blueprint_id)
        return row

    async def resolve(self, reference: Json) -> Resolved:
        """The Blueprint that `{"kind":"inline","value"}` or `{"kind":"id","id","version"?}` names at this moment.

        Raises BlueprintInvalid with all faults, NotFound, InvalidRequest for a reference of another shape.
        """
        match reference:
            case {"kind": "inline", "value": value, **rest} if not rest:
                return Resolved(id=None, version=digest(value), value=value, blueprint=parse_blueprint(value))
            case {"kind": "id", "id": str(blueprint_id), **rest} if rest.keys() <= {"version"}:
                return await self._named(blueprint_id, rest.get("version"))
        raise InvalidRequest(
            'blueprint is neither {"kind":"inline","value":…} nor {"kind":"id","id":…,"version"?:…}', member="blueprint"
        )

    async def _named(self, blueprint_id: str, version: str | None) -> Resolved:
        def find(reader: Reader) -> BlueprintRecord | None:
            if version is None:
                return _head(reader, blueprint_id)
            rows = reader.find(BlueprintRecord, blueprint_id=blueprint_id, version=version, limit=1)
            return rows[0] if rows else None

        row = await self._store.read(find)
        if row is None and blueprint_id == ECHO["id"] and version is None:
            return Resolved(id=ECHO["id"], version=digest(ECHO), value=ECHO, blueprint=parse_blueprint(ECHO))
        if row is None:
            raise _unknown(blueprint_id, version)
        value = decode(row.body_json)
        return Resolved(id=row.blueprint_id, version=row.version, value=value, blueprint=parse_blueprint(value))


def check_programs(resolved: Resolved, mode: SubprocessMode) -> None:
    """Raises Unprocessable if a launch under `mode` may not run a program that the Blueprint names.

    Templates of the configuration are the declared ones; an inline program is anybody's shell.
    """
    bare = [agent.name for agent in resolved.blueprint.agents if agent.kind == "subprocess"]
    if bare and mode != "any":
        raise Unprocessable(
            f"agents {', '.join(bare)} run programs, and this server was started with --subprocess {mode}; "
            "start it with --subprocess any to allow programs in Blueprints",
            kind="program_not_allowed",
            agents=bare,
        )


def _head(reader: Reader, blueprint_id: str) -> BlueprintRecord | None:
    rows = reader.find(BlueprintRecord, blueprint_id=blueprint_id, newest_first=True, limit=1)
    return rows[0] if rows else None


def _unknown(blueprint_id: str, version: str | None = None) -> NotFound:
    what = f"blueprint {blueprint_id[:80]!r}" + (f" version {version[:80]!r}" if version else "")
    return NotFound(f"{what} is not registered; see `refold blueprint ls`", kind="blueprint_not_found", id=blueprint_id)
