"""Write transfers for the bank: `python make_transfers.py 10000 > transfers.jsonl`; the same ones each time."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator

NAMES = ("ann", "bob", "cid", "dora", "eve")


def transfers(count: int) -> Iterator[str]:
    chance = random.Random(7)
    for number in range(1, count + 1):
        giver, taker = chance.sample(NAMES, 2)
        yield json.dumps({"id": number, "from": giver, "to": taker, "amount": chance.randint(1, 100)})


if __name__ == "__main__":
    for line in transfers(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000):
        print(line)
