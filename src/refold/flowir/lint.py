"""Lint: all that can be said of a Blueprint by looking at it.

*Faults* are what `parse_blueprint` refuses, and nothing runs with one. *Warnings* are what runs and is probably not
meant. Not here: what a server allows and has (`service.blueprints`).
"""

from __future__ import annotations

from typing import Any

from refold.errors import BlueprintInvalid
from refold.flowir.ir import Blueprint, Shape
from refold.flowir.parse import parse_blueprint
from refold.flowir.verdicts import warnings

Json = Any


class Lint(Shape, frozen=True):
    """What was found, as `{path, kind, message, hint}`; `blueprint` is None if there are faults."""

    faults: tuple[Json, ...]
    warnings: tuple[Json, ...]
    blueprint: Blueprint | None


def lint(value: Json) -> Lint:
    """Looks at a JSON value as a Blueprint."""
    try:
        blueprint = parse_blueprint(value)
    except BlueprintInvalid as error:
        return Lint(tuple(error.data["faults"]), (), None)
    return Lint((), tuple(warnings(value["flow"], blueprint.agents)), blueprint)
