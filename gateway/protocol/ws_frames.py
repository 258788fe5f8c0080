"""A text message as the frame in which a server sends it (RFC 6455, section 5.2). Pure."""

from __future__ import annotations

_FINAL_TEXT = 0x81


def text_frame(text: bytes) -> bytes:
    """Whole, without a mask and not compressed."""
    size = len(text)
    if size < 126:
        return b"%c%c%b" % (_FINAL_TEXT, size, text)
    if size < 2**16:
        return b"%c\x7e%b%b" % (_FINAL_TEXT, size.to_bytes(2), text)
    return b"%c\x7f%b%b" % (_FINAL_TEXT, size.to_bytes(8), text)
