"""`refold approve answer`: what people say to what Runs ask them.

An answer to an interrupted Run resumes it. Where no server goes on with it, the command itself does, and waits for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from cyclopts import Parameter

from refold.cli.doors import configured, give, holder, say
from refold.cli.following import follow
from refold.cli.holding import through
from refold.client.api import Api
from refold.errors import InvalidRequest

Json = Any
Flag = Annotated[bool, Parameter(negative=())]
Labels = Annotated[list[str] | None, Parameter(negative=(), consume_multiple=True)]


def approve(
    request_id: str,
    *,
    deny: Flag = False,
    choice: str | None = None,
    feedback: str | None = None,
    wait: Flag = False,
    store: str | None = None,
    json: Flag = False,
) -> int:
    """Decides an approval: approves it, unless told otherwise.

    Parameters
    ----------
    request_id
        The request.
    deny
        Deny it.
    choice
        The id of one of its choices, instead.
    feedback
        What the flow is told beside the decision.
    wait
        Wait for the Run's result; always so where no server goes on with it.
    store
        The store's file; default $REFOLD_HOME/store/refold.db.
    json
        One JSON object on stdout.
    """
    if deny and choice is not None:
        raise InvalidRequest("give --deny or --choice, not both")
    said = {"choice": choice} if choice is not None else {"decision": "denied" if deny else "approved"}
    body = said | ({} if feedback is None else {"feedback": feedback})
    return _settled(lambda api: api.post(f"/v1/requests/{request_id}/decide", body), store, wait=wait, as_json=json)


def answer(
    request_id: str,
    *,
    label: Labels = None,
    text: str | None = None,
    note: str | None = None,
    wait: Flag = False,
    store: str | None = None,
    json: Flag = False,
) -> int:
    """Answers a question, by labels or by a text.

    Parameters
    ----------
    request_id
        The request.
    label
        A label of the question; several, where it takes several.
    text
        A text of your own, instead.
    note
        What is noted beside the answer.
    wait
        Wait for the Run's result; always so where no server goes on with it.
    store
        The store's file; default $REFOLD_HOME/store/refold.db.
    json
        One JSON object on stdout.
    """
    if (not label) == (text is None):
        raise InvalidRequest("give either --label or --text")

    def settle(api: Api) -> Json:
        questions = api.get(f"/v1/requests/{request_id}")["questions"]
        if len(questions) != 1:
            raise InvalidRequest(f"{request_id} asks {len(questions)} questions; the command answers exactly one")
        said = _said(questions[0], label or [], text) | ({} if note is None else {"note": note})
        return api.post(f"/v1/requests/{request_id}/answer", {"answers": [{"questionId": questions[0]["id"], **said}]})

    return _settled(settle, store, wait=wait, as_json=json)


def _said(question: Json, labels: list[str], text: str | None) -> Json:
    if text is not None:
        return {"freeText": text}
    if question["selection"]["mode"] == "multiple":
        return {"selectedLabels": labels}
    if len(labels) > 1:
        raise InvalidRequest("this question takes one label")
    return {"selectedLabel": labels[0]}


def _settled(settle: Callable[[Api], Json], store: str | None, *, wait: bool, as_json: bool) -> int:
    home, config = configured(store, subprocess="any", bind="127.0.0.1:0")
    alone = holder(home, config) is None

    def go(api: Api) -> int:
        done = settle(api)
        say(f"{done['request_id']} is {done['status']}: {done['resolution']['decision']}")
        if done["resumed"] and (wait or alone):
            return follow(api, done["run_id"], as_json=as_json)
        if not done["resumed"]:
            say(f"its run goes on once its session is idle, or with: refold resume {done['run_id']}")
        if as_json:
            give(done)
        return 0

    return through(home, config, go)
