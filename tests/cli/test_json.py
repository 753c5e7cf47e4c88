"""Every command of an operator speaks to programs: lines of JSON, nothing else on standard output, an exit code."""

from __future__ import annotations

import json
import shlex

import pytest

from penstock.log.deadletters import Death

from .operating import Shop

LOOKING = """
0 status
0 xlog oldest
0 xlog current
0 xlog show 1
0 xlog show 1 3
0 xlog find id --newest
2 xlog show 99
0 offset list
0 offset show audit
2 offset show none
0 dead list
0 dead show 0
2 dead show 7
2 top
0 tap shop.py slim --from 0 --no-wait
0 trace shop.py 2
0 trace 2
2 trace shop.py 99
0 graph shop.py
0 plan shop.py --offline
0 try shop.py:slim
0 test shop.py
0 about
0 about file
2 about none
"""

EDITING = """
0 pause ids
0 resume ids
2 pause none
0 step shop.py ids -n 3
2 step shop.py none
0 offset ack ids 4
0 offset mark ids 1 --yes
2 offset mark none 1 --yes
0 offset export offsets.json
0 offset import offsets.json --yes
0 dead replay shop.py 0
0 dead drop 1 --yes
2 dead replay shop.py 0
0 backfill orders --where 'id > 2' --yes
2 backfill none --yes
0 offset delete ids --yes
0 offset history
"""

CASES = """
cases:
  - name: a large one
    input: [{ns: orders, data: {id: 2, total: 5}}]
    expect: {ids: [{data: {id: 2}}]}
"""


@pytest.mark.parametrize("commands", [LOOKING, EDITING], ids=["looking", "editing"])
def test_a_command_answers_programs_with_lines_of_json_and_an_exit_code(shop: Shop, commands: str) -> None:
    shop.bury("audit", Death(1, "orders", "audit", "too small"), Death(2, "orders", "audit", "too small"))
    (shop.path / "shop.test.yaml").write_text(CASES)
    for line in commands.strip().splitlines():
        code, *command = shlex.split(line)
        result = shop.run(*command, "--json", input='{"id":1,"total":2}\n')
        assert result.exit_code == int(code), f"{line}: {result.output}"
        told = [json.loads(text) for text in result.stdout.splitlines()]
        assert bool(told) == (code == "0") or "export" in line, f"{line}: {result.output}"
        assert code == "0" or result.stderr.startswith(("Error: ", '{"error"')), f"{line}: {result.stderr}"
