"""Every module of an adaptor can be the first that a process loads: nobody loads all of them in a given order."""

from __future__ import annotations

import pickle
import subprocess
import sys

from pyspark import cloudpickle

import penstock.adaptors

PROGRAM = """
import gc, importlib, pathlib, os, sys
import numpy, pyarrow.compute, psycopg, pymysql, pymongo, redis, confluent_kafka, urllib3, pika, nats
import penstock.connector.source, penstock.connector.worker, penstock.immortal.binding, penstock.journal.client
import penstock.log.commitlog, penstock.log.offsets, penstock.log.packing, penstock.log.schema
import penstock

assert not [name for name in sys.modules if name.startswith("penstock.adaptors")]
root = pathlib.Path(penstock.__path__[0])
files = sorted((root / "adaptors").rglob("*.py"))
assert len(files) > 100
gc.disable()
for file in files:
    name = ".".join(("penstock", *file.relative_to(root).with_suffix("").parts)).removesuffix(".__init__")
    child = os.fork()
    if child == 0:
        try:
            importlib.import_module(name)
        except BaseException as error:
            print(name, repr(error), flush=True)
        os._exit(0)
    os.waitpid(child, 0)
print("tried")
"""


def test_every_module_of_an_adaptor_can_be_loaded_first() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr[-2000:]) == ("tried\n", "")


def test_functions_that_speak_of_the_adaptors_reach_spark_s_workers() -> None:
    """As those of a pipeline's file do, which are sent by value, and what they speak of by its name."""
    assert pickle.loads(pickle.dumps(penstock.adaptors)) is penstock.adaptors
    spoken = {"a": penstock.adaptors}
    exec("def kind():\n    return a.discard().name\n", spoken)
    sent = cloudpickle.dumps(spoken["kind"])  # type: ignore[no-untyped-call]
    assert pickle.loads(sent)() == "discard"
