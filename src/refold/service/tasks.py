"""Tasks and their kicks: what is created, in which commit, and what a Run's launch snapshot holds.

A Task owns one Session, made with it. A kick makes a Run: launched at once if the Session is idle, else pending in its
queue. The snapshot is complete and self-contained at that moment, but for what only the launch knows of a conversation
(`engine.activation` fills that in).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from refold import view
from refold.canonical import decode, encode, encode_known
from refold.engine.activation import Opening
from refold.engine.clock import Clock
from refold.engine.supervisor import Supervisor
from refold.errors import NotFound, Unprocessable
from refold.flowir import Blueprint
from refold.records import (
    INLINE_BYTES,
    LAUNCH_BYTES,
    RunRecord,
    RunStatus,
    SessionRecord,
    TaskRecord,
    genesis,
    parse_id,
    stored_json,
)
from refold.service.blueprints import Blueprints, Resolved
from refold.service.commands import Command, Ledger, later, woken
from refold.service.settings import SubprocessMode
from refold.store import Store, Tx, begin_log, put_launch

Json = Any


class NewTask(msgspec.Struct, frozen=True, kw_only=True):
    """What a Task is made of. `session_id` is given only by a client that chose one."""

    blueprint: Json
    init_ctx: Json = msgspec.field(default_factory=dict)
    goal: str = ""
    labels: Mapping[str, str] = msgspec.field(default_factory=dict)
    session_id: str | None = None
    workspace_root: str | None = None
    work_dir: str | None = None
    project_root: str | None = None
    client: str = "http"
    ttl_secs: float | None = None
    command_id: str | None = None
    default_model: bool = False


class Begun(msgspec.Struct, frozen=True, kw_only=True):
    """What a kick answers: the ids of the Run it made, and how that stood then."""

    task_id: str
    run_id: str
    session_id: str
    status: RunStatus


class Kick(msgspec.Struct, frozen=True, kw_only=True):
    """What wakes a Run: the turn it becomes, and the text of a `turn/start`."""

    opening: Opening
    override: Json = None
    ttl_secs: float | None = None
    ahead: bool = False
    """Whether it is launched before what waits in the queue."""


class Kicked(msgspec.Struct, frozen=True):
    """The Run that a kick made, and the one that it launched: the same one, an older one, or none."""

    run: RunRecord
    launched: RunRecord | None


class Tasks:
    """Creates Tasks, kicks them, and reads them back."""

    def __init__(
        self, store: Store, clock: Clock, supervisor: Supervisor, blueprints: Blueprints, subprocess: SubprocessMode
    ) -> None:
        self._store = store
        self._clock = clock
        self._supervisor = supervisor
        self._blueprints = blueprints
        self._subprocess: SubprocessMode = subprocess
        self._ledger = Ledger(store)

    async def launch(self, new: NewTask, *, subprocess: SubprocessMode | None = None) -> RunRecord:
        """As `begin`, and the Run's record."""
        return _applied((await self._launch(new, subprocess, None))[1])

    async def rekick(self, task_id: str, override: Json = None) -> RunRecord:
        """As `begin_again`, and the Run's record."""
        return _applied((await self._kick_again(task_id, override, None, None))[1])

    async def begin(
        self, new: NewTask, *, subprocess: SubprocessMode | None = None, command: Command | None = None
    ) -> Begun:
        """Creates a Task with its Session and first Run, all in one commit, and starts the Run.

        `subprocess` widens what the server allows, for a user's own file. Raises BlueprintInvalid, NotFound,
        InvalidRequest, Unprocessable, CommandConflict: nothing is created then.
        """
        return (await self._launch(new, subprocess, command))[0]

    async def _launch(
        self, new: NewTask, subprocess: SubprocessMode | None, command: Command | None
    ) -> tuple[Begun, RunRecord | None]:
        mode = subprocess or self._subprocess
        prepared = await later(self._prepare(new, mode))
        opening = woken(self._clock, "http", command)

        def effect(tx: Tx) -> Kicked:
            whole, resolved = prepared()
            task, session = self.create(tx, whole, resolved)
            kick = Kick(opening=opening, ttl_secs=new.ttl_secs, ahead=True)  # a new Session has nothing that waits
            return self.kick(tx, task, session, resolved, kick, mode)

        return await self._kick_once(command, effect)

    async def begin_again(
        self, task_id: str, override: Json = None, *, ttl_secs: float | None = None, command: Command | None = None
    ) -> Begun:
        """Kicks a Task again: always a new Run. A Task launched by id takes today's head unless its version is fixed.

        Raises InvalidId, NotFound, BlueprintInvalid, Unprocessable, CommandConflict: nothing is created then.
        """
        return (await self._kick_again(task_id, override, ttl_secs, command))[0]

    async def _kick_again(
        self, task_id: str, override: Json, ttl_secs: float | None, command: Command | None
    ) -> tuple[Begun, RunRecord | None]:
        task = await self.get(task_id)
        resolved = await later(self._blueprints.resolve(decode(task.blueprint_json)))
        kick = Kick(opening=woken(self._clock, "http", command), override=override, ttl_secs=ttl_secs)

        def effect(tx: Tx) -> Kicked:
            self._blueprints.programs.check(resolved().blueprint)
            session = tx.find(SessionRecord, session_id=task.session_id)[0]
            return self.kick(tx, task, session, resolved(), kick)

        return await self._kick_once(command, effect)

    async def _prepare(self, new: NewTask, mode: SubprocessMode) -> tuple[NewTask, Resolved]:
        """What a launch needs before its transaction: its Blueprint, looked up, expanded, and allowed."""
        new = msgspec.structs.replace(new, blueprint=self._blueprints.expanded(new.blueprint))
        resolved = await self._blueprints.resolve(new.blueprint)
        self._blueprints.programs.check(resolved.blueprint, mode)
        check_folders(resolved.blueprint, new)
        return new, resolved

    async def _kick_once(
        self, command: Command | None, effect: Callable[[Tx], Kicked]
    ) -> tuple[Begun, RunRecord | None]:
        """Applies a kick, once if its command has an id, and starts what it launched.

        What it answers, and the record of the Run that it made; None if the answer was in the ledger.
        """
        done: Kicked | None = None

        def kicked(tx: Tx) -> Json:
            nonlocal done
            done = effect(tx)
            run = done.run
            return {"task_id": run.task_id, "run_id": run.run_id, "session_id": run.session_id, "status": run.status}

        answer, _ = await self._ledger.once(command, kicked, at=self._clock.now_ms())
        if done is not None and done.launched is not None:
            self._supervisor.drive(done.launched)
        return Begun(**answer), None if done is None else done.run

    def create(self, tx: Tx, new: NewTask, resolved: Resolved) -> tuple[TaskRecord, SessionRecord]:
        """Creates a Task and its Session with the record that opens the view."""
        at = self._clock.now_ms()
        session_id = new.session_id or self._clock.uuid7()
        task = tx.insert(
            TaskRecord(
                task_id=self._clock.mint("T-"),
                session_id=session_id,
                goal=new.goal,
                blueprint_json=encode_known(new.blueprint),
                init_ctx_json=encode(new.init_ctx),
                labels_json=encode(dict(new.labels)),
                status=RunStatus.PENDING,
                created_at=at,
                updated_at=at,
                work_dir=new.work_dir,
                project_root=new.project_root,
            )
        )
        session = SessionRecord(
            session_id=session_id,
            task=task.n,
            seq=0,
            chain=genesis(session_id),
            active_run=None,
            active_turn=None,
            held=False,
            launched=0,
            turns=0,
            model_id=resolved.name,
            workspace_root=new.workspace_root,
            name=None,
            created_at=at,
            updated_at=at,
        )
        created = view.session_created(
            at,
            model=resolved.name,
            source="default" if new.default_model else "user",
            client=new.client,
            command=new.command_id or session_id,
        )
        return task, begin_log(tx, session, created)

    def kick(
        self,
        tx: Tx,
        task: TaskRecord,
        session: SessionRecord,
        resolved: Resolved,
        kick: Kick,
        mode: SubprocessMode | None = None,
    ) -> Kicked:
        """Creates a Run of `task`; launches the head of the Session's queue if the Session, as it now stands, is idle.

        A kick is an operator's act, so it also lets go a queue that was held; what it launches is then an older Run.
        """
        at, run_id, opening = self._clock.now_ms(), self._clock.mint("R-"), kick.opening
        launch = {
            "blueprint": resolved.snapshot(),
            "init_ctx": merged(resolved.blueprint.default_init_ctx, decode(task.init_ctx_json), kick.override),
            "subprocess": mode or self._subprocess,
            "work_dir": task.work_dir,
            "project_root": task.project_root,
            "ttl_secs": kick.ttl_secs,
            "kick": msgspec.to_builtins(opening),
        }
        # All but what this kick gives has been looked at, or comes from the store; most kicks give nothing.
        snapshot = encode_known(launch) if kick.override is None and kick.ttl_secs is None else encode(launch)
        # What its launch adds to is put beside the record by its launch: here it would leave a second one.
        most = LAUNCH_BYTES if opening.text is None else INLINE_BYTES
        run = tx.insert(
            RunRecord(
                run_id=run_id,
                task=task.n,
                task_id=task.task_id,
                session=session.n,
                session_id=session.session_id,
                status=RunStatus.PENDING,
                waiting_on=None,
                epoch=0,
                generation=1,
                activation=0,
                turn_id=opening.turn_id,
                opened=0,
                input_json=stored_json(snapshot, most)[0],
                result_json=None,
                rows=0,
                chain=genesis(run_id),
                labels_json=task.labels_json,
                created_at=at,
                updated_at=at,
                started_at=None,
                activated_at=0,
                ended_at=None,
            )
        )
        put_launch(tx, run.n, snapshot, most)
        queue, launched = self._supervisor.queue, None
        if session.active_run is None:
            launched = queue.launch(tx, run, at, session) if kick.ahead else queue.launch_next(tx, session, at)
        if launched is not None and launched.n == run.n:
            return Kicked(run=launched, launched=launched)
        now = tx.get(RunRecord, run.n)
        assert now is not None, "inserted above"
        return Kicked(run=now, launched=launched)

    def opening(self, trigger: str, command_id: str | None = None, text: str | None = None, **more: str) -> Opening:
        """An Opening whose turn id is the command's, or a new one of ours where no command woke the Run."""
        turn_id = command_id or self._clock.uuid7()
        return Opening(turn_id=turn_id, command_id=turn_id, trigger=trigger, text=text, **more)

    async def get(self, task_id: str) -> TaskRecord:
        """Raises InvalidId, NotFound."""
        parse_id(task_id, "T")
        found = await self._store.read(lambda reader: reader.find(TaskRecord, task_id=task_id))
        if not found:
            raise NotFound(f"there is no task {task_id}", kind="task_not_found", task_id=task_id)
        return found[0]

    async def page(self, limit: int, before: int | None = None) -> list[TaskRecord]:
        """The newest Tasks first, those made before the integer key `before`."""

        return await self._store.read(
            lambda reader: reader.find(TaskRecord, before=before, limit=limit, newest_first=True)
        )


def _applied(run: RunRecord | None) -> RunRecord:
    assert run is not None, "a kick without a command is in no ledger"
    return run


def check_folders(blueprint: Blueprint, new: NewTask) -> None:
    """Raises Unprocessable if the Blueprint insists (`check_policy: strict`) on a folder and the launch names none."""
    if blueprint.check_policy == "strict" and new.work_dir is None and new.project_root is None:
        raise Unprocessable(
            f"blueprint {blueprint.id!r} has check_policy strict: launch it with a work_dir or project_root",
            kind="work_dir_required",
        )


def merged(*layers: Json) -> Json:
    """The initial flow ctx: later layers win member by member; a layer that is no object replaces all before it."""
    ctx: Json = {}
    for layer in layers:
        if layer is None:
            continue
        ctx = ctx | layer if isinstance(ctx, dict) and isinstance(layer, dict) else layer
    return ctx
