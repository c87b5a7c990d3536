"""`review-loop.blueprint.json`, written in Python: `python examples/review_loop.py > review-loop.blueprint.json`.

A draft is reviewed until the reviewer passes it, three times at most. The reviewer's verdict is under a contract: any
other word than PASS or BLOCKED fails the step instead of slipping through the conditions.
"""

import json

from refold import assign, blueprint, branch, eq, gte, loop, seq, step


def review_loop() -> dict:
    """The Blueprint."""
    one_round = seq(
        step("write", {"$in": "a draft", "$step_meta": {"ref": "tone"}}, "$.draft"),
        branch(gte("$.rounds", 1), assign("$.opinion", "PASS"), assign("$.opinion", "BLOCKED")),
        step("review", "$.opinion", "$.verdict"),
    )
    return blueprint(
        "review-loop",
        seq(
            loop("$.rounds", eq("$.verdict", "BLOCKED"), one_round, max=3),
            branch(eq("$.verdict", "PASS"), assign("$.output", "$.draft"), assign("$.output", "given up")),
        ),
        [
            {"name": "write", "kind": "python", "spec": {"fn": "builtin:echo"}},
            {
                "name": "review",
                "kind": "python",
                "spec": {"fn": "builtin:echo"},
                "verdict": {"channel": "body", "values": ["PASS", "BLOCKED"]},
            },
        ],
        metas=[{"name": "tone", "ctx": {"tone": "plain"}}],
        default_init_ctx={"verdict": "BLOCKED"},
    )


if __name__ == "__main__":
    print(json.dumps(review_loop(), indent=2))  # noqa: T201 - its output is what it is for
