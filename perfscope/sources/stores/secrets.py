"""Secrets in the texts of libraries, hidden: such a text may repeat what it was connected with."""

from __future__ import annotations

import re

_HIDDEN = "***"
#: A text is cut here before it is searched: nobody reads more of a reason.
_MOST_CHARACTERS = 20_000
#: What a secret is called: in connection strings, URLs that are signed, files of credentials, headers, answers in XML.
_NAME = (
    r"[\w-]*?(?:(?:account|access|secret|api|private|storage|shared)[_-]?key(?:[_-]?id)?|credential|secret|token"
    r"|sharedaccesssignature|signature(?:provided)?|stringtosign|authorization|password|passwd|passphrase|\bpwd|\bsig)"
)
#: A scheme of a header before the value, which stands in quotes, and may hold blanks, or ends where a word does.
_VALUE = (
    r"(?:(?:bearer|basic|sharedkey(?:lite)?|token|aws4-hmac-sha256|aws)\s+)?"
    r"""(?:\\?"[^"]*"?|'[^']*'?|[^\s,;&'"<>{}()\[\]]+)"""
)
_NAMED = re.compile(rf"""(?i)((?<![\w-]){_NAME}\b\\?['"]?\s*(?:=>?|:|%3d)\s*){_VALUE}""")
_IN_TAGS = re.compile(rf"(?i)(<{_NAME}>)[^<]*")
_HEADER = re.compile(r"(?i)(\b(?:bearer|basic|sharedkey(?:lite)?)\s+)(?=[^\s,;'\"]*[\d=_./+:-])[^\s,;'\"]{8,}")
#: A port is no password, and a container of Azure's stands where a user does.
_OF_URL = re.compile(
    r"(?i)(\b[a-z][a-z\d+.]*://)[^\s'\"<>@:/]*:(?!\d+/)[^\s'\"<>]*@(?=[\w.\[-])"
    r"|(\b(?!abfs|wasb)[a-z][a-z\d+.]*://)[^\s'\"<>@:/]+@(?=[\w.\[-])"
)
_OF_HOST = re.compile(r"(?<![\w/@:.+%-])[\w.%+-]+:[^\s'\"@/]+@(?=[\w.\[-])")
#: Keys and tokens that are told by their own form: of AWS, of Google, a JSON Web Token, PEM.
_BARE = re.compile(
    r"\b(?:AKIA|ASIA)[A-Z0-9]{12,}\b|\bya29\.[\w.-]+|\beyJ[\w-]{4,}\.[\w-]+(?:\.[\w-]*)?"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----(?s:.*?)(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"
)


def without_secrets(text: str) -> str:
    """A text in which keys, signatures, tokens and passwords are replaced by three asterisks.

    >>> without_secrets("https://me:pass@host/x?sig=abc; AccountKey=abc==;Protocol=https")
    'https://***@host/x?sig=***; AccountKey=***;Protocol=https'
    """
    text = _BARE.sub(_HIDDEN, text[:_MOST_CHARACTERS])
    text = _OF_HOST.sub(f"{_HIDDEN}@", _OF_URL.sub(rf"\1\2{_HIDDEN}@", text))
    for pattern in (_NAMED, _IN_TAGS, _HEADER):
        text = pattern.sub(rf"\1{_HIDDEN}", text)
    return text
