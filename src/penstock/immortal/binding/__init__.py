"""The Python language binding of immortals: a class with state, and methods that others call.

app           `Immortal`, declared fields, hooks
methods       `@rpc`, `@impulse`, `@step`, calls
views, journal, scopes, handlers
              what a handler sees of the state, and how one that waits is re-created
machine       the protocol with the coordinator, without sockets
services      timers, calls from outside, pipelines, on top of the wire
snapshot      what a checkpoint holds
guard, marks  what keeps handlers deterministic, and notices when they are not
"""
