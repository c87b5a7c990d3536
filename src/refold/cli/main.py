"""`refold`: the commands, and what their errors become.

Exit codes: 0 done · 1 run failed · 2 usage · 3 waiting for a person · 4 interrupted, resumable · 5 not found ·
6 conflict · 69 server unreachable · 124 timeout · 130 Ctrl-C.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Final

from cyclopts import App, CycloptsError

from refold import __version__
from refold.errors import BadInput, Conflict, CursorRefused, MissingAnchor, NotFound, RefoldError, StoreHeld

app = App(
    name="refold",
    version=__version__,
    help="Runs multi-step agent work and never loses it.",
    result_action="return_value",
)
app.command("refold.cli.serving:serve")
app.command("refold.cli.serving:msp")
app.command("refold.cli.runs:run")
app.command("refold.cli.listing:ls")
app.command("refold.cli.listing:show")
app.command("refold.cli.runs:resume")
app.command("refold.cli.runs:rerun")
app.command("refold.cli.runs:cancel")
app.command("refold.cli.requests:approve")
app.command("refold.cli.requests:answer")
app.command("refold.cli.authoring:new")
app.command("refold.cli.authoring:lint")
app.command("refold.cli.watching:watch")
app.command("refold.cli.watching:events")
app.command("refold.cli.upkeep:doctor")
app.command("refold.cli.exporting:export")
app.command("refold.cli.importing:import_", name="import")
app.command("refold.cli.upkeep:completion")
app.command("refold.cli.demo:demo")
app.command("refold.cli.blueprints:app", name="blueprint")

_BY_STATUS: Final[Mapping[int, int]] = {404: 5, 409: 6, 410: 6}
_BY_CLASS: Final[Mapping[type[RefoldError], int]] = {
    BadInput: 2,
    NotFound: 5,
    MissingAnchor: 5,
    Conflict: 6,
    CursorRefused: 6,
    StoreHeld: 6,
}
"""What was raised in this process, each as a server's answer would be: the first that fits."""


def main(tokens: Sequence[str] | None = None) -> None:
    """The entry point: runs one command and exits with its code."""
    sys.exit(run(tokens))


def run(tokens: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code."""
    try:
        code = app(tokens, exit_on_error=False, print_error=False)
    except CycloptsError as error:
        return _complain(f"{error}\nSee `refold --help`.", 2)
    except RefoldError as error:
        faults = "".join(map(_fault, error.data.get("faults", ())))
        return _complain(f"{error.message}{faults}", exit_code(error))
    except KeyboardInterrupt:
        return _complain("interrupted", 130)
    return code if isinstance(code, int) else 0


def exit_code(error: RefoldError) -> int:
    """The exit code of an error: the server's answer decides, else the class of what was raised here."""
    if error.kind == "server_unreachable":
        return 69
    status = getattr(error, "status", None)
    if status is not None:
        return _BY_STATUS.get(status, 2 if status < 500 else 1)
    return next((code for kind, code in _BY_CLASS.items() if isinstance(error, kind)), 1)


def _fault(fault: Mapping[str, str | None]) -> str:
    hint = f" ({fault['hint']})" if fault.get("hint") else ""
    return f"\n  {fault['path']}: {fault['message']}{hint}"


def _complain(text: str, code: int) -> int:
    sys.stderr.write(f"refold: {text}\n")
    return code
