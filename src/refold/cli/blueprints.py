"""`refold blueprint add ls show`: registered Blueprints from the command line."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from refold.canonical import decode_strict
from refold.cli.doors import configured, give, through

app = App(name="blueprint", help="Registers and shows Blueprints.", result_action="return_value")

Flag = Annotated[bool, Parameter(negative=())]


@app.command
def add(file: Path, *, store: str | None = None, json: Flag = False) -> int:
    """Registers a file of Blueprint JSON as the head of its id.

    Parameters
    ----------
    file
        The file.
    store
        The store's file; default $REFOLD_HOME/store/refold.db.
    json
        One JSON object on stdout.
    """
    value = decode_strict(file.read_bytes())
    home, config = configured(store, bind="127.0.0.1:0")
    added = through(home, config, lambda api: api.post("/v1/blueprints", value))
    if json:
        give(added)
    else:
        sys.stdout.write(f"{added['id']} {added['version']}\n")
    return 0


@app.command
def ls(*, store: str | None = None, json: Flag = False) -> int:
    """Lists the heads of all Blueprints."""
    home, config = configured(store, bind="127.0.0.1:0")
    listed = through(home, config, lambda api: api.get("/v1/blueprints"))
    if json:
        give(listed)
    else:
        for each in listed["items"]:
            sys.stdout.write(f"{each['id']} {each['version']} {each['created_at']}\n")
    return 0


@app.command
def show(blueprint_id: str, *, store: str | None = None) -> int:
    """Shows the head of a Blueprint as JSON."""
    home, config = configured(store, bind="127.0.0.1:0")
    give(through(home, config, lambda api: api.get(f"/v1/blueprints/{blueprint_id}")))
    return 0
