"""`refold run resume rerun cancel`: what is done with Runs from the command line."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from refold.canonical import decode_strict
from refold.cli.doors import configured, give, holder, say
from refold.cli.files import read_blueprint
from refold.cli.following import follow
from refold.cli.holding import through
from refold.cli.listing import table
from refold.client.api import Api
from refold.errors import InvalidRequest

Json = Any

Flag = Annotated[bool, Parameter(negative=())]


def run(
    blueprint: str,
    *,
    ctx: str | None = None,
    detach: Flag = False,
    wait: Flag = False,
    work_dir: Path | None = None,
    store: str | None = None,
    json: Flag = False,
) -> int:
    """Runs a Blueprint file, or a registered Blueprint, and waits for its result.

    Parameters
    ----------
    blueprint
        A file of Blueprint JSON, or the id of a registered Blueprint.
    ctx
        The initial ctx: JSON, or @FILE.
    detach
        Start it and come back at once; needs a server.
    wait
        Wait also while the Run waits for a person; without it the command shows what is asked, and ends.
    work_dir
        The folder that agents work in; default this one.
    store
        The store's file; default $REFOLD_HOME/store/refold.db.
    json
        One JSON object on stdout.
    """
    file = Path(blueprint)
    reference = (
        {"kind": "inline", "value": read_blueprint(file)}
        if file.suffix == ".json" or file.exists()
        else {"kind": "id", "id": blueprint}
    )
    folder = str((work_dir or Path()).absolute())
    body = {"blueprint": reference, "init_ctx": _ctx(ctx), "work_dir": folder, "detach": True}
    home, config = configured(store, subprocess="any", bind="127.0.0.1:0")

    def go(api: Api) -> int:
        started = api.post("/v1/tasks", body)
        if detach:
            return _show_ids(started, as_json=json)
        return follow(api, started["run_id"], as_json=json, wait=wait)

    if detach and holder(home, config) is None:
        raise InvalidRequest("--detach needs a server that goes on with the Run; start `refold serve` first")
    return through(home, config, go)


def resume(
    run_id: str,
    *,
    preview: Flag = False,
    no_wait: Flag = False,
    wait: Flag = False,
    store: str | None = None,
    json: Flag = False,
) -> int:
    """Resumes an interrupted Run under its own id and waits for its result.

    Parameters
    ----------
    run_id
        The Run.
    preview
        Show what would be replayed and what would run; change nothing.
    no_wait
        Come back as soon as it runs; needs a server.
    wait
        Wait also while the Run waits for a person; without it the command shows what is asked, and ends.
    store
        The store's file; default $REFOLD_HOME/store/refold.db.
    json
        One JSON object on stdout.
    """
    home, config = configured(store, subprocess="any", bind="127.0.0.1:0")

    def go(api: Api) -> int:
        if preview:
            return _show_preview(api.post(f"/v1/runs/{run_id}/resume?preview=true"), as_json=json)
        resumed = api.post(f"/v1/runs/{run_id}/resume")
        say(f"resumed {run_id}: {resumed['replayed_steps']} finished steps are not run again")
        return _show_ids(resumed, as_json=json) if no_wait else follow(api, run_id, as_json=json, wait=wait)

    return through(home, config, go)


def rerun(
    run_id: str,
    from_step: str,
    *,
    lane: str | None = None,
    occurrence: int | None = None,
    step_id: str | None = None,
    blueprint: Literal["pinned", "head"] | None = None,
    preview: Flag = False,
    no_wait: Flag = False,
    wait: Flag = False,
    store: str | None = None,
    json: Flag = False,
) -> int:
    """Runs a step of an ended Run again, and everything downstream of it, under the same run id.

    Parameters
    ----------
    run_id
        The Run.
    from_step
        The name of the step.
    lane
        Only in this lane: indexes, outermost first, such as 2 or 0,3.
    occurrence
        Only this dispatch of the same question, from 0.
    step_id
        Only the dispatch that had this step id.
    blueprint
        The Blueprint that the Run has (pinned) or today's (head).
    preview
        Show what would be replayed and what would run; change nothing.
    no_wait
        Come back as soon as it runs; needs a server.
    wait
        Wait also while the Run waits for a person; without it the command shows what is asked, and ends.
    store
        The store's file; default $REFOLD_HOME/store/refold.db.
    json
        One JSON object on stdout.
    """
    body: dict[str, Json] = {"from_step": from_step, "occurrence": occurrence, "step_id": step_id}
    body |= {"blueprint": blueprint, "lane": [int(part) for part in lane.split(",")] if lane else None}
    home, config = configured(store, subprocess="any", bind="127.0.0.1:0")

    def go(api: Api) -> int:
        asked = {name: value for name, value in body.items() if value is not None}
        if preview:
            return _show_preview(api.post(f"/v1/runs/{run_id}/rerun-from?preview=true", asked), as_json=json)
        done = api.post(f"/v1/runs/{run_id}/rerun-from", asked)
        say(f"rerunning {run_id}: {done['replayed_steps']} steps kept, {done['dropped_steps']} cut")
        return _show_ids(done, as_json=json) if no_wait else follow(api, run_id, as_json=json, wait=wait)

    return through(home, config, go)


def cancel(run_id: str, *, store: str | None = None, json: Flag = False) -> int:
    """Cancels a Run for good and stops its work.

    Parameters
    ----------
    run_id
        The Run.
    store
        The store's file; default $REFOLD_HOME/store/refold.db.
    json
        One JSON object on stdout.
    """
    home, config = configured(store, bind="127.0.0.1:0")
    done = through(home, config, lambda api: api.post(f"/v1/runs/{run_id}/cancel"))
    if json:
        give(done)
    else:
        say(f"{run_id} is {done['status']}")
    return 0


def _show_preview(found: Json, *, as_json: bool) -> int:
    if as_json:
        give(found)
        return 0
    say(f"{found['run_id']}: {found['replayed_steps']} steps would be kept, {found['dropped_steps']} cut")
    table(("step", "lane", "plan", "why"), [[s["step_ref"], s["lane"], s["plan"], s["why"]] for s in found["steps"]])
    return 0


def _show_ids(ids: Json, *, as_json: bool) -> int:
    if as_json:
        give(ids)
    else:
        sys.stdout.write(ids["run_id"] + "\n")
    return 0


def _ctx(text: str | None) -> Json:
    if text is None:
        return {}
    return decode_strict(Path(text[1:]).read_bytes() if text.startswith("@") else text)
