"""`refold blueprint add ls show versions archive unarchive`: registered Blueprints from the command line."""

from __future__ import annotations

import sys
import urllib.parse
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter

from refold.cli.doors import configured, give
from refold.cli.files import read_blueprint
from refold.cli.holding import through
from refold.client.api import Api

Json = Any

app = App(name="blueprint", help="Registers and shows Blueprints.", result_action="return_value")

Flag = Annotated[bool, Parameter(negative=())]


@app.command
def add(file: Path, *, store: str | None = None, json: Flag = False) -> int:
    """Registers a file of Blueprint JSON as the head of its id.

    Parameters
    ----------
    file
        The file. What it refers to is read relative to it, and registered with it.
    store
        The store's file; default $REFOLD_HOME/store/refold.db.
    json
        One JSON object on stdout.
    """
    value = read_blueprint(file)
    return _tell(_ask(store, lambda api: api.post("/v1/blueprints", value)), as_json=json)


@app.command
def ls(*, archived: Flag = False, store: str | None = None, json: Flag = False) -> int:
    """Lists the heads of all Blueprints.

    Parameters
    ----------
    archived
        Also those that are archived.
    store
        The store's file; default $REFOLD_HOME/store/refold.db.
    json
        One JSON object on stdout.
    """
    query = "?archived=true" if archived else ""
    return _tell_all(_ask(store, lambda api: api.get(f"/v1/blueprints{query}")), as_json=json)


@app.command
def show(blueprint_id: str, *, version: str | None = None, store: str | None = None) -> int:
    """Shows a Blueprint as JSON.

    Parameters
    ----------
    blueprint_id
        Its id.
    version
        One of its versions; default its head.
    store
        The store's file; default $REFOLD_HOME/store/refold.db.
    """
    at = _at(blueprint_id) if version is None else _at(blueprint_id, "versions", version)
    give(_ask(store, lambda api: api.get(at)))
    return 0


@app.command
def versions(blueprint_id: str, *, store: str | None = None, json: Flag = False) -> int:
    """Lists the versions of a Blueprint, newest first.

    Parameters
    ----------
    blueprint_id
        Its id.
    store
        The store's file; default $REFOLD_HOME/store/refold.db.
    json
        One JSON object on stdout.
    """
    return _tell_all(_ask(store, lambda api: api.get(_at(blueprint_id, "versions"))), as_json=json)


@app.command
def archive(blueprint_id: str, *, store: str | None = None, json: Flag = False) -> int:
    """Takes a Blueprint out of use: nothing is launched with it. Runs that have it go on.

    Parameters
    ----------
    blueprint_id
        Its id.
    store
        The store's file; default $REFOLD_HOME/store/refold.db.
    json
        One JSON object on stdout.
    """
    return _tell(_ask(store, lambda api: api.post(_at(blueprint_id, "archive"))), as_json=json)


@app.command
def unarchive(blueprint_id: str, *, store: str | None = None, json: Flag = False) -> int:
    """Takes an archived Blueprint back into use.

    Parameters
    ----------
    blueprint_id
        Its id.
    store
        The store's file; default $REFOLD_HOME/store/refold.db.
    json
        One JSON object on stdout.
    """
    return _tell(_ask(store, lambda api: api.post(_at(blueprint_id, "unarchive"))), as_json=json)


def _ask(store: str | None, command: Callable[[Api], Json]) -> Json:
    home, config = configured(store, bind="127.0.0.1:0")
    return through(home, config, command)


def _at(*parts: str) -> str:
    return "/".join(["/v1/blueprints", *(urllib.parse.quote(part, safe="") for part in parts)])


def _tell(record: Json, *, as_json: bool) -> int:
    if as_json:
        give(record)
    else:
        sys.stdout.write(_line(record))
    return 0


def _tell_all(page: Json, *, as_json: bool) -> int:
    if as_json:
        give(page)
    else:
        sys.stdout.writelines(map(_line, page["items"]))
    return 0


def _line(record: Json) -> str:
    archived = " archived" if record["archived_at"] else ""
    return f"{record['id']} {record['version']} {record['created_at']}{archived}\n"
