"""The OpenAPI 3.1 document, and the table in docs/http.md: made from the table of routes, never written by hand.

It says what is checked, because both come from the same types. Every error has one shape, `Error`; which statuses a
route can answer follows from its row.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache
from http import HTTPStatus
from typing import Any, Final

import msgspec

from refold import __version__
from refold.server.contract import PATH_IDS, Media, NoQuery, Row, Scope
from refold.server.routes import ROUTES
from refold.server.shapes import Error

Json = Any

_REF: Final = "#/components/schemas/{name}"
_REFUSAL: Final = "#/components/responses/"
_FAULT: Final = "default"
_ABOUT: Final = (
    "Runs of multi-step agent work that survive kill -9, and sessions that come back from a cursor. "
    "Lists are pages: `{items, next_cursor}`; cursors are opaque. Errors are `{error, kind, …}`: branch on `kind`. "
    "Times are RFC 3339, UTC. The protocol of sessions is spoken over the WebSocket `/v1/msp`."
)


@cache
def document() -> Mapping[str, Json]:
    """The document of this server's routes."""
    return document_of(ROUTES)


def document_of(rows: Iterable[Row]) -> Mapping[str, Json]:
    """The document of `rows`."""
    rows = list(rows)
    schemas = _Schemas(rows)
    paths: dict[str, dict[str, Json]] = {}
    for row in rows:
        paths.setdefault(row.path, {})[row.verb.lower()] = _operation(row, schemas)
    return {
        "openapi": "3.1.0",
        "info": {"title": "refold", "version": __version__, "description": _ABOUT, "license": {"name": "MIT"}},
        "security": [{"bearer": []}],
        "paths": paths,
        "components": {
            "schemas": schemas.components,
            "responses": _refusals(rows, schemas),
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer", "description": "The token in `$REFOLD_HOME/token`."}
            },
        },
    }


class _Schemas:
    """The schemas of all types that the rows name; `of` gives the reference to one."""

    def __init__(self, rows: list[Row]) -> None:
        named = [Error, *(kind for row in rows for kind in (row.body, row.query, *row.answers.values()))]
        types = [kind for kind in dict.fromkeys(named) if kind is not None and not isinstance(kind, Media)]
        refs, components = msgspec.json.schema_components(types, ref_template=_REF)
        self._refs = dict(zip(types, map(_renamed, refs), strict=True))
        self.components = {_name(name): _renamed(schema) for name, schema in components.items()}

    def of(self, kind: Any) -> Json:
        """The schema of a type, by reference where it has a name."""
        return self._refs[kind]

    def members(self, kind: Any) -> Mapping[str, Json]:
        """The schemas of a struct's members."""
        return self.components[self.of(kind)["$ref"].rpartition("/")[2]]["properties"]


def _name(name: str) -> str:
    """`Page_Run_`, as msgspec names a `Page[Run]`, reads better as `RunPage`."""
    return re.sub(r"^Page_(\w+)_$", r"\1Page", name)


def _renamed(schema: Json) -> Json:
    """`schema` with every reference under its better name."""
    if isinstance(schema, list):
        return [_renamed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    renamed = {key: _renamed(value) for key, value in schema.items()}
    if isinstance(reference := schema.get("$ref"), str):
        folder, _, name = reference.rpartition("/")
        renamed["$ref"] = f"{folder}/{_name(name)}"
    return renamed


def _operation(row: Row, schemas: _Schemas) -> Json:
    noun = row.endpoint.__module__.rpartition(".")[2]
    operation: dict[str, Json] = {
        "operationId": f"{noun}_{row.endpoint.__name__}" + ("_by_id" if row.ids and row.body is Any else ""),
        "tags": [noun],
        "summary": row.summary,
        "parameters": [*map(_path_parameter, row.ids), *_query_parameters(row, schemas)],
        "responses": {**_answers(row, schemas), **{status: {"$ref": _REFUSAL + status} for status in _refused(row)}},
    }
    if row.body is not None:
        content = {"application/json": {"schema": schemas.of(row.body)}}
        operation["requestBody"] = {"required": not row.body_may_be_absent, "content": content}
    if row.scope is Scope.OPEN:
        operation["security"] = []
    return operation


def _path_parameter(name: str) -> Json:
    known = PATH_IDS[name]
    schema = {"type": "string", "pattern": known.pattern}
    return {"name": name, "in": "path", "required": True, "description": f"The id of {known.names}.", "schema": schema}


def _query_parameters(row: Row, schemas: _Schemas) -> list[Json]:
    if row.query is NoQuery:
        return []
    return [_query_parameter(name, dict(schema)) for name, schema in schemas.members(row.query).items()]


def _query_parameter(name: str, schema: dict[str, Json]) -> Json:
    """A member of a query. What may be null in the struct may be absent in a query; there is no text for null."""
    if schema.get("default", ...) is None:
        del schema["default"]
    if "anyOf" in schema:
        (given,) = (each for each in schema.pop("anyOf") if each != {"type": "null"})
        schema |= given
    described = {"description": schema.pop("description")} if "description" in schema else {}
    return {"name": name, "in": "query", "required": False, **described, "schema": schema}


def _answers(row: Row, schemas: _Schemas) -> Mapping[str, Json]:
    return {str(status): _answer(status, kind, schemas) for status, kind in row.answers.items()}


def _answer(status: int, kind: Any, schemas: _Schemas) -> Json:
    answer: dict[str, Json] = {"description": HTTPStatus(status).phrase}
    if isinstance(kind, Media):
        answer["content"] = {media_type: {"schema": {"type": "string"}} for media_type in kind.types}
    elif kind is not None:
        answer["content"] = {"application/json": {"schema": schemas.of(kind)}}
    return answer


def _refused(row: Row) -> list[str]:
    """Every error that a route answers, by its status; as `default` what is the server's own fault."""
    return [*map(str, row.statuses), _FAULT]


def _refusals(rows: Iterable[Row], schemas: _Schemas) -> Mapping[str, Json]:
    """The errors of all routes, told once."""
    content = {"application/json": {"schema": schemas.of(Error)}}
    statuses = sorted({status for row in rows for status in row.statuses})
    refusals = {str(status): {"description": HTTPStatus(status).phrase, "content": content} for status in statuses}
    return {**refusals, _FAULT: {"description": "A fault of the server's.", "content": content}}


# -- for people -------------------------------------------------------------------------------------------------------


def table(rows: Iterable[Row] = ROUTES) -> str:
    """The routes as a table in Markdown, as docs/http.md shows them."""
    lines = ["| route | what it does | takes | answers |", "|---|---|---|---|"]
    for row in rows:
        answers = ", ".join(map(str, row.answers))
        lines.append(f"| `{row.verb} {row.path}` | {row.summary} | {_takes(row)} | {answers} |")
    return "\n".join(lines)


def _takes(row: Row) -> str:
    """The names that the query and the body may have; those that must be there are bold."""
    query = [f"`?{field.encode_name}`" for field in msgspec.structs.fields(row.query)]
    if row.body is None:
        return " ".join(query)
    if row.body is Any:
        return " ".join([*query, "a Blueprint"])
    body = [f"**`{f.encode_name}`**" if f.required else f"`{f.encode_name}`" for f in msgspec.structs.fields(row.body)]
    return " ".join([*query, *body])
