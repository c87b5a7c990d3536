"""`refold ls show`: Runs as people look at them. Where a server answers, nothing that works is loaded for it."""

from __future__ import annotations

from types import ModuleType
from typing import Annotated, Any

from cyclopts import Parameter

from refold.cli.doors import configured, database, give, holder, say

Json = Any
Flag = Annotated[bool, Parameter(negative=())]


def ls(*, status: str | None = None, store: str | None = None, json: Flag = False) -> int:
    """Lists Runs, newest first.

    Parameters
    ----------
    status
        Only Runs of this status.
    store
        The store's file; default $REFOLD_HOME/store/refold.db.
    json
        One JSON object on stdout.
    """
    home, config = configured(store)
    api = holder(home, config)
    query = f"?status={status}" if status else ""
    listed = api.get(f"/v1/runs{query}") if api is not None else _peek().runs(database(home, config), status)
    if json:
        give(listed)
    else:
        table(("run", "status", "blueprint", "created"), [_line(each) for each in listed["items"]])
    return 0


def show(run_id: str, *, store: str | None = None, json: Flag = False) -> int:
    """Shows a Run and its steps.

    Parameters
    ----------
    run_id
        The Run.
    store
        The store's file; default $REFOLD_HOME/store/refold.db.
    json
        One JSON object on stdout.
    """
    home, config = configured(store)
    api = holder(home, config)
    record = api.get(f"/v1/runs/{run_id}") if api is not None else _peek().run(database(home, config), run_id)
    if json:
        give(record)
        return 0
    say(f"{record['run_id']}  {record['status']}  activation {record['activation']}")
    columns = ("step", "status", "attempt", "lane", "ms")
    steps = record["step_entries"]
    table(columns, [[s["step_ref"], s["status"] or "-", s["attempt"], s["lane"], s["duration_ms"]] for s in steps])
    return 0


def _peek() -> ModuleType:
    from refold.cli import peek  # here: a store is loaded only where there is no server that has loaded one

    return peek


def _line(record: Json) -> list[str]:
    blueprint = record["blueprint"] or {}
    name = blueprint.get("id") or f"inline:{blueprint.get('version', '')[:8]}"
    return [record["run_id"], record["status"], name, record["created_at"]]


def table(columns: tuple[str, ...], rows: list[list[Any]]) -> None:
    """Prints rows under the names of their columns."""
    from rich.console import Console  # here: `--json` needs none of it
    from rich.table import Table

    shown = Table(box=None)
    for column in columns:
        shown.add_column(column, overflow="fold", no_wrap=column == "run")  # an id that is cut cannot be copied
    for row in rows:
        shown.add_row(*map(str, row))
    Console().print(shown)
