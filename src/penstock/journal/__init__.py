"""The log under everything: journals, all-or-nothing appends, fragments, one broker."""

import os

# gRPC writes to standard error when a process that uses it forks, which starting Spark does; nothing of ours
# uses a channel on both sides of a fork.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
