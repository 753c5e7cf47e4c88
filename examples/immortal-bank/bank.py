"""A bank that cannot be killed for long.

    penstock immortal run bank.py:Bank --name bank --log bank-data --http 127.0.0.1:8400

Each transfer that a pipeline brings moves money between two accounts, and emits the balances after it. The sum of all
accounts is 0 at any time, whatever is killed, and however often: that is what `audit` looks at.
"""

from __future__ import annotations

from penstock.immortal import Delivered, Immortal, field, impulse


class Bank(Immortal):
    accounts: dict[str, int] = field(dict)
    transfers: int = 0

    @impulse
    def on_message(self, message: Delivered) -> None:
        """A message of the pipeline: `{"id": 1, "from": "ann", "to": "bob", "amount": 5}`."""
        transfer = message.data
        self.transfers += 1
        for name, amount in ((transfer["from"], -transfer["amount"]), (transfer["to"], transfer["amount"])):
            self.accounts[name] = self.accounts.get(name, 0) + amount
            balance = {"name": name, "balance": self.accounts[name], "transfer": transfer["id"]}
            self.emit("balances", "insert", balance, key={"name": name})

    @impulse
    def balance(self, name: str) -> int:
        return self.accounts.get(name, 0)

    @impulse
    def audit(self) -> tuple[int, int]:
        """How many transfers there were, and the sum of all accounts, which is 0."""
        return self.transfers, sum(self.accounts.values())
