r"""Partials of traces as files: what analyzers measured of one trace, as data, which stands beside it.

A file is written where the trace was made, and read in its place. It holds one section an analyzer: its partial, whose
type is the annotation of the analyzer's ``measure``. Frozen dataclasses, named tuples, enums, numbers, text, tuples,
mappings and NumPy arrays of numbers can be stored; a partial of a new analyzer needs no code here. Nothing in a file
is code: a value is decoded as the type that the analyzer states, or is refused. Layout::

    8 bytes        b"PSPART1\n"
    4 bytes        length of the header, little-endian
    header         JSON: see ``perfscope.sources.partials.header.Header``
    sections       one after the other, each MessagePack, deflated (zlib) where it is not of its unpacked size already;
                   arrays are extension 1, see ``arrays``
    32 bytes       SHA-256 of all that stands before

Write and read one, with the types of the analyzers (``perfscope.engine.partials`` knows them)::

    measured = measure(TraceFiles(trace), task)                           # perfscope.engine.measuring
    content = store(measured, TraceFiles(trace), task.analyzers, events)  # perfscope.engine.partials
    Path(partials_path(trace)).write_bytes(content)                       # perfscope.wire.traces
    measured = load(partials_path(trace)).measured(TraceFiles(trace))     # all of it again: a MeasuredTrace

``events`` are the kinds of events that were read. ``store`` takes ``traces=[Identity(name, size, sha256)]``
for a trace that is not at hand, as in a job that is made up: ``replace`` changes ranks and times in a MeasuredTrace.
"""
