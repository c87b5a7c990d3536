"""References in Blueprints: what they become, and that nothing outside their roots is ever read."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refold.errors import BadInput, BlueprintInvalid
from refold.service import references
from refold.service.agent_md import parse_agent_md
from refold.service.references import References

Json = Any

SECRET = "outside of every root"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root with some files; beside it lies what must never be read."""
    root = tmp_path / "root"
    (root / "deep" / "er").mkdir(parents=True)
    (root / "a.txt").write_text("text of a\n")
    (root / "deep" / "b.txt").write_text("ü")
    (root / "agent.md").write_text("---\nname: reviewer\nmodel: small\n---\nYou review.\n")
    (tmp_path / "outside.txt").write_text(SECRET)
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "inner.txt").write_text(SECRET)
    return root


def expand(value: Json, *roots: Path) -> Json:
    return References(roots).expand(value)


def fault_of(value: Json, *roots: Path) -> tuple[str, str]:
    with pytest.raises(BlueprintInvalid) as caught:
        expand(value, *roots)
    (fault,) = caught.value.data["faults"]
    assert SECRET not in json.dumps(fault)
    return fault["path"], fault["kind"]


# -- what they become -------------------------------------------------------------------------------------------------


def test_a_file_becomes_its_text_wherever_it_stands(root: Path) -> None:
    value = {"a": {"$file": "a.txt"}, "b": [{"c": {"$file": "deep/b.txt"}}, 5]}
    assert expand(value, root) == {"a": "text of a\n", "b": [{"c": "ü"}, 5]}
    assert value["a"] == {"$file": "a.txt"}


def test_an_object_with_more_than_the_reference_is_none(root: Path) -> None:
    value = {"$file": "a.txt", "more": {"$file": "a.txt"}}
    assert expand(value, root) == {"$file": "a.txt", "more": "text of a\n"}


def test_an_agent_becomes_what_its_file_describes_with_the_siblings_over_it(root: Path) -> None:
    profile = {"system_prompt": "You review.", "model": "small"}
    own = {"name": "reviewer", "kind": "operator", "spec": {}, "profile": profile}
    assert expand({"agents": [{"$agent_md": "agent.md"}]}, root) == {"agents": [own]}
    siblings = {"kind": "python", "spec": {"fn": "m:f", "note": {"$file": "deep/b.txt"}}}
    (agent,) = expand({"agents": [{"$agent_md": "agent.md", **siblings}]}, root)["agents"]
    assert agent == own | {"kind": "python", "spec": {"fn": "m:f", "note": "ü"}}
    value = {"default_agent_kind": "llm", "agents": [{"$agent_md": "agent.md"}]}
    assert expand(value, root)["agents"] == [own | {"kind": "llm"}]


def test_the_first_root_that_has_the_file_counts_then_the_included_folders(root: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    (other / "deep").mkdir(parents=True)
    (other / "a.txt").write_text("other a")
    (other / "c.txt").write_text("other c")
    assert expand({"$file": "a.txt"}, root, other) == "text of a\n"
    assert expand({"$file": "a.txt"}, other, root) == "other a"
    assert expand({"$file": "c.txt"}, root, other) == "other c"
    value = {"blueprint_ref_includes": ["nowhere", "deep"], "x": {"$file": "b.txt"}}
    assert expand(value, root)["x"] == "ü"


def test_links_that_stay_beneath_the_root_are_followed(root: Path) -> None:
    (root / "link.txt").symlink_to("deep/b.txt")
    (root / "folder").symlink_to(root / "deep")
    assert expand([{"$file": "link.txt"}, {"$file": "folder/b.txt"}], root) == ["ü", "ü"]


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "$f", "file"]), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(plain)
def test_what_has_no_references_stays_as_it_is(value: Json) -> None:
    assert References().expand(value) == value


def test_every_reference_that_cannot_be_read_is_a_fault(root: Path) -> None:
    value = {"a": {"$file": "gone"}, "b": [{"$file": "a.txt"}, {"$agent_md": "a.txt"}], "c": {"$file": 5}}
    with pytest.raises(BlueprintInvalid) as caught:
        expand(value, root)
    assert [(fault["path"], fault["kind"]) for fault in caught.value.data["faults"]] == [
        ("$.a.$file", "reference_not_found"),
        ("$.b[1].$agent_md", "bad_agent_md"),
        ("$.c.$file", "reference_refused"),
    ]


def test_without_roots_a_reference_is_a_fault_that_says_what_to_do() -> None:
    with pytest.raises(BlueprintInvalid) as caught:
        expand({"$file": "a.txt"})
    (fault,) = caught.value.data["faults"]
    assert (fault["path"], fault["kind"]) == ("$.$file", "reference_not_read")
    assert "blueprint_roots" in fault["hint"]


# -- and what they never become ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "ref",
    [
        "../outside.txt",
        "deep/../../outside.txt",
        "deep/..",
        "..",
        "/etc/hostname",
        "//etc/hostname",
        "",
        "a\0b",
        None,
        ["a"],
    ],
)
def test_a_reference_that_leads_outside_is_refused_before_anything_is_looked_at(ref: Json, root: Path) -> None:
    assert fault_of({"$file": ref}, root) == ("$.$file", "reference_refused")
    assert fault_of({"agents": [{"$agent_md": ref}]}, root) == ("$.agents[0].$agent_md", "reference_refused")


def test_an_included_folder_that_leads_outside_is_refused(root: Path) -> None:
    for folder in ("..", "../outside", "/etc"):
        value = {"blueprint_ref_includes": [folder], "x": {"$file": "inner.txt"}}
        assert fault_of(value, root) == ("$.x.$file", "reference_refused")


def test_a_link_out_of_the_root_is_refused(root: Path, tmp_path: Path) -> None:
    (root / "file").symlink_to("../outside.txt")
    (root / "folder").symlink_to(tmp_path / "outside")
    (root / "twice").symlink_to("folder")
    for ref in ("file", "folder/inner.txt", "twice/inner.txt"):
        assert fault_of({"$file": ref}, root) == ("$.$file", "reference_refused")


def test_a_folder_that_becomes_a_link_after_the_look_is_not_followed(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The look says `deep/inner.txt` is fine; before it is opened, somebody puts a link in the place of `deep`."""
    (root / "deep" / "inner.txt").write_text("harmless")
    looked = references._descend

    def swapped(top: Path, parts: Any) -> int:
        (root / "deep").rename(tmp_path / "was-deep")
        (root / "deep").symlink_to(tmp_path / "outside")
        return looked(top, parts)

    monkeypatch.setattr(references, "_descend", swapped)
    # A link where a folder should be: the kernel says so, and the file counts as not there.
    assert fault_of({"$file": "deep/inner.txt"}, root)[1] in ("reference_not_found", "reference_unreadable")


def test_a_file_that_becomes_a_link_after_the_look_is_not_followed(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = references._descend

    def swapped(top: Path, parts: Any) -> int:
        (root / "a.txt").unlink()
        (root / "a.txt").symlink_to(tmp_path / "outside.txt")
        return looked(top, parts)

    monkeypatch.setattr(references, "_descend", swapped)
    assert fault_of({"$file": "a.txt"}, root) == ("$.$file", "reference_unreadable")


def test_what_is_no_plain_file_is_not_waited_for(root: Path) -> None:
    os.mkfifo(root / "fifo")
    (root / "loop").symlink_to("loop")
    for ref in ("fifo", "deep", "loop"):
        assert fault_of({"$file": ref}, root) == ("$.$file", "reference_unreadable")


def test_a_file_that_is_no_text_is_a_fault(root: Path) -> None:
    (root / "image").write_bytes(b"\xff\xd8")
    assert fault_of({"$file": "image"}, root) == ("$.$file", "reference_unreadable")


def test_a_blueprint_reads_so_much_and_no_more(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(references, "TOTAL_BYTES", 25)
    assert expand([{"$file": "a.txt"}] * 2, root) == ["text of a\n"] * 2
    assert fault_of([{"$file": "a.txt"}] * 3, root) == ("$[2].$file", "reference_too_large")


def descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_descriptors_are_given_back(root: Path) -> None:
    before = descriptors()
    (root / "file").symlink_to("../outside.txt")
    for ref in ("a.txt", "deep/b.txt", "deep/gone", "gone/gone", "file", "deep"):
        with_faults = ref not in ("a.txt", "deep/b.txt")
        assert fault_of({"$file": ref}, root) if with_faults else expand({"$file": ref}, root)
    assert descriptors() == before


# -- agent.md ---------------------------------------------------------------------------------------------------------


def test_an_agent_md_with_all_its_parts() -> None:
    text = """---
name: reviewer
description: |
  Reviews: all of it.
model: small
effort: high
tools: Read, Grep,
worker_binding: claude
lints: {all: warn}
tone: dry
since: 2030-01-02
limit: 5
---

You review what you are given.
---
Then you stop.
"""
    assert parse_agent_md(text, "operator") == {
        "name": "reviewer",
        "kind": "operator",
        "spec": {},
        "lints": {"all": "warn"},
        "profile": {
            "system_prompt": "You review what you are given.\n---\nThen you stop.",
            "description": "Reviews: all of it.\n",
            "model": "small",
            "effort": "high",
            "tools": ["Read", "Grep"],
            "worker_binding": "claude",
            "extras": {"tone": "dry", "since": "2030-01-02", "limit": 5},
        },
    }


def test_the_smallest_agent_md_and_other_line_ends() -> None:
    own = {"name": "a", "kind": "llm", "spec": {}, "profile": {"system_prompt": ""}}
    assert parse_agent_md("---\nname: a\n---", "llm") == own
    assert parse_agent_md("\ufeff---\r\nname: a\r\n---\r\n\r\n", "llm") == own
    assert parse_agent_md("---\nname: a\ntools: [Read]\n---\n", "llm")["profile"]["tools"] == ["Read"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "does not begin with frontmatter"),
        ("name: a\n---\nbody", "does not begin with frontmatter"),
        ("---\nname: a\nbody", "does not begin with frontmatter"),
        ("---\n---\nbody", "no mapping"),
        ("---\n- name\n---\n", "no mapping"),
        ("---\nmodel: m\n---\n", "no name"),
        ("---\nname: no\n---\n", "no name"),
        ("---\nname: [a\n---\n", "not YAML"),
        ("---\nname: a\nname: b\n---\n", "occurs twice"),
        ("---\nname: a\nx: {y: 1, y: 2}\n---\n", "occurs twice"),
        ("---\nname: &n a\nx: *n\n---\n", "aliases"),
        ("---\nname: a\nx: !!python/object:os.system {}\n---\n", "not YAML"),
        ("---\nname: a\nx: !!binary aGk=\n---\n", "not JSON"),
        ("---\nname: a\nx: .nan\n---\n", "not JSON"),
        ("---\nname: a\n5: x\n---\n", "not JSON"),
        ("---\nname: a\nx: " + "[" * 200 + "]" * 200 + "\n---\n", "not JSON"),
        ("---\nname: a\nx: " + "[" * 20000 + "\n---\n", "not"),
    ],
)
def test_what_is_no_agent_md_is_refused(text: str, why: str) -> None:
    with pytest.raises(BadInput, match=why) as caught:
        parse_agent_md(text, "operator")
    assert caught.value.kind == "bad_agent_md"
