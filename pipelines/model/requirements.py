"""What only training needs, and a corpus does not."""

from __future__ import annotations

from importlib.util import find_spec

from pipelines.core.errors import WebtextError


def require_torch() -> None:
    """Raise WebtextError, with the command that installs them, where torch or safetensors is not installed."""
    missing = [name for name in ("torch", "safetensors") if find_spec(name) is None]
    if missing:
        raise WebtextError(f"{' and '.join(missing)} not installed; install with: pip install 'webtext-kit[train]'")
