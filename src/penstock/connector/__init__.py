"""The connector protocol, version 3: how a program in any language streams into Penstock's log, or out of it.

    frames      the bytes of every frame, both directions        framing     frames out of a stream of bytes
    session     the state machines of connection and stream, credits
    worker      takes the streams of connectors into journals   source      the kit for those who write a connector
    status      typed records of workers, sessions and streams

Pure modules know no sockets, clocks or files; the shells around them are short.
"""
