"""Several brokers that share journals through etcd: the key space's mirror, sessions, allocation, replication.

A lone broker needs nothing of this; nothing outside loads it before a cluster is asked for.
"""
