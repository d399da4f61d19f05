"""Bytes: files and object stores, compression, atomic writes, local copies."""

from pipelines.storage.files import *
from pipelines.storage.hashing import HashingWriter as HashingWriter
from pipelines.storage.paths import *
