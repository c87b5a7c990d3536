"""`refold demo`: a real job that is killed half way, and the proof that nothing was lost and nothing was paid twice.

command    the command and its story, from the first serve to the last check
flow       the Blueprint of the job: a survey of a folder
steps      what its steps do, and the ledger in which each of them leaves its mark
stage      the server as a child process that can be killed; the gate that holds work in flight until it is
checks     what the story must have shown: pure functions of the evidence
picture    how people see it
"""

from refold.cli.demo.command import demo

__all__ = ["demo"]
