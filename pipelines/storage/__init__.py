"""Bytes: files and object stores, compression, atomic writes, local copies."""

from pipelines.storage.files import *
