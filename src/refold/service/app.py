"""The composition root: opens a store, puts the services together, recovers, and takes it all apart again.

The order at boot is a promise: take the store, recover, then accept. The order at the end too: what runs is marked as
interrupted durably, then stopped.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping
from typing import Any

from refold import diagnostics
from refold.engine.activation import Queue
from refold.engine.agents import Tools
from refold.engine.agents.operator import Offers
from refold.engine.capacity import Capacity
from refold.engine.clock import Clock
from refold.engine.reaper import Reaper
from refold.engine.secrets import Secrets
from refold.engine.supervisor import Supervisor
from refold.engine.sweeps import SERVER_RESTART, SERVER_SHUTDOWN, StaleSweep, interrupt_running, report
from refold.errors import RefoldError
from refold.records import MetaRow, RunRecord, RunStatus
from refold.service.blueprints import Blueprints
from refold.service.channels import Channel, Program, Webhook
from refold.service.commands import Ledger
from refold.service.compaction import Compaction
from refold.service.copies import MAC_KEY, MAC_KEY_BYTES, Copies
from refold.service.loads import Loads
from refold.service.metrics import MeteredStore, Metrics
from refold.service.notifier import Notifier
from refold.service.operators import Operators, may_need_operator, needs_operator
from refold.service.programs import Programs
from refold.service.references import References
from refold.service.requests import Requests
from refold.service.reruns import Reruns
from refold.service.runs import Runs
from refold.service.sessions import Sessions
from refold.service.settings import Settings
from refold.service.submissions import Submissions
from refold.service.tasks import Tasks
from refold.service.turns import Turns
from refold.session import Hub, Live, SessionLog, Suffixes, boundaries
from refold.store import MemoryStore, Reader, SqliteStore, Store, Tx

log = diagnostics.Log("refold")


class App:
    """Everything that one process holds of one store."""

    def __init__(self, settings: Settings, store: Store, key: bytes, reaper: Reaper, clock: Clock) -> None:
        self.settings = settings
        self.metrics = Metrics()
        store = self.store = MeteredStore(store, self.metrics, clock)
        self.clock = clock
        self._reaper = reaper
        hub = Hub()
        store.on_commit(self._appended)
        self._hub = hub
        offers, live = Offers(), Live(hub)
        tools = Tools(
            reaper=reaper,
            clock=clock,
            operators=offers,
            voice=live,
            app=settings.app,
            templates=settings.templates,
            capacity=Capacity(settings.max_concurrent_steps, settings.max_subprocesses),
            secrets=Secrets(settings.secrets_file, plain_names=settings.subprocess == "any"),
        )
        self._supervisor = Supervisor(store, clock, tools, Queue(settings.max_running_runs), replay=settings.replay)
        self.sweep = StaleSweep(
            store, clock, self._supervisor, settings.stale_run_sweep_secs, settings.sweep_period_secs
        )
        self._sweeping: asyncio.Task[None] | None = None
        self.closed = False
        self.ledger = Ledger(store)
        self.blueprints = Blueprints(
            store,
            clock,
            settings.default_blueprint,
            references=References(settings.blueprint_roots),
            programs=Programs(settings.subprocess, settings.templates),
            parsed=self._supervisor.parsed,
        )
        self.tasks = Tasks(store, clock, self._supervisor, self.blueprints, settings.subprocess)
        self.runs = Runs(store, clock, self._supervisor, settings.subprocess, replay=settings.replay)
        self.copies = Copies(store, clock)
        log_of = SessionLog(key, boundaries.start)
        self.requests = Requests(
            store,
            clock,
            self._supervisor,
            self.runs,
            self.ledger,
            tools.desk,
            log_of,
            resume_on_decision=settings.resume_on_decision,
        )
        channels: list[Channel] = [Program(settings.notify_command, tools)] if settings.notify_command else []
        channels += [Webhook(settings.notify_url)] if settings.notify_url is not None else []
        self.notifier = Notifier(
            store, tools.desk, tools.secrets, self.metrics, channels, timeout_secs=settings.notify_timeout_secs
        )
        self.operators = Operators(store, clock, offers)
        self.submissions = Submissions(store, self._supervisor, offers, hub, tools.output_bytes)
        self.reruns = Reruns(store, clock, self._supervisor, self.blueprints, settings.subprocess)
        suffixes = Suffixes(log_of)
        self.compaction = Compaction(store, clock, self.ledger, log_of, suffixes, settings.view)
        self.sessions = Sessions(
            store,
            clock,
            self._supervisor,
            self.blueprints,
            self.tasks,
            self.ledger,
            hub,
            live,
            log_of,
            suffixes,
            self.compaction,
            settings.view,
        )
        self.loads = Loads(
            store,
            clock,
            hub,
            log_of,
            idle_secs=settings.idle_unload_secs,
            period_secs=settings.sweep_period_secs,
        )
        self._supervisor.on_drive(self.loads.driven)
        self._unloading: asyncio.Task[None] | None = None
        self.turns = Turns(
            store,
            clock,
            self._supervisor,
            self.blueprints,
            self.tasks,
            self.runs,
            self.sessions,
            self.requests,
            self.ledger,
        )

    def _appended(self, heads: Mapping[int, int]) -> None:
        """What a commit that appended to logs sets off: readers look, and Sessions that have grown compact."""
        self._hub.ring(heads)
        self.compaction.watch(heads)
        self.loads.appended(heads)

    @classmethod
    async def open(cls, settings: Settings) -> App:
        """Opens the store and recovers what a dead process left. The caller holds the store's lock.

        Raises StoreRefused, StoreDamaged, CommitFailed: nothing runs then.
        """
        clock = Clock()
        store = MemoryStore() if settings.store is None else SqliteStore.open(settings.store)
        key = await store.write(_mac_key)
        app = cls(settings, store, key, Reaper.start(clock.uuid7()), clock)
        at = clock.now_ms()
        recovered = await store.write(lambda tx: interrupt_running(tx, SERVER_RESTART, at))
        report(recovered)
        await app.operators.load()
        if settings.auto_resume:
            for run, _ in recovered:
                await app._resume(run)
        app._unloading = asyncio.create_task(app.loads.run(), name="unloading")
        app._sweeping = asyncio.create_task(app.sweep.run(), name="stale run sweep")
        return app

    async def _resume(self, run: RunRecord) -> None:
        """Resumes a Run at boot, but not one that comes to an operator's step at once: nobody can be there yet."""
        try:
            may = await self.store.read(lambda reader: may_need_operator(reader, run))
            if may and needs_operator(await self.reruns.preview_resume(run.run_id)):
                log.info("run_not_auto_resumed", run_id=run.run_id, kind="operator_absent")
                return
            await self.runs.resume(run.run_id)
        except RefoldError as error:
            log.warning("run_not_auto_resumed", run_id=run.run_id, kind=error.kind, error=error.message)

    async def status(self) -> dict[str, Any]:
        """How this process stands: Runs by status, what the sweep found, and its operators."""

        def count(reader: Reader) -> dict[str, int]:
            return {str(status): reader.count(RunRecord, status=status) for status in RunStatus}

        sweep = {"interrupted": self.sweep.interrupted, "faults": self.sweep.faults}
        runs = await self.store.read(count)
        return {"runs": runs, "stale_run_sweep": sweep, "operators": self.operators.counts()}

    async def drain(self) -> None:
        """Marks what runs as interrupted, resumable later, then stops its work and returns when it is gone."""
        at = self.clock.now_ms()
        await self.store.write(lambda tx: interrupt_running(tx, SERVER_SHUTDOWN, at))
        self.operators.hang_up()
        await self._supervisor.stop_all()
        await self.loads.close("hostShutdown")

    async def close(self) -> None:
        """Stops what is left and closes the store. What was not drained is found by the next boot. Twice is once."""
        if self.closed:
            return
        self.closed = True
        self.operators.hang_up()
        await self.notifier.close()
        for task in (self._sweeping, self._unloading):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        await self._supervisor.stop_all()
        await self.loads.close()
        await self.compaction.close()
        await self._reaper.close()
        await self.store.close()


def _mac_key(tx: Tx) -> bytes:
    """The key that seals cursors. It lives in the store and travels with it: a copied store keeps them valid."""
    row = tx.get(MetaRow, MAC_KEY)
    if row is None:
        row = tx.insert(MetaRow(key=MAC_KEY, value=secrets.token_bytes(MAC_KEY_BYTES)))
    return row.value
