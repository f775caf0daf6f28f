"""Unit constants, as integers: the one place where they are spelled. It imports nothing, because hooks use it too."""

#: Nanoseconds in a microsecond, a millisecond and a second.
NS_PER_US = 10**3
NS_PER_MS = 10**6
NS_PER_S = 10**9

#: Microseconds and milliseconds in a second, and microseconds in a millisecond.
US_PER_S = 10**6
MS_PER_S = 10**3
US_PER_MS = 10**3

S_PER_MINUTE = 60
S_PER_HOUR = 3_600
S_PER_DAY = 86_400

#: Decimal prefixes, of bytes and of counts.
KILO = 10**3
MEGA = 10**6
GIGA = 10**9
TERA = 10**12
PETA = 10**15

BITS_PER_BYTE = 8
#: Decimal units of bytes.
KB = KILO
MB = MEGA
GB = GIGA
TB = TERA

#: Binary units of bytes.
KIB = 2**10
MIB = 2**20
GIB = 2**30
TIB = 2**40

#: A job of more ranks is told by groups, quantiles and outliers: nobody reads a table of so many rows.
MANY_RANKS = 512
#: No job has more: who states more is not believed, because the ranks that are missing would fill the memory.
MOST_RANKS = 2**20
