"""A bank fed by a pipeline, and a pipeline fed by the bank.

    python make_transfers.py > transfers.jsonl
    penstock immortal run bank.py:Bank --name bank --log bank-data --http 127.0.0.1:8400     in another terminal
    penstock run bank_pipeline.py:bank --once                                                each transfer is a call
    penstock immortal call 127.0.0.1:8400 audit                                              [10000,0]
    penstock run bank_pipeline.py:report --once                                              what the bank emitted

Kill the bank while the pipeline runs (`pkill -9 -f bank.py:Bank`) and start it again, as often as you like: the
pipeline waits for it, and the audit comes out the same.
"""

from penstock import Pipeline
from penstock import adaptors as a

ADDRESS = "${BANK_ADDRESS:-127.0.0.1:8400}"

bank = Pipeline("bank")
bank.source("transfers", a.file(uri="file://transfers.jsonl")).save("bank", a.immortal(uri=ADDRESS))

report = Pipeline("report")
report.source("bank", a.immortal(uri=ADDRESS, tail=False)).save(
    "balances", a.file(uri="file://balances.jsonl")
)
