"""What the original lost on its way from PostgreSQL (Transporter reference, section 6), and is kept here: each by name.

Every value is read twice: once by the copy, once from the stream of changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec
import pytest
from tests.adaptors.postgres_shop import Shop
from tests.adaptors.postgres_subject import SETUP, TYPES, quoted
from tests.servers.postgres import PostgresServer

from penstock.log.message import Op
from penstock.log.schema import Kind

pytestmark = pytest.mark.xdist_group("postgres")

LOSSES: Mapping[str, str] = {
    "the text 'null' became nil": "null_word",
    "numeric became a float": "digits",
    "zeros at the end of numeric were dropped": "price",
    "NaN of numeric": "no_number",
    "money with a thousands comma became 0": "cash",
    "a JSON array became an empty map": "list",
    "json came with its spelling changed": "document",
    "jsonb was left as a string": "binary_document",
    "an empty array was a panic": "none_of_them",
    "arrays were split at every comma": "texts",
    "nested arrays": "nested",
    "timestamptz was a string": "moment",
    "dates before Christ": "ides",
    "infinity of timestamps": "never",
    "real 7 became the string 7": "single",
    "bytea was a string": "raw",
    "uuid was a string": "id_of",
    "inet": "host",
    "bit": "bits",
    "quoted names kept their quotes": 'Ünïcode "name"',
}


@pytest.fixture(scope="module")
def shop(postgres_server: PostgresServer) -> Iterator[Shop]:
    """A row that was copied, one that came from the stream, and one whose key changed behind the copy."""
    shop = Shop(postgres_server)
    columns = ", ".join(f"{quoted(name)} {about[0]}" for name, about in TYPES.items())
    insert = f"INSERT INTO typed VALUES (DEFAULT, {', '.join(about[1] for about in TYPES.values())})"
    shop.sql(*SETUP, f"CREATE TABLE typed (id serial PRIMARY KEY, {columns})", insert, insert)
    with shop.reading() as reading:
        shop.settle(reading)
        shop.transaction(insert, "UPDATE typed SET id = 50 WHERE id = 2")
        shop.sql("DELETE FROM typed WHERE id = 50", "TRUNCATE typed")
        shop.settle(reading)
    yield shop
    shop.close()


@pytest.mark.parametrize("column", LOSSES.values(), ids=list(LOSSES))
def test_a_value_that_the_original_lost(shop: Shop, column: str) -> None:
    copied, _, streamed = shop.messages("public.typed")[:3]
    for message in (copied, streamed):
        found = msgspec.json.decode(message.data, type=dict[str, msgspec.Raw])
        assert bytes(found[column]).decode() == TYPES[column][2]


def test_the_copy_and_the_stream_of_a_row_are_the_same_text(shop: Shop) -> None:
    copied, _, streamed = (message.data for message in shop.messages("public.typed")[:3])
    assert copied.replace(b'{"id":1,', b'{"id":3,', 1) == streamed


def test_a_change_of_the_key_had_names_like_old_key_id(shop: Shop) -> None:
    moved = shop.messages("public.typed")[3]
    assert (moved.op, moved.old_key, moved.key) == (Op.UPDATE, b'{"id":2}', b'{"id":50}')
    assert moved.data.startswith(b'{"id":50,"small":-32768,')


def test_truncate_was_ignored_and_deletes_came_without_a_transaction(shop: Shop) -> None:
    deleted, emptied = shop.messages("public.typed")[4:]
    assert (deleted.op, deleted.key, deleted.data) == (Op.DELETE, b'{"id":50}', b'{"id":50}')
    assert (emptied.op, emptied.data) == (Op.COMMAND, b'{"command":"truncate"}')


def test_types_were_not_told_to_sinks(shop: Shop) -> None:
    ((_, _, schema),) = [one for one in shop.log.schemas if one[1] == "public.typed"]
    told = {field.name: field for field in schema.fields}
    assert {name: told[name].kind for name in TYPES} == {name: about[3] for name, about in TYPES.items()}
    assert told["price"].native == "numeric(12,2)"
    assert told["numbers"].items is Kind.INT
    assert (schema.key, told["id"].nullable) == (("id",), False)
