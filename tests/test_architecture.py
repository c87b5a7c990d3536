"""The house rules of docs/ARCHITECTURE.md, checked on the text of the code: layers, purity, and pages that keep up.

Nothing of refold is run here. Only the two tables that docs/protocol.md repeats, and the one that it draws, are
imported. A failure names the file and line, and what to do; a rule is changed on its page first, then here.
"""

from __future__ import annotations

import ast
import importlib
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent
SRC = ROOT / "src" / "refold"
DOCS = ROOT / "docs"

LAYERS = (
    ("testing", "cli"),
    ("server", "client"),
    ("service",),
    ("engine", "session"),
    ("store", "flowir", "view", "protocol"),
    ("records",),
    ("canonical",),
    ("errors", "diagnostics"),
)
"""The house from the roof down. A member imports what stands below it; members of one layer do not see each other."""

RANK = {member: rank for rank, layer in enumerate(LAYERS) for member in layer}

CORE = ("errors", "canonical", "records", "flowir", "view", "protocol")

ONLY = {"client": {"view", "protocol", "records", "canonical", "errors"}}
"""Members that see less than their layer would let them. A client knows the wire and the fold, never the store."""

PURE = frozenset(
    """
    __future__ abc base64 bisect collections contextlib copy dataclasses datetime difflib enum functools hashlib heapq
    hmac itertools json math operator re string struct types typing msgspec muse_code_msp orjson rfc8785
    """.split()  # noqa: SIM905 - one word a line would fill a screen
)
"""All that CORE may import from outside: what only computes. A list of the forbidden would miss the next I/O module."""

ACTS = frozenset({"open", "print", "input", "exec", "eval", "breakpoint", "__import__"})
"""Builtins that CORE does not call."""

HOMES = {
    "apsw": {"store", "testing"},
    "muse_code_msp": {"protocol", "testing"},
    "starlette": {"server"},
    "uvicorn": {"server"},
    "websockets": {"client"},
    "logging": {"diagnostics", "server"},
    "structlog": {"server"},
    "cyclopts": {"cli"},
    "rich": {"cli"},
    "yaml": {"service"},
    "prometheus_client": {"server"},
    "uuid_utils": {"engine", "client"},
    "refold.protocol": {"server", "client", "protocol", "testing"},
}
"""Libraries and rooms that only some members may know: a back end has one door, and the wire stays at the edge."""

LONGEST = 700


class Module(NamedTuple):
    """One file of the package."""

    path: str
    """As docs/ARCHITECTURE.md names it: `flowir/machine.py`."""
    tree: ast.Module
    lines: int

    @property
    def member(self) -> str:
        """The member of the house that it belongs to; `__init__` for the package's own file."""
        return self.path.split("/")[0].removesuffix(".py")


class Import(NamedTuple):
    """One import: what is named, and where it stands."""

    name: str
    line: int

    @property
    def member(self) -> str | None:
        """The member of the house that is imported; None for a library or for the package itself."""
        parts = self.name.split(".")
        return parts[1] if parts[0] == "refold" and len(parts) > 1 and parts[1] in RANK else None


def _read(path: Path) -> Module:
    text = path.read_text()
    return Module(path.relative_to(SRC).as_posix(), ast.parse(text), text.count("\n"))


def _imports(module: Module) -> Iterator[Import]:
    """Yields every import, those inside functions too, with what a `from` takes out of a module."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            yield from (Import(alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module.path}:{node.lineno}: imports are absolute"
            yield from (Import(f"{node.module}.{alias.name}", node.lineno) for alias in node.names)


MODULES = [_read(path) for path in sorted(SRC.rglob("*.py"))]
WITHIN = [module for module in MODULES if module.member in RANK]
PURE_MODULES = [module for module in WITHIN if module.member in CORE]


def _named(modules: list[Module]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("module", modules, ids=[module.path for module in modules])


# -- layers -----------------------------------------------------------------------------------------------------------


def _may_import(importer: str, imported: str) -> bool:
    if importer == imported:
        return True
    return RANK[imported] > RANK[importer] and imported in ONLY.get(importer, RANK)


@_named(WITHIN)
def test_imports_point_down(module: Module) -> None:
    wrong = [
        f"src/refold/{module.path}:{each.line}: {module.member} imports {each.name}"
        for each in _imports(module)
        if each.member is not None and not _may_import(module.member, each.member)
    ]
    assert not wrong, "\n".join(wrong)


def test_a_room_that_is_not_in_the_house_is_a_fault() -> None:
    doors = {"__init__.py", "__main__.py"}
    strangers = [module.path for module in MODULES if module not in WITHIN and module.path not in doors]
    assert not strangers, f"not in LAYERS: {strangers}; give it a layer here and in docs/ARCHITECTURE.md"


def test_nobody_imports_testing() -> None:
    users = {module.path for module in MODULES for each in _imports(module) if each.member == "testing"}
    assert all(path.startswith("testing/") for path in users), users


def test_importing_the_package_imports_none_of_its_rooms() -> None:
    """`import refold.canonical` runs this file first: what it imported, every CORE module would import too."""
    package = next(module for module in MODULES if module.path == "__init__.py")
    assert not [each for each in _imports(package) if each.member is not None]


@pytest.mark.parametrize(("library", "homes"), HOMES.items(), ids=HOMES)
def test_a_library_is_known_where_it_belongs(library: str, homes: set[str]) -> None:
    users = {
        f"src/refold/{module.path}:{each.line}"
        for module in WITHIN
        for each in _imports(module)
        if f"{each.name}.".startswith(f"{library}.") and module.member not in homes
    }
    assert not users, f"only {', '.join(sorted(homes))} may know {library}: {sorted(users)}"


def test_only_the_store_the_composition_root_the_read_only_peek_and_makers_of_copies_name_a_back_end() -> None:
    users = {
        module.path
        for module in WITHIN
        if module.member not in ("store", "testing")
        for each in _imports(module)
        if each.name.endswith((".SqliteStore", ".MemoryStore")) or ".store.sqlite" in each.name
    }
    peeks, makers_of_copies = {"cli/peek.py", "cli/upkeep.py"}, {"cli/importing.py", "service/copies.py"}
    assert users <= {"service/app.py"} | peeks | makers_of_copies, users


def test_the_gates_of_pyproject_speak_of_the_same_house() -> None:
    tool = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
    layers, core, *_ = tool["importlinter"]["contracts"]
    assert [set(layer.split(" | ")) for layer in layers["layers"]] == [set(layer) for layer in LAYERS]
    named = [f"refold.{member}" for member in CORE]
    assert core["source_modules"] == tool["coverage"]["run"]["source_pkgs"] == named


# -- the core ---------------------------------------------------------------------------------------------------------


@_named(PURE_MODULES)
def test_the_core_imports_nothing_that_acts(module: Module) -> None:
    wrong = [
        f"src/refold/{module.path}:{each.line}: {each.name}"
        for each in _imports(module)
        if each.name.split(".")[0] not in PURE | {"refold"}
    ]
    assert not wrong, f"{wrong}; what only computes is added to PURE, what acts belongs into another room"


@_named(PURE_MODULES)
def test_the_core_calls_nothing_that_acts(module: Module) -> None:
    wrong = [
        f"src/refold/{module.path}:{node.lineno}: {found}"
        for node in ast.walk(module.tree)
        if (found := _acts(node)) is not None
    ]
    assert not wrong, wrong


def _acts(node: ast.AST) -> str | None:
    """Names what a node does to the world, None if it only computes: `datetime.now` needs no import of its own."""
    match node:
        case ast.AsyncFunctionDef() | ast.Await() | ast.AsyncFor() | ast.AsyncWith():
            return "waits"
        case ast.Call(func=ast.Name(id=name)) if name in ACTS:
            return name
        case ast.Attribute(attr="now" | "utcnow" | "today" as name):
            return name
    return None


# -- files ------------------------------------------------------------------------------------------------------------


@_named(MODULES)
def test_a_module_says_what_it_is(module: Module) -> None:
    assert ast.get_docstring(module.tree), f"src/refold/{module.path} has no docstring"


@_named(MODULES)
def test_a_file_stays_short(module: Module) -> None:
    assert module.lines <= LONGEST, f"src/refold/{module.path} has {module.lines} lines: split it"


# -- pages that keep up -----------------------------------------------------------------------------------------------

PAGES = sorted(DOCS.rglob("*.md"))
_CODE = re.compile(r"`([^`\n]+)`")
_LINK = re.compile(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)")


def _page(name: str) -> str:
    return (DOCS / name).read_text()


def _coded(text: str) -> set[str]:
    return set(_CODE.findall(text))


def test_the_code_map_names_every_package_and_module_and_no_other() -> None:
    files = {module.path for module in MODULES if not module.path.endswith("__init__.py")}
    packages = {f"{module.path.rpartition('/')[0]}/" for module in MODULES if "/" in module.path}
    named = {code for code in _coded(_page("ARCHITECTURE.md")) if re.fullmatch(r"(?!tests/)\w[\w/]*(\.py|/)", code)}
    missing, gone = (files | packages) - named, named - files - packages
    assert not missing, f"give each of these a line in docs/ARCHITECTURE.md: {sorted(missing)}"
    assert not gone, f"docs/ARCHITECTURE.md mentions what is not there: {sorted(gone)}"


def test_the_map_says_which_nodes_and_agents_are_not_there_yet() -> None:
    parse, agents = (importlib.import_module(f"refold.flowir.{name}") for name in ("parse", "agents"))
    later = parse.LATER_NODES | agents.LATER_KINDS
    section = _page("ARCHITECTURE.md").partition("### What is not there yet\n")[2].partition("\n## ")[0]
    assert _coded(section) & (later | parse.NODES.keys() | agents.KINDS.keys()) == later


def test_the_glossary_knows_every_noun_that_is_stored() -> None:
    records = next(module for module in MODULES if module.path == "records.py")
    nouns = {node.name for node in records.tree.body if isinstance(node, ast.ClassDef)}
    unknown = nouns - _coded(_page("GLOSSARY.md"))
    assert not unknown, f"a new noun edits docs/GLOSSARY.md: {sorted(unknown)}"


def test_guarantees_name_tests_that_exist() -> None:
    named = {code for code in _coded(_page("GUARANTEES.md")) if re.fullmatch(r"tests/[\w/]+(\.py|/)", code)}
    assert named
    assert not [code for code in named if not (ROOT / code).exists()]


@pytest.mark.parametrize("page", PAGES, ids=[page.relative_to(DOCS).as_posix() for page in PAGES])
def test_links_lead_somewhere(page: Path) -> None:
    assert not [link for link in _LINK.findall(page.read_text()) if not (page.parent / link).exists()]


def test_every_decision_is_listed_and_has_its_three_parts() -> None:
    listed = set(_LINK.findall(_page("ARCHITECTURE.md")))
    for number, page in enumerate(sorted((DOCS / "adr").glob("*.md")), 1):
        assert page.name.startswith(f"{number:04}-"), f"{page.name}: numbers are dense"
        assert f"adr/{page.name}" in listed, f"{page.name} is not listed in docs/ARCHITECTURE.md"
        headings = re.findall(r"^## (.+)$", page.read_text(), re.MULTILINE)
        assert headings == ["Context", "Decision", "Price"], page.name


def test_the_lifecycle_is_drawn_as_it_is() -> None:
    table = importlib.import_module("refold.flowir.lifecycle").TRANSITIONS
    drawn = re.findall(r"^ +(\w+) --> (\w+): (\w+)$", _page("ARCHITECTURE.md"), re.MULTILINE)
    assert sorted(drawn) == sorted((before, after, verb) for (before, verb), after in table.items())


def test_the_protocol_page_sorts_every_method_as_the_server_does() -> None:
    methods = importlib.import_module("refold.protocol.methods")
    served = set(importlib.import_module("refold.server.rpc").HANDLERS) | {"initialize"}
    expected = {"Served": served, "Not yet served": methods.SERVABLE - served, "Gated": set(), "Absent": set()}
    for name, row in methods.TABLE.items():
        if row.availability is not methods.Availability.SERVED:
            expected[row.availability.value.capitalize()].add(name)
    sections = dict(re.findall(r"^## ([\w ]+)\n(.*?)(?=^## |\Z)", _page("protocol.md"), re.MULTILINE | re.DOTALL))
    for heading, names in expected.items():
        found = {code for code in _coded(sections[heading]) if code in methods.TABLE}
        assert found == names, f"docs/protocol.md, {heading}: {sorted(found ^ names)}"
