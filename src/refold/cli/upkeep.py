"""`refold doctor completion`: looking after a store, and a shell's help."""

from __future__ import annotations

import asyncio
import os
import stat
import sys
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from refold.cli.doors import configured, give, holder
from refold.errors import RefoldError
from refold.server.config import Config, Home, store_path

Json = Any
Flag = Annotated[bool, Parameter(negative=())]


def doctor(*, store: str | None = None, json: Flag = False) -> int:
    """Examines home, configuration and store, and says what is wrong; changes nothing.

    Every chain of every Run and Session is checked, as a resume would, and SQLite's own check is run.

    Parameters
    ----------
    store
        The store's file; default $REFOLD_HOME/store/refold.db.
    json
        One JSON object on stdout.
    """
    home, config = configured(store)
    found = {"home": str(home.path), "store": str(store_path(config, home)), "holder": _holder(home, config)}
    wrong = [*_modes(home), *_audit(store_path(config, home))]
    if json:
        give(found | {"wrong": wrong})
    else:
        for name, value in found.items():
            sys.stdout.write(f"{name}: {value}\n")
        for each in wrong:
            sys.stdout.write(f"wrong: {each}\n")
        sys.stdout.write("nothing is wrong\n" if not wrong else f"{len(wrong)} things are wrong\n")
    return 1 if wrong else 0


def completion(shell: str = "bash") -> int:
    """Prints a completion script for a shell: `eval "$(refold completion bash)"`.

    Commands and options are completed, and ids of Runs where a command takes one.

    Parameters
    ----------
    shell
        bash or zsh.
    """
    if shell not in ("bash", "zsh"):
        raise RefoldError(f"no completion for {shell!r}; there is one for bash and for zsh", kind="invalid_request")
    head = "autoload -U +X bashcompinit && bashcompinit\n" if shell == "zsh" else ""
    sys.stdout.write(head + _COMPLETION)
    return 0


_COMPLETION = """\
_refold() {
  local word="${COMP_WORDS[COMP_CWORD]}" command="${COMP_WORDS[1]}"
  if [ "$COMP_CWORD" -eq 1 ]; then
    COMPREPLY=($(compgen -W "$(refold --help 2>/dev/null | sed -n 's/^. \\([a-z][a-z]*\\) .*/\\1/p')" -- "$word"))
  elif [ "${word#-}" != "$word" ]; then
    local options="$(refold "$command" --help 2>/dev/null | grep -o -- '--[a-z][a-z-]*' | sort -u)"
    COMPREPLY=($(compgen -W "$options" -- "$word"))
  else
    case "$command" in
      show|resume|rerun|cancel|watch|events|export)
        COMPREPLY=($(compgen -W "$(refold ls --json 2>/dev/null | grep -o 'R-[0-9a-f]*' | sort -u)" -- "$word")) ;;
      *) COMPREPLY=($(compgen -f -- "$word")) ;;
    esac
  fi
}
complete -F _refold refold
"""


def _holder(home: Home, config: Config) -> str | None:
    api = holder(home, config)
    return None if api is None else api.url


def _modes(home: Home) -> list[str]:
    """Files and folders of the home that others than its owner may look into."""
    if not home.path.exists():
        return []
    private = [home.path, *(each for each in home.path.rglob("*") if not each.is_symlink())]
    return [
        f"{each} has mode {stat.S_IMODE(each.stat().st_mode):o}, others may look into it"
        for each in private
        if each.stat().st_mode & 0o077 and each.stat().st_uid == os.getuid()
    ]


def _audit(path: Path) -> list[str]:
    if not path.exists():
        return []
    from refold.store import SqliteStore
    from refold.store.audit import audit

    try:
        return [*SqliteStore.quick_check(path), *asyncio.run(SqliteStore.peek(path, audit))]
    except RefoldError as error:
        return [error.message]
