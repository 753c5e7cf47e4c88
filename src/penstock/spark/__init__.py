"""The engine: the session, the data source `penstock`, and what happens to one micro-batch."""
