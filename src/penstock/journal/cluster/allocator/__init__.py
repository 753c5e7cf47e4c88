"""Which broker serves which journal (reference 13): values in, values out, no clock and no network.

picture.py    what the key space says, kept up to date key by key
state.py      one moment of it, and what follows: loads, shed capacity, the problem's fingerprint
solve.py      who should serve what
network.py    the flow network in which that is found
converge.py   the next safe steps from what is to what should be
changes.py    steps as checkpoints, and checkpoints as transactions
"""
