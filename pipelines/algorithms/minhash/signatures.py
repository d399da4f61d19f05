"""Near-duplicates by MinHash: shingles of words, datasketch's signatures, bands, and the true Jaccard similarity."""

from __future__ import annotations

import functools
import hashlib
import re
import unicodedata
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from pipelines.algorithms.kernels.splitmix import STEP, mix
from pipelines.algorithms.minhash.bands import candidate_probability, choose_bands

if TYPE_CHECKING:
    from datasketch import MinHash

__all__ = ["candidate_probability", "choose_bands"]

Hashes = npt.NDArray[np.uint64]
Signature = npt.NDArray[np.uint32]

_WORD = re.compile(r"\w+")
_LOW_32_BITS = np.uint64(0xFFFFFFFF)
# update_batch holds shingles x permutations values at once: 4 MB for 128 permutations.
_UPDATE_SHINGLES = 8192


def normalized_text(text: str) -> str:
    """Return text in Unicode form NFC with each run of white space as one space, and none at the ends."""
    return " ".join(unicodedata.normalize("NFC", text).split())


def text_hash(text: str) -> bytes:
    """Return a 128-bit hash of the normalized text."""
    return hashlib.blake2b(normalized_text(text).encode(), digest_size=16).digest()


def words_of(text: str) -> list[str]:
    r"""Return the words (`\w+`) of the text in form NFC and lower case."""
    return _WORD.findall(unicodedata.normalize("NFC", text).lower())


def shingles_of(text: str, ngram: int) -> list[str]:
    """Return the runs of `ngram` words, joined by spaces; where there are fewer words, all of them together."""
    words = words_of(text)
    if not words:
        return []
    return [" ".join(words[start : start + ngram]) for start in range(max(1, len(words) - ngram + 1))]


def shingle_hashes(text: str, ngram: int) -> Hashes:
    """Return the first 64 bits of each shingle's SHA-1, sorted; the low 32 are `datasketch.hashfunc.sha1_hash32`."""
    sha1 = hashlib.sha1
    digests = b"".join([sha1(run.encode()).digest()[:8] for run in shingles_of(text, ngram)])
    hashes: Hashes = np.unique(np.frombuffer(digests, dtype="<u8").astype(np.uint64))
    return hashes


def jaccard(left: Hashes, right: Hashes) -> float:
    """Return the Jaccard similarity of two sets given as sorted arrays without repeats; 0 where one is empty."""
    if not len(left) or not len(right):
        return 0.0
    both = len(np.intersect1d(left, right, assume_unique=True))
    return both / (len(left) + len(right) - both)


def signature_of(hashes: Hashes, num_perm: int, seed: int) -> Signature:
    """Return the MinHash signature, shape (num_perm,), of a set of shingle hashes.

    It is what `datasketch.MinHash(num_perm, seed)` (scheme affine32) gives for the shingles' UTF-8 bytes.
    """
    from datasketch import MinHash

    signature = MinHash(num_perm, seed, hashfunc=int, permutations=_permutations(num_perm, seed), scheme="affine32")
    low = (hashes & _LOW_32_BITS).astype(np.uint32)
    for start in range(0, len(low), _UPDATE_SHINGLES):
        signature.update_batch(low[start : start + _UPDATE_SHINGLES].tolist())
    values: Signature = signature.hashvalues
    return values


@functools.lru_cache(maxsize=4)
def _permutations(num_perm: int, seed: int) -> MinHash:
    from datasketch import MinHash

    return MinHash(num_perm, seed).permutations


def band_keys(signatures: Signature, bands: int, rows: int) -> Hashes:
    """Return a 64-bit hash of each band: (documents, num_perm) -> (documents, bands); further values are not used."""
    used = signatures[:, : bands * rows].reshape(len(signatures), bands, rows).astype(np.uint64)
    keys = np.zeros(used.shape[:2], dtype=np.uint64)
    for row in range(rows):
        keys = mix((keys ^ used[:, :, row]) + STEP)
    return keys


def pair_hashes(left: npt.NDArray[np.int64], right: npt.NDArray[np.int64]) -> Hashes:
    """Return a 64-bit hash of each pair of document numbers, to spread pairs over tasks."""
    hashes: Hashes = mix((mix(left.astype(np.uint64) + STEP) ^ right.astype(np.uint64)) + STEP)
    return hashes
