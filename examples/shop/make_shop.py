"""Makes the sample shop: a SQLite database with customers, products, orders and order lines.

    python make_shop.py shop.db

The first time it fills the database; every further time it adds a day of orders, so that a pipeline that ran
before has something new to fetch. The same commands give the same rows.
"""

from __future__ import annotations

import random
import sqlite3
import sys
from pathlib import Path

CUSTOMERS, PRODUCTS, FIRST_ORDERS, ORDERS_A_DAY = 2_000, 500, 30_000, 2_500
LINES_PER_ORDER = (1, 6)
CITIES = ("Lisbon", "Lyon", "Leeds", "Lucerne", "Lund", "Łódź")

SCHEMA = """
CREATE TABLE IF NOT EXISTS customers (id INTEGER PRIMARY KEY, name TEXT NOT NULL, city TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS products  (sku TEXT PRIMARY KEY, title TEXT NOT NULL, price REAL NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS orders    (id INTEGER PRIMARY KEY, customer INTEGER NOT NULL, placed TEXT NOT NULL,
                                      total REAL NOT NULL);
CREATE TABLE IF NOT EXISTS items     (order_id INTEGER NOT NULL, line INTEGER NOT NULL, sku TEXT NOT NULL,
                                      quantity INTEGER NOT NULL, PRIMARY KEY (order_id, line)) WITHOUT ROWID;
"""


def main(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with sqlite3.connect(path) as database:
        database.execute("PRAGMA journal_mode = WAL")
        database.executescript(SCHEMA)
        (last,) = database.execute("SELECT coalesce(max(id), 0) FROM orders").fetchone()
        rng = random.Random(last)
        if not last:
            fill_catalogue(database, rng)
        add_orders(database, rng, last, ORDERS_A_DAY if last else FIRST_ORDERS)
        counts = {
            table: database.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
            for table in ("customers", "products", "orders", "items")
        }
    print(f"{path}: " + ", ".join(f"{count:,} {table}" for table, count in counts.items()))


def fill_catalogue(database: sqlite3.Connection, rng: random.Random) -> None:
    customers = [(i, f"Customer {i}", rng.choice(CITIES)) for i in range(1, CUSTOMERS + 1)]
    products = [
        (f"sku-{i:04d}", f"Product {i}", round(rng.uniform(1, 80), 2)) for i in range(1, PRODUCTS + 1)
    ]
    database.executemany("INSERT INTO customers VALUES (?, ?, ?)", customers)
    database.executemany("INSERT INTO products VALUES (?, ?, ?)", products)


def add_orders(database: sqlite3.Connection, rng: random.Random, last: int, count: int) -> None:
    prices = dict(database.execute("SELECT sku, price FROM products"))
    skus = sorted(prices)
    orders, items = [], []
    for order in range(last + 1, last + count + 1):
        total = 0.0
        for line in range(1, rng.randint(*LINES_PER_ORDER) + 1):
            sku, quantity = rng.choice(skus), rng.randint(1, 4)
            total += prices[sku] * quantity
            items.append((order, line, sku, quantity))
        placed = f"2026-{1 + order // 5000 % 12:02d}-{1 + order // 180 % 28:02d}"
        orders.append((order, rng.randint(1, CUSTOMERS), placed, round(total, 2)))
    database.executemany("INSERT INTO orders VALUES (?, ?, ?, ?)", orders)
    database.executemany("INSERT INTO items VALUES (?, ?, ?, ?)", items)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "shop.db"))
