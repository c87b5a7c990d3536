"""`refold new` and `refold lint`: writing a Blueprint file, and looking at one. Neither needs a store or a server."""

from __future__ import annotations

import json as plain
import sys
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from refold.cli.doors import configured, give, say
from refold.cli.files import read_json
from refold.errors import Conflict, InvalidRequest
from refold.flowir import build
from refold.records import AGENT_NAME
from refold.server.settings import templates
from refold.server.shapes import lint as shown
from refold.service.blueprints import look
from refold.service.programs import Programs
from refold.service.references import References

Json = Any
Flag = Annotated[bool, Parameter(negative=())]

FAULTY = 2
"""The exit code of a file with faults: it cannot be used as it is."""


def lint(file: Path, *, json: Flag = False) -> int:
    """Looks at a Blueprint file and tells every fault, with its place and what to do.

    Parameters
    ----------
    file
        A file of Blueprint JSON.
    json
        One JSON object on stdout: {ok, faults, warnings}.
    """
    _, config = configured()
    references, programs = References([file.absolute().parent]), Programs("any", templates(config))
    found = shown(look(read_json(file), references, programs))
    if json:
        give(found)
    else:
        for noun in ("faults", "warnings"):
            for each in found[noun]:
                hint = f" ({each['hint']})" if each["hint"] else ""
                sys.stdout.write(f"{noun.removesuffix('s')} {each['path']}: {each['message']}{hint}\n")
        counts = ", ".join(f"{len(found[noun])} {noun}" for noun in ("faults", "warnings"))
        say(f"{file}: {'ok' if found['ok'] else 'not usable'}, {counts}")
    return 0 if found["ok"] else FAULTY


def new(name: str, *, folder: Path = Path()) -> int:
    """Writes a small Blueprint file that runs, to begin from.

    Parameters
    ----------
    name
        The id of the Blueprint; the file is NAME.blueprint.json.
    folder
        Where the file goes; default here.
    """
    if not AGENT_NAME.fullmatch(name):
        raise InvalidRequest(f"{name!r} is not a name: use letters, digits, and any of _ . -")
    file = folder / f"{name}.blueprint.json"
    try:
        with file.open("x") as out:
            out.write(plain.dumps(first(name), indent=2) + "\n")
    except FileExistsError:
        raise Conflict(f"{file} is there already; it is left as it is", kind="file_exists") from None
    except OSError as error:
        raise InvalidRequest(f"cannot write {file}: {error.strerror}") from None
    sys.stdout.write(f"{file}\n")
    say(f"""run it: refold run {file} --ctx '{{"names": ["Ada", "Grace"]}}'""")
    return 0


def first(name: str) -> Json:
    """A Blueprint to begin from: echoes each of `$.names` in a lane of its own, and counts them."""
    lane = build.seq(
        build.step("echo", "$.name", "$.said"),
        build.assign("$", "$.said"),  # a lane's result is its whole ctx: only what was said is wanted
    )
    flow = build.seq(
        build.fanout("$.names", lane, "$.output.said", bind="$.name"),
        build.assign("$.output.count", build.len_("$.names")),
    )
    echo = {"name": "echo", "kind": "python", "spec": {"fn": "builtin:echo"}}
    return build.blueprint(name, flow, [echo], default_init_ctx={"names": ["World"]})
