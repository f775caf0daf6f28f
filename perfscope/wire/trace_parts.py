"""How a compressed trace says where its parts are, so that they can be inflated apart.

The file is one ordinary gzip member (RFC 1952), as every viewer reads it. Behind each part of equal length the
compressor forgets what it has seen (a full flush of zlib), so that the next part refers to nothing before it. The
header's extra field has a subfield with the index: how long a part is when inflated, how long all of them are, and how
long the file is; then for each part its compressed length, and the CRC-32 of everything up to its end, which is that
of the member for the last one. An index of zeros says nothing. What follows the last part, and belongs to none: the
end of the stream, the CRC-32 and the length.
"""

from __future__ import annotations

import struct

#: Magic, method, flags (an extra field alone), time, extra flags, system.
GZIP_HEADER = b"\x1f\x8b\x08\x04\0\0\0\0\0\xff"
#: The length of the extra field, then the name and the length of its only subfield.
EXTRA_FIELD = struct.Struct("<H2sH")
SUBFIELD = b"P1"
#: Inflated length of a part (the last one may be shorter), inflated length of all, length of the file.
INDEX = struct.Struct("<IQQ")
#: Compressed length of a part, and the CRC-32 of everything up to its end.
PART = struct.Struct("<II")
#: An empty last block, the CRC-32 and the length of everything, modulo 2**32.
END_OF_STREAM = b"\x03\0"
TRAILER = struct.Struct("<II")
