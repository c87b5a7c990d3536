"""How refold is proved, for whoever writes a store, an agent or a client of it. Imported by nothing below.

* `conformance`: what every store has to do; a back end joins in five lines.
* `history`: the Run that its tests write, and the audit of what is stored.
* `faults`: power loss and disk errors under a SQLite store.
"""
