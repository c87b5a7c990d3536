"""Registered Blueprints: versions by content hash, and how a reference becomes a body.

A Run never holds a reference: `resolve` gives the body that goes whole into its launch snapshot, so that an edited
Blueprint never changes a resume. Not here: what references name (`references`), which programs may run (`programs`).
"""

from __future__ import annotations

from typing import Any

import msgspec

from refold.canonical import decode, digest, encode
from refold.engine.clock import Clock
from refold.engine.parsed import Parsed
from refold.errors import BlueprintInvalid, Conflict, InvalidRequest, NotFound
from refold.flowir import Blueprint, parse_blueprint
from refold.flowir.lint import Lint, lint
from refold.records import AGENT_NAME, BlueprintRecord
from refold.service.programs import Programs
from refold.service.references import References
from refold.store import Reader, Store, Tx

Json = Any

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
    """The store of Blueprints, and what this server makes of one."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        default: str | None = None,
        *,
        references: References | None = None,
        programs: Programs | None = None,
        parsed: Parsed | None = None,
    ) -> None:
        self._parsed = parsed or Parsed()
        self._store = store
        self._clock = clock
        self._default = default
        self._references = references or References()
        self.programs = programs or Programs("declared", {})

    @property
    def default_id(self) -> str:
        """The id of the Blueprint that a Session gets when it names none."""
        return self._default or ECHO["id"]

    # -- versions -----------------------------------------------------------------------------------------------------

    async def add(self, value: Json) -> BlueprintRecord:
        """Registers `value`, with its references expanded, as the head of its id; what is the head already stays it.

        Raises BlueprintInvalid with every fault, Conflict (`blueprint_archived`).
        """
        value = self._references.expand(value)
        blueprint = parse_blueprint(value)
        if not AGENT_NAME.fullmatch(blueprint.id):
            raise BlueprintInvalid(
                f"blueprint id {blueprint.id[:80]!r} is not a name: expected letters, digits, and any of _ . -",
                faults=[{"path": "$.id", "kind": "bad_name", "message": "not a name", "hint": "use A-Z a-z 0-9 _ . -"}],
            )
        version, at = digest(value), self._clock.now_ms()

        def put(tx: Tx) -> BlueprintRecord:
            head = _head(tx, blueprint.id)
            if head is not None:
                _refuse_archived(head)
            if head is not None and head.version == version:
                return head
            row = BlueprintRecord(blueprint_id=blueprint.id, version=version, body_json=encode(value), created_at=at)
            return tx.insert(row)

        return await self._store.write(put)

    async def heads(self, *, archived: bool = False) -> list[BlueprintRecord]:
        """The head of every id, by id; with `archived` also of those that are."""
        rows = await self._store.read(lambda reader: reader.find(BlueprintRecord))
        heads = sorted({row.blueprint_id: row for row in rows}.values(), key=lambda row: row.blueprint_id)
        return [head for head in heads if archived or head.archived_at is None]

    async def head(self, blueprint_id: str) -> BlueprintRecord:
        """The newest version of an id, archived or not; raises NotFound."""
        return await self._store.read(lambda reader: _known_head(reader, blueprint_id))

    async def version(self, blueprint_id: str, version: str) -> BlueprintRecord:
        """A version of an id, archived or not; raises NotFound."""
        return await self._store.read(lambda reader: _version(reader, blueprint_id, version))

    async def versions(self, blueprint_id: str, limit: int, before: int | None = None) -> list[BlueprintRecord]:
        """The versions of an id, newest first, those made before the integer key `before`; raises NotFound.

        What was registered, replaced and registered again is there twice: this is a history.
        """

        def read(reader: Reader) -> list[BlueprintRecord]:
            _known_head(reader, blueprint_id)
            rows = reader.find(BlueprintRecord, blueprint_id=blueprint_id, newest_first=True)
            return [row for row in rows if before is None or row.n < before][:limit]

        return await self._store.read(read)

    async def archive(self, blueprint_id: str) -> BlueprintRecord:
        """Takes an id out of use: no version is added, nothing is launched. Runs that have it go on and are resumed.

        Twice is once. Raises NotFound.
        """
        return await self._mark(blueprint_id, self._clock.now_ms())

    async def unarchive(self, blueprint_id: str) -> BlueprintRecord:
        """Takes an id back into use. Twice is once. Raises NotFound."""
        return await self._mark(blueprint_id, None)

    async def _mark(self, blueprint_id: str, at: int | None) -> BlueprintRecord:
        def mark(tx: Tx) -> BlueprintRecord:
            head = _known_head(tx, blueprint_id)
            if (head.archived_at is None) is (at is None):
                return head
            tx.update(BlueprintRecord, (head.n,), archived_at=at)
            return msgspec.structs.replace(head, archived_at=at)

        return await self._store.write(mark)

    # -- looking at one, and launching one ----------------------------------------------------------------------------

    def lint(self, value: Json) -> Lint:
        """What can be said of `value` without running it: faults, warnings, and what this server would not run."""
        return look(value, self._references, self.programs)

    def expanded(self, reference: Json) -> Json:
        """The reference of a launch; an inline body without its references. Raises BlueprintInvalid, InvalidJson."""
        match reference:
            case {"kind": "inline", "value": value}:
                return {**reference, "value": self._references.expand(value)}
        return reference

    async def resolve(self, reference: Json) -> Resolved:
        """The Blueprint that `{"kind":"inline","value"}` or `{"kind":"id","id","version"?}` names at this moment.

        An inline body is one that `expanded` let through, or that was stored.

        Raises BlueprintInvalid with all faults, NotFound, Conflict (`blueprint_archived`), InvalidRequest for a
        reference of another shape.
        """
        match reference:
            case {"kind": "inline", "value": value, **rest} if not rest:
                return self._resolved(value)
            case {"kind": "id", "id": str(blueprint_id), **rest} if rest.keys() <= {"version"}:
                return await self._named(blueprint_id, rest.get("version"))
        raise InvalidRequest(
            'blueprint is neither {"kind":"inline","value":…} nor {"kind":"id","id":…,"version"?:…}', member="blueprint"
        )

    async def _named(self, blueprint_id: str, version: Json) -> Resolved:
        def find(reader: Reader) -> BlueprintRecord | None:
            head = _head(reader, blueprint_id)
            if head is None and blueprint_id == ECHO["id"] and version is None:
                return None
            _refuse_archived(_known_head(reader, blueprint_id))
            return head if version is None else _version(reader, blueprint_id, version)

        row = await self._store.read(find)
        if row is None:
            return self._resolved(ECHO, ECHO["id"])
        return self._resolved(decode(row.body_json), row.blueprint_id, row.version)

    def _resolved(self, value: Json, blueprint_id: str | None = None, version: str | None = None) -> Resolved:
        body = self._parsed.get(value)
        return Resolved(id=blueprint_id, version=version or body.version, value=value, blueprint=body.blueprint)


def look(value: Json, references: References, programs: Programs) -> Lint:
    """What can be said of `value` where references are read as `references` does, and `programs` says what may run."""
    try:
        found = lint(references.expand(value))
    except BlueprintInvalid as error:
        return Lint(tuple(error.data["faults"]), (), None)
    if found.blueprint is None:
        return found
    return msgspec.structs.replace(found, warnings=(*found.warnings, *programs.warnings(found.blueprint)))


def _head(reader: Reader, blueprint_id: str) -> BlueprintRecord | None:
    rows = reader.find(BlueprintRecord, blueprint_id=blueprint_id, newest_first=True, limit=1)
    return rows[0] if rows else None


def _known_head(reader: Reader, blueprint_id: str) -> BlueprintRecord:
    head = _head(reader, blueprint_id)
    if head is None:
        raise _unknown(blueprint_id)
    return head


def _version(reader: Reader, blueprint_id: str, version: str) -> BlueprintRecord:
    rows = reader.find(BlueprintRecord, blueprint_id=blueprint_id, version=version, limit=1)
    if not rows:
        raise _unknown(blueprint_id, version)
    return rows[0]


def _refuse_archived(head: BlueprintRecord) -> None:
    if head.archived_at is not None:
        raise Conflict(
            f"blueprint {head.blueprint_id!r} is archived; take it back with `refold blueprint unarchive "
            f"{head.blueprint_id}`",
            kind="blueprint_archived",
            id=head.blueprint_id,
        )


def _unknown(blueprint_id: str, version: str | None = None) -> NotFound:
    what = f"blueprint {blueprint_id[:80]!r}" + (f" version {version[:80]!r}" if version else "")
    return NotFound(f"{what} is not registered; see `refold blueprint ls`", kind="blueprint_not_found", id=blueprint_id)
