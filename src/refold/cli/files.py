"""Blueprint files: read strictly, with their references expanded relative to the file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from refold.canonical import decode_strict
from refold.errors import InvalidRequest
from refold.service.references import References

Json = Any


def read_json(file: Path) -> Json:
    """The JSON of a file. Raises InvalidRequest if it cannot be read, InvalidJson."""
    try:
        return decode_strict(file.read_bytes())
    except OSError as error:
        raise InvalidRequest(f"cannot read {file}: {error.strerror}") from None


def read_blueprint(file: Path) -> Json:
    """The Blueprint of a file, as it is registered and run. Raises BlueprintInvalid for references it cannot read."""
    return References([file.absolute().parent]).expand(read_json(file))
