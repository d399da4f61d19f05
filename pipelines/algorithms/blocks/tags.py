"""HTML elements as numbers, and how segmentation treats each."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pipelines.algorithms.kernels.hash_table import table_of

# Not text of the page. The content of RAW elements is not markup.
_SKIPPED = (
    "script style template svg iframe noframes object canvas datalist option noembed math xmp audio video textarea "
    "select title rt rp"
)
_RAW = "script style iframe noframes noembed xmp"
# A block of text ends where such an element begins or ends.
_BLOCK_LEVEL = (
    "address article aside blockquote body center dd details dialog dir div dl dt fieldset figcaption figure footer "
    "form h1 h2 h3 h4 h5 h6 header hgroup hr html legend li main menu nav ol p pre search section summary table tbody "
    "td tfoot th thead tr ul caption noscript button"
)
_INLINE = (
    "head a abbr b bdi bdo big br cite code data del dfn em font i img input ins kbd label map mark meta link "
    "base meter nobr output picture progress q ruby s samp small source span strike strong sub sup time track tt "
    "u var wbr area embed col colgroup param"
)
_WITHOUT_END = "area base br col embed hr img input link meta param source track wbr"
# The next one ends these, if nothing else does, so many without an end are not nested.
_ENDED_BY_NEXT = "p li dt dd tr td th thead tbody tfoot option a nobr html head body"
_STRONG = "b strong em h1 h2 h3 h4 h5 h6 th"
# Something is shown in the place of such an element, so it separates words.
_REPLACED = "svg iframe object canvas math audio video textarea select img input embed picture"
# Within <pre>, such an element is a line of its block instead of a block.
_LINE = "div li ol ul"

NAMES = ("", *_SKIPPED.split(), *_BLOCK_LEVEL.split(), *_INLINE.split())
TAGS = {name: number for number, name in enumerate(NAMES) if name}

SKIPPED, BLOCK_LEVEL, WITHOUT_END, RAW, STRONG, REPLACED, LINE = 1, 2, 4, 8, 16, 32, 64

_FNV_START, _FNV_FACTOR = 0xCBF29CE484222325, 0x100000001B3


def fnv_hash(name: bytes) -> int:
    """Return the 64-bit FNV-1a hash of bytes, as the segmentation hashes names and words."""
    value = _FNV_START
    for byte in name:
        value = (value ^ byte) * _FNV_FACTOR & 0xFFFFFFFFFFFFFFFF
    return value


def _kinds() -> npt.NDArray[np.uint8]:
    kinds = np.zeros(256, np.uint8)
    sets = {
        SKIPPED: _SKIPPED, BLOCK_LEVEL: _BLOCK_LEVEL, WITHOUT_END: _WITHOUT_END, RAW: _RAW, STRONG: _STRONG,
        REPLACED: _REPLACED, LINE: _LINE,
    }  # fmt: skip
    for kind, names in sets.items():
        for name in names.split():
            kinds[TAGS[name]] |= kind
    return kinds


KINDS = _kinds()
NOT_NESTED = (KINDS & WITHOUT_END) != 0
NOT_NESTED[[TAGS[name] for name in _ENDED_BY_NEXT.split()]] = True
# The position of a name in NAMES, by its hash; the hash of no name is that of the first, the unknown tag.
NAME_TABLE = table_of(np.array([fnv_hash(name.encode()) for name in NAMES], np.uint64))
