"""`refold import`: a file that `refold export` wrote, as a store to be looked at."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from refold.cli.doors import give, say
from refold.errors import Conflict, InvalidRequest, NotFound, StoreError
from refold.server.config import Home
from refold.service.copies import checked, copy_of, is_copy_of
from refold.store import SqliteStore
from refold.store.portable import Portable

Flag = Annotated[bool, Parameter(negative=())]


def import_(file: Path, *, store: str | None = None, json: Flag = False) -> int:
    """Makes a store of a file that `refold export` wrote, to be looked at: nothing can be run in it.

    The file is checked first, every digest and every chain of it; of one that is not sound nothing is made.

    Parameters
    ----------
    file
        The file.
    store
        The file to be made; default $REFOLD_HOME/imported/RUN.db. One that is there is left as it is.
    json
        One JSON object on stdout.
    """
    try:
        data = file.read_bytes()
    except FileNotFoundError:
        raise NotFound(f"there is no file {file}", kind="file_not_found") from None
    except OSError as error:
        raise InvalidRequest(f"cannot read {file}: {error.strerror}") from None
    found = checked(data)
    run_id = found.manifest.run_id
    path = _place(run_id, store)
    try:
        SqliteStore.make_copy(path, copy_of(found))
    except Conflict:
        if not _is_that_copy(path, found):
            raise
        say(f"{path} was made of this file before")
    if json:
        give({"run_id": run_id, "store": str(path), "rows": found.manifest.rows})
        return 0
    sys.stdout.write(f"{path}\n")
    say(f"{run_id} as it was at {found.manifest.exported_at}; it is there to be looked at, and is never run:")
    for command in ("show", "events", "watch"):
        say(f"  refold {command} {run_id} --store {path}")
    return 0


def _is_that_copy(path: Path, found: Portable) -> bool:
    try:
        return asyncio.run(SqliteStore.peek(path, lambda reader: is_copy_of(reader, found)))
    except StoreError:  # whatever it is, it is no store of ours
        return False


def _place(run_id: str, store: str | None) -> Path:
    """Where the copy goes. The id has been read as one, so it is a file's name and nothing else."""
    if store is not None:
        return Path(store).expanduser().absolute()
    home = Home()
    home.make()
    return home.path.absolute() / "imported" / f"{run_id}.db"
