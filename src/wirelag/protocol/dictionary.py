"""Text compressed with a preset dictionary of what messages repeat (docs/reference/messages.md).

Law: `lengthen` returns the text that was shortened, or raises a ValueError; it never produces more than `most` bytes.
"""

from __future__ import annotations

import zlib
from typing import Final

# Part of the format: changing a letter means a new version. The likeliest text comes last, where it is cheapest.
KNOWN: Final = (
    b'"estimator":"finecomb","parameters":{"rows":1024,"shift":0,"stash":1024,"deviation":"rows","tail":512,"seed":0},'
    b'"estimator":"lda","parameters":{"rows":256,"shifts":[0,4,8,12],"deviation":"rows","tail":512,"seed":0},'
    b'"delimiters":{"length_ns":1000000000,"bits":10,"seed":0,"control_port":null},"ptp","adjtimex","stated","none",false,'
    b'"counts":{"array":["<u8",256,0,1]},"sums":{"array":["<u8",256,0,5]},"parities":{"array":["<u8",1024,0,8]},'
    b'"stash_ids":{"array":["<u8",1024,0,8]},"stash_times_ns":{"array":["<i8",1024,17,4]},'
    b'"bucket_ids":{"array":["<u8",1023,0,8]},"bucket_checks":{"array":["<u8","bucket_counts":{"array":["<u8",'
    b'"bucket_sums":{"array":["<u8","numbers":{"array":["<u8","buckets":"reason":"whole":true,'
    b'"ids":{"array":["<u8","of_ids":{"array":["<u8",1,0,6]},"asked":{"array":["<u8",1,0,0]},'
    b'[{"type":"status","version":"0.1.0","began_ns":17,"ending":false,"intervals":0,"packets":0,"unseen":0,'
    b'"lost_parts":0,"spooled":0,"spooled_bytes":0,"spool_dropped":0,"refused":0,"past_intervals":0,"past_bytes":0,'
    b'"answered":0,"unanswered":0,"references_sent":0,"references_refused":0,"references_failed":0}]'
    b'[{"type":"ask","cache_level":0,"wanted":{"array":["<u8",100,0,4]},"difference":100}]"symbols":200,"after":100}]'
    b'[{"type":"times","level":0,"packets":10000,"times_ns":{"array":["<i8",100,17,4]}}]'
    b'[{"type":"synopsis","point":"A","segment":"A>B","interval":{"start_ns":17,"end_ns":17,"name":null},'
    b'"terms":{"estimator":"rda","parameters":{"banks":3,"buckets":null,"check":true,"rateless":false,'
    b'"short":true,"cache_assisted":true,"rows":64,"deviation":"rows","tail":512,"memory":67108864,"seed":0},'
    b'"packet_id":{"flow":true,"length":true,"ip_id":true,"transport":true,"prefix":16,"seed":0},"interval_ns":1000000000,"delimiters":null,"by":null,'
    b'"direction":null,"filter":null},"clock":{"synchronised":true,"error_ns":1000,"source":"chrony"},'
    b'"seen":{"packets":10000,"unseen":0,"covered_ns":1000000000},"sent_ns":17},'
    b'{"start_ns":17,"end_ns":17,"name":null,"class":null,"symbols":{"array":["<u8",200,0,8]},'
    b'"row_counts":{"array":["<u8",64,100,1]},"row_sums":{"array":["<u8",64,0,5]},"base_ns":17,'
    b'"entries":10000,"cache_level":0,"tail_ids":{"array":["<u8",64,0,6]},"tail_times_ns":{"array":["<i8",64,17,4]},'
    b'"tail_level":7,"tail_packets":10000,"overflow":false}]'
)


_SHORT: Final = 4096  # bytes: with the dictionary, less than the smaller window
_press: Final = zlib.compressobj(9, zlib.DEFLATED, -15, zdict=KNOWN)
_press_short: Final = zlib.compressobj(9, zlib.DEFLATED, -13, 6, zdict=KNOWN)  # a fourth of the memory is copied


def shorten(text: bytes) -> bytes:
    """Raw deflate with the preset dictionary."""
    press = (_press_short if len(text) <= _SHORT else _press).copy()  # it has read the dictionary
    return press.compress(text) + press.flush()


def lengthen(data: bytes, most: int) -> bytes:
    """The inverse of `shorten`."""
    press = zlib.decompressobj(-15, zdict=KNOWN)
    try:
        text = press.decompress(data, most)
    except zlib.error:
        raise ValueError("is damaged: its names cannot be read") from None
    if not press.eof or press.unused_data:
        raise ValueError("is damaged: its names are too long or incomplete")
    return text
