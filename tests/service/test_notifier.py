"""Who is told that a Run waits for a person: once per request, over restarts, and never in the way of the Run."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from unittest import mock

import pytest
from request_kit import approve, asked, asking
from service_kit import PATIENCE_SECS, Crew, House, Json, ended, flow, launch, step

from refold.canonical import decode
from refold.engine.agents import Tools
from refold.errors import ConfigInvalid
from refold.records import MetaRow
from refold.server import shapes
from refold.service import notifier as notifier_module
from refold.service.app import App
from refold.service.channels import Program, Webhook, check_url
from refold.service.notifier import ACTION_BYTES

pytestmark = pytest.mark.anyio

BASE = "http://127.0.0.1:7777"
BODY = '{"event":"request.opened"}'


class Ear:
    """A channel that keeps what it was told; `says` gives what went wrong, by the number of the call."""

    def __init__(self, says: Callable[[int], str | None] = lambda n: None) -> None:
        self.told: list[Json] = []
        self.says = says
        self.gate = asyncio.Event()
        self.gate.set()
        self._moved = asyncio.Event()

    async def send(self, body: str, names: dict[str, str]) -> str | None:
        said = decode(body)
        assert names == {"REFOLD_REQUEST_ID": said["request"]["request_id"]}
        self.told.append(said)
        self._moved.set()
        await self.gate.wait()
        return self.says(len(self.told))

    @property
    def requests(self) -> list[str]:
        return [said["request"]["request_id"] for said in self.told]

    async def heard(self, times: int = 1) -> None:
        async with asyncio.timeout(PATIENCE_SECS):
            while len(self.told) < times:
                self._moved.clear()
                await self._moved.wait()


@contextlib.contextmanager
def hooked(*ears: Ear, pauses: tuple[float, ...] = (0.0, 0.0, 0.0)) -> Iterator[None]:
    """Apps that are opened inside tell these ears, and pause for no time between tries."""

    def channels(self: App) -> None:
        self.notifier._channels = ears

    opened = App.__init__

    def init(self: App, *args: Json, **more: Json) -> None:
        opened(self, *args, **more)
        channels(self)

    with mock.patch.object(App, "__init__", init), mock.patch.object(notifier_module, "PAUSES", pauses):
        yield


async def start(app: App) -> None:
    await app.notifier.start(lambda row: shapes.opened(BASE, row))


async def settled(app: App, tries: int = 50) -> None:
    """Gives what is under way its turns of the loop."""
    for _ in range(tries):
        await asyncio.sleep(0)


def counted(app: App) -> dict[str, int]:
    return dict(app.metrics.requests_told)


async def marks(app: App) -> list[str]:
    rows = await app.store.read(lambda reader: reader.find(MetaRow))
    return [row.key for row in rows if row.key.startswith("notified:")]


ASKS = flow(approve({"op": "lit", "value": {"deploy": "prod"}}))


async def test_a_request_is_told_of_once_with_its_record_and_where_it_is_answered(house: House, crew: Crew) -> None:
    ear = Ear()
    with hooked(ear):
        app = await house.open()
        await start(app)
        run = await launch(app, ASKS)
        (request,) = await asked(app, run)
        await ear.heard()
        (said,) = ear.told
        assert said["event"] == "request.opened"
        assert said["url"] == f"{BASE}/v1/requests/{request.request_id}"
        assert said["request"] == shapes.request(request)
        assert said["request"]["action"] == {"deploy": "prod"}
        await app.requests.decide(request.request_id, decision="approved")
        assert (await ended(app, run)).status == "done"
        await settled(app)
        assert len(ear.told) == 1 and counted(app)["ok"] == 1


async def test_a_question_to_a_person_is_told_of_as_well(house: House, crew: Crew) -> None:
    ear = Ear()
    with hooked(ear):
        app = await house.open()
        await start(app)
        await launch(app, asking(step("person")))
        await ear.heard()
        assert ear.told[0]["request"]["kind"] == "input"


async def test_a_slow_hook_delays_neither_its_run_nor_another(house: House, crew: Crew) -> None:
    ear = Ear()
    ear.gate.clear()
    with hooked(ear):
        app = await house.open()
        await start(app)
        runs = [await launch(app, ASKS, n=n) for n in range(8)]
        for run in runs:
            (request,) = await asked(app, run)
            await app.requests.decide(request.request_id, decision="approved")
            assert (await ended(app, run)).status == "done"
        assert len(ear.told) <= 4
        ear.gate.set()
        await settled(app, 500)
        assert len(ear.told) <= 4, "the others were answered before it was their turn"


async def test_a_hook_that_fails_is_tried_again_then_counted_and_the_run_waits_on(house: House, crew: Crew) -> None:
    deaf, well = Ear(lambda n: "no"), Ear()
    with hooked(deaf, well):
        app = await house.open()
        await start(app)
        run = await launch(app, ASKS)
        (request,) = await asked(app, run)
        await deaf.heard(3)
        await settled(app)
        assert (len(deaf.told), len(well.told)) == (3, 1), "who took it is not told again"
        assert counted(app) == {"ok": 0, "failed": 1}
        assert await marks(app) == []
        await app.requests.decide(request.request_id, decision="approved")
        assert (await ended(app, run)).status == "done"


async def test_a_hook_that_raises_does_not_end_the_telling(house: House, crew: Crew) -> None:
    class Broken(Ear):
        async def send(self, body: str, names: dict[str, str]) -> str | None:
            await super().send(body, names)
            if len(self.told) == 1:
                raise ZeroDivisionError
            return None

    ear = Broken()
    with hooked(ear):
        app = await house.open()
        await start(app)
        for n in range(6):
            await launch(app, ASKS, n=n)
        await ear.heard(6)


async def test_a_restart_tells_only_of_what_was_not_told(house: House, crew: Crew) -> None:
    with hooked(before := Ear()):
        app = await house.open()
        await start(app)
        first = await launch(app, ASKS, n=1)
        await asked(app, first)
        await before.heard()
        await _marked(app, 1)
        before.gate.clear()
        cut_off = await launch(app, ASKS, n=2)
        (open_request,) = await asked(app, cut_off)
        await before.heard(2)
    with hooked(after := Ear()):
        app = await house.reboot(app)
        await start(app)
        await after.heard()
        await settled(app)
        assert after.requests == [open_request.request_id]
        for run in (first, cut_off):
            await app.runs.resume(run.run_id)
            await asked(app, run)
        await settled(app)
        assert len(after.told) == 1, "a resume asks under the same id, and nobody is told again"


async def test_what_no_try_got_through_for_is_told_after_a_restart(house: House, crew: Crew) -> None:
    with hooked(deaf := Ear(lambda n: "no")):
        app = await house.open()
        await start(app)
        await asked(app, await launch(app, ASKS))
        await deaf.heard(3)
    with hooked(ear := Ear()):
        app = await house.reboot(app)
        await start(app)
        await ear.heard()


async def test_what_was_answered_meanwhile_is_not_told(house: House, crew: Crew) -> None:
    with hooked(ear := Ear()):
        app = await house.open()
        run = await launch(app, ASKS)
        (request,) = await asked(app, run)
        await app.requests.decide(request.request_id, decision="approved")
        await start(app)
        await settled(app)
        assert ear.told == []


async def test_marks_go_with_their_requests(house: House, crew: Crew) -> None:
    with hooked(ear := Ear()):
        app = await house.open()
        await start(app)
        runs = [await launch(app, ASKS, n=n) for n in range(2)]
        (request, _) = [(await asked(app, run))[0] for run in runs]
        await _marked(app, 2)
        await app.requests.decide(request.request_id, decision="approved")
        await ended(app, runs[0])
        app = await house.reboot(app)
        await start(app)
        assert len(await marks(app)) == 1
        assert len(ear.told) == 2


async def _marked(app: App, count: int) -> None:
    async with asyncio.timeout(PATIENCE_SECS):
        while len(await marks(app)) < count:
            await asyncio.sleep(0)


async def test_a_hook_that_does_not_answer_is_given_up(house: House, crew: Crew) -> None:
    ear = Ear()
    ear.gate.clear()
    with hooked(ear):
        app = await house.open(notify_timeout_secs=0.01)
        await start(app)
        await asked(app, await launch(app, ASKS))
        await ear.heard(3)


async def test_neither_secrets_nor_long_actions_are_told(house: House, crew: Crew) -> None:
    with hooked(ear := Ear()), mock.patch.dict("os.environ", REFOLD_SECRET_KEY="s3cr3t-value"):
        app = await house.open()
        app.notifier._secrets.resolve({"$secret": "KEY"})
        await start(app)
        await launch(app, flow(approve({"token": "s3cr3t-value", "of": {"$secret": "KEY"}})))
        await launch(app, flow(approve("x" * (ACTION_BYTES + 1))))
        await ear.heard(2)
        short, long = sorted((said["request"]["action"] for said in ear.told), key=lambda action: "token" not in action)
        assert short == {"token": "[secret KEY]", "of": {"$secret": "KEY"}}
        assert long["$truncated"]["byte_len"] == ACTION_BYTES + 3


# -- channels ---------------------------------------------------------------------------------------------------------


class Groups:
    """In the place of the reaper: who is registered at the moment."""

    server_id = "server-1"

    def __init__(self) -> None:
        self.now: set[int] = set()

    def register(self, pgid: int) -> None:
        self.now.add(pgid)

    def unregister(self, pgid: int) -> None:
        self.now.remove(pgid)


@pytest.fixture
def tools() -> Tools:
    with mock.patch.dict("os.environ", REFOLD_SECRET_KEY="s3cr3t-value"):
        tools = Tools(reaper=Groups(), grace_secs=0.05)
        tools.secrets.resolve({"$secret": "KEY"})
        return tools


def program(tools: Tools, code: str, *args: str) -> Program:
    return Program([sys.executable, "-c", code, *args], tools)


async def test_a_program_gets_the_body_on_stdin_and_no_secret_in_its_environment(tools: Tools, tmp_path: Path) -> None:
    out = tmp_path / "told"
    code = "import json,os,sys; open(sys.argv[1],'w').write(json.dumps([sys.stdin.read(), dict(os.environ)]))"
    with mock.patch.dict("os.environ", REFOLD_SECRET_OTHER="other-value"):
        assert await program(tools, code, str(out)).send(BODY, {"REFOLD_REQUEST_ID": "r"}) is None
    body, environment = decode(out.read_text())
    assert body == BODY
    assert {name: value for name, value in environment.items() if name.startswith("REFOLD")} == {
        "REFOLD_REQUEST_ID": "r",
        "REFOLD_SERVER": "server-1",
    }
    assert not tools.reaper.now


async def test_a_program_that_fails_says_why_without_secrets(tools: Tools) -> None:
    fault = await program(tools, "import sys; sys.exit('bad s3cr3t-value')").send(BODY, {})
    assert fault is not None and "exited with 1: bad [secret KEY]" in fault
    missing = await Program(["/nowhere/at-all"], tools).send(BODY, {})
    assert missing is not None and "cannot be started" in missing


async def test_a_program_that_hangs_is_ended_with_its_group(tools: Tools) -> None:
    begun = asyncio.create_task(program(tools, "import time; time.sleep(600)").send(BODY, {}))
    async with asyncio.timeout(PATIENCE_SECS):
        while not tools.reaper.now:
            await asyncio.sleep(0)
    begun.cancel()
    await asyncio.gather(begun, return_exceptions=True)
    assert not tools.reaper.now


@contextlib.asynccontextmanager
async def web(reply: bytes) -> AsyncIterator[tuple[str, list[bytes]]]:
    """A server that answers each message with `reply` and keeps what it was sent."""
    got: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        (length,) = [int(line.split(b":")[1]) for line in head.splitlines() if line.startswith(b"Content-Length")]
        got.append(head + await reader.readexactly(length))
        writer.write(reply)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", got


async def test_a_webhook_posts_the_body() -> None:
    async with web(b"HTTP/1.1 204 No Content\r\n\r\n") as (url, got):
        assert await Webhook(f"{url}/in?key=k").send(BODY, {}) is None
    (message,) = got
    head, body = message.split(b"\r\n\r\n")
    assert head.splitlines()[0] == b"POST /in?key=k HTTP/1.1"
    assert b"Content-Type: application/json" in head.splitlines()
    assert body.decode() == BODY


@pytest.mark.parametrize(
    ("reply", "fault"),
    [
        (b"HTTP/1.1 500 No\r\n\r\n", "status 500"),
        (b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1/\r\n\r\n", "status 302"),
        (b"SSH-2.0\r\n", "not HTTP"),
        (b"x" * 100_000, "cannot be reached"),
        (b"", "not HTTP"),
    ],
)
async def test_a_webhook_that_does_not_take_it_says_so_and_not_its_path(reply: bytes, fault: str) -> None:
    async with web(reply) as (url, _):
        said = await Webhook(f"{url}/very-secret-path").send(BODY, {})
    assert said is not None and fault in said and "secret" not in said


async def test_a_webhook_that_nobody_answers_at_says_so() -> None:
    async with web(b"") as (url, _):
        pass
    said = await Webhook(url).send(BODY, {})
    assert said is not None and "cannot be reached" in said


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/x", "http://[::1]/", "http://localhost/", "https://a.example/x?y"])
def test_addresses_that_may_be_told(url: str) -> None:
    check_url(url)


@pytest.mark.parametrize(
    "url",
    ["http://a.example/", "http://10.0.0.1/", "http://localhost.a.example/", "http://127.0.0.1@a.example/",
     "ftp://localhost/", "https://user:very-secret@a.example/", "https://", "/x", "https://a.example/#very-secret",
     "https://a.example/\r\nX: y", "https://a.example:x/", "https://[a/"],
)  # fmt: skip
def test_addresses_that_may_not(url: str) -> None:
    with pytest.raises(ConfigInvalid) as refused:
        check_url(url)
    assert "very-secret" not in str(refused.value)
