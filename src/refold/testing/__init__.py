"""How refold is proved, for whoever writes a store, an agent or a client of it. Imported by nothing below.

* `conformance`: what every store has to do, with its parts `rows` and `damage`; a back end joins in five lines.
* `history`: the rows and the Run that its tests write.
* `faults`: power loss and disk errors under a SQLite store.

What judges a store after all that is `store.audit`.
"""
