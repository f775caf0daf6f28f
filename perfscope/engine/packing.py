"""What was measured of many ranks as bytes in which equal arrays and texts stand once, however many ranks have them.

Ranks that do the same name the same kernels and call the same collectives: what is their own, such as times, is a small
part of their partials. Back from the bytes, all ranks share one array and one text of each content. Nothing is rounded
or left out.
"""

from __future__ import annotations

import io
import pickle
from typing import TypeAlias

import numpy as np

#: What tells the content of an array or a text from that of others.
_Key: TypeAlias = "str | tuple[str, tuple[int, ...], bytes]"


class _Packer(pickle.Pickler):
    """Writes the place of an array or a text in a list of all contents."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=5)
        self._places: dict[_Key, int] = {}
        self.contents: list[object] = []

    def persistent_id(self, obj: object) -> int | None:
        key: _Key
        if type(obj) is str:
            key = obj
        elif type(obj) is np.ndarray and obj.dtype.kind in "biuf":
            key = obj.dtype.str, obj.shape, obj.tobytes()
        else:
            return None
        place = self._places.setdefault(key, len(self.contents))
        if place == len(self.contents):
            self.contents.append(obj)
        return place


class _Unpacker(pickle.Unpickler):
    """Puts contents where their places stand."""

    def __init__(self, file: io.BytesIO, contents: list[object]) -> None:
        super().__init__(file)
        self._contents = contents

    def persistent_load(self, pid: int) -> object:
        return self._contents[pid]


def pack(value: object) -> tuple[bytes, bytes]:
    """A value as its contents and what refers to them; for processes of one program, not for files."""
    file = io.BytesIO()
    packer = _Packer(file)
    packer.dump(value)
    return pickle.dumps(packer.contents, protocol=5), file.getvalue()


def unpack(packed: tuple[bytes, bytes]) -> object:
    """The value again; its arrays cannot be written, because others may have them, too."""
    contents = pickle.loads(packed[0])
    for content in contents:
        if isinstance(content, np.ndarray):
            content.flags.writeable = False
    return _Unpacker(io.BytesIO(packed[1]), contents).load()
