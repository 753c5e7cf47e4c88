"""What the runner asks of Spark before it starts it."""

from __future__ import annotations

import errno
import socket
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import pytest
from py4j.java_gateway import CallbackServer, CallbackServerParameters

from penstock import Pipeline
from penstock import adaptors as a
from penstock import functions as f
from penstock.adaptors.base import Adaptor
from penstock.pipeline.engine import Engine, works_in_jvm


@pytest.mark.parametrize(
    ("function", "sink", "expected"),
    [
        (f.pick(fields=["id"]), a.discard(), False),
        (f.sql("SELECT * FROM messages"), a.discard(), True),
        (lambda frame: frame, a.discard(), True),
        (f.pick(fields=["id"]), a.jdbc(uri="jdbc:postgresql://localhost/shop"), True),
    ],
)
def test_the_jvm_is_asked_for_peak_speed_only_where_rows_pass_through_it(
    function: object, sink: Adaptor, expected: bool
) -> None:
    pipeline = Pipeline("p")
    pipeline.source("in", a.generate(count=1)).transform("step", function).save("out", sink)  # type: ignore[arg-type]
    assert works_in_jvm(pipeline) is expected


def _too_many_files() -> NoReturn:
    raise OSError(errno.EMFILE, "Too many open files")


def test_a_process_that_spark_can_call_no_more_is_known(tmp_path: Path) -> None:
    """For want of a descriptor Py4J gives up listening. Its queries seemed to run, and waited for ever."""
    pipeline = Pipeline("p")
    pipeline.source("in", a.generate(count=1)).save("out", a.discard())
    server = CallbackServer(
        {}, None, callback_server_parameters=CallbackServerParameters(port=0, daemonize=True)
    )
    spark = SimpleNamespace(sparkContext=SimpleNamespace(_gateway=SimpleNamespace(_callback_server=server)))
    engine = Engine(pipeline, tmp_path, lent=spark, spark=spark)  # type: ignore[arg-type]
    assert not engine.is_deaf(), "it does not listen yet"
    server.start()
    with closing(server.server_socket) as listening:
        listening.listen()
        assert not engine.is_deaf()
        server.server_socket = SimpleNamespace(
            accept=_too_many_files,
            listen=listening.listen,
            fileno=listening.fileno,
            getsockname=listening.getsockname,
        )
        with socket.create_connection(("127.0.0.1", server.get_listening_port())):
            server.thread.join(20)
        assert engine.is_deaf()
    engine.stop()
