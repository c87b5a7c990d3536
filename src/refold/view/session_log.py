"""The log records of a Session as a whole: how each is built, and how it renders."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

from refold.records import LogRecord, LogRow, LogType
from refold.view.parts import Members, Part, Renderer, item, present

ModelSource = Literal["default", "user"]


def session_created(at: int, *, model: str, source: ModelSource, client: str, command: str) -> LogRecord:
    """A Session begins, with the Blueprint `model`. The cursor that session/start answers covers its frames.

    Args:
        at: when.
        model: the model id.
        source: whether `model` was chosen or is the default.
        client: the name of the client that asked.
        command: the command that asked.
    """
    body = {"model": model, "source": source, "client": client, "command": command}
    return LogRecord(type=LogType.SESSION_CREATED, at=at, body=body)


def _session_created(row: LogRow, body: Members, opening: LogRow | None) -> list[Part]:
    who = {"clientName": body["client"], "commandId": body["command"]}
    approvals = who | {"mode": "promptUnmatched", "source": "startup"}
    return [*_model_changed(row, body, opening), ("session/approvalModeChanged", approvals)]


def session_resumed(at: int, *, command: str) -> LogRecord:
    """A Session is loaded from disk. Durable, but no event of the view: no client's state changes by it."""
    return LogRecord(type=LogType.SESSION_RESUMED, at=at, body={"command": command})


def _session_resumed(row: LogRow, body: Members, opening: LogRow | None) -> list[Part]:
    return []


def model_changed(at: int, *, model: str, source: ModelSource, command: str) -> LogRecord:
    """Later turns run another Blueprint. See `session_created`."""
    return LogRecord(type=LogType.MODEL_CHANGED, at=at, body={"model": model, "source": source, "command": command})


def _model_changed(row: LogRow, body: Members, opening: LogRow | None) -> list[Part]:
    return [("session/modelChanged", {"modelId": body["model"], "providerId": None, "source": body["source"]})]


def name_changed(at: int, *, name: str, command: str) -> LogRecord:
    """The Session has a name, which a person gave it."""
    return LogRecord(type=LogType.NAME_CHANGED, at=at, body={"name": name, "command": command})


def _name_changed(row: LogRow, body: Members, opening: LogRow | None) -> list[Part]:
    return [("session/nameChanged", {"name": body["name"], "nameOrigin": "custom"})]


def compacted(at: int, *, trigger: Literal["manual", "auto"], command: str | None = None) -> LogRecord:
    """A boundary is installed: from here on an anchored snapshot is served."""
    return LogRecord(type=LogType.COMPACTED, at=at, body=present(trigger=trigger, command=command), revision=2)


def _compacted(row: LogRow, body: Members, opening: LogRow | None) -> list[Part]:
    open_item = item(f"C-{row.seq}", "compaction", row, revision=1, status="inProgress", trigger=body["trigger"])
    done = {"revision": row.revision, "status": "completed", "outcome": "compacted", "strategyId": "fold"}
    counts = {"tokensBefore": 0, "tokensAfter": 0}
    # `record.render` replaces this by the anchor: only there the row's own cursor can be minted.
    closed = {"item": open_item | done | counts | {"summarizedThrough": ""}}
    return [("item/started", {"item": open_item}), ("item/completed", closed)]


RENDERERS: Final[Mapping[LogType, Renderer]] = {
    LogType.SESSION_CREATED: _session_created,
    LogType.SESSION_RESUMED: _session_resumed,
    LogType.MODEL_CHANGED: _model_changed,
    LogType.NAME_CHANGED: _name_changed,
    LogType.COMPACTED: _compacted,
}
