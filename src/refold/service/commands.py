"""The command ledger: a command id applies once and answers the same for ever (law 9, R7).

It is keyed by command id alone, store-wide, over every door. The answer is written in the commit of the effect: an
effect without its answer would be applied again by a retry, an answer without its effect would lie.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, NoReturn, TypeVar

import msgspec

from refold.canonical import decode, digest, encode
from refold.engine.activation import Opening
from refold.engine.clock import Clock
from refold.errors import CommandConflict, CommandRejected, Conflict, RefoldError, SessionBusy
from refold.records import CommandRow
from refold.store import Store, Tx

Json = Any
T = TypeVar("T")

_REJECTIONS: Mapping[str, type[Conflict]] = {kind.kind: kind for kind in (CommandRejected, SessionBusy)}


class Command(msgspec.Struct, frozen=True):
    """A command that its client can repeat: the id that it minted, and all that the command asks for."""

    id: str
    verb: str
    params: Json


class Ledger:
    """Applies commands once. `apply` is the only way a command with an id has an effect."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def once(self, command: Command | None, effect: Callable[[Tx], Json], *, at: int) -> tuple[Json, bool]:
        """As `apply`; a command that came without an id is applied as often as it is sent."""
        if command is None:
            return await self._store.write(effect), True
        return await self.apply(command.id, command.verb, command.params, effect, at=at)

    async def apply(
        self, command_id: str, verb: str, params: Json, effect: Callable[[Tx], Json], *, at: int
    ) -> tuple[Json, bool]:
        """The answer to the command, and whether it was applied now (True) or read from the ledger (False).

        `effect(tx)` returns the answer. It may raise a rejection, before it has written anything: rejections are
        answers too, and a retry gets the same one whatever has changed since. Everything else it raises leaves no
        trace, so the same id may be tried again.

        Raises CommandConflict if the id was used with another verb or other params, and the rejection.
        """
        body = digest({"verb": verb, "params": params})

        def once(tx: Tx) -> tuple[Json, bool]:
            known = tx.get(CommandRow, command_id)
            if known is not None:
                if known.digest != body:
                    raise CommandConflict(
                        f"command {command_id} was used before with another body; mint a new id for a new command",
                        command_id=command_id,
                    )
                return decode(known.answer_json), False
            try:
                answer = {"result": effect(tx)}
            except (CommandRejected, SessionBusy) as no:
                answer = {"rejected": {"kind": no.kind, "message": no.message, "data": no.data}}
            row = CommandRow(command_id=command_id, digest=body, answer_json=encode(answer), created_at=at)
            tx.insert(row)
            return answer, True

        answer, fresh = await self._store.write(once)
        if rejected := answer.get("rejected"):
            raise _REJECTIONS[rejected["kind"]](rejected["message"], **rejected["data"])
        return answer["result"], fresh


def woken(clock: Clock, trigger: str, command: Command | None) -> Opening:
    """How an activation begins that is no turn of a conversation: its turn id is ours, its command the client's."""
    turn_id = clock.uuid7()
    return Opening(turn_id=turn_id, command_id=turn_id if command is None else command.id, trigger=trigger)


async def later(preparing: Awaitable[T]) -> Callable[[], T]:
    """What an effect needs and cannot await: its value, or the error, which is raised when the effect asks for it.

    Raised before, it would hide what the ledger knows: a client that repeats its session/start would be refused because
    the Blueprint was archived meanwhile.
    """
    try:
        value = await preparing
    except RefoldError as error:
        return partial(_raise, error)
    return lambda: value


def _raise(error: RefoldError) -> NoReturn:
    raise error
