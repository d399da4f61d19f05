"""Libraries of optional extras, which are imported only where they are used."""

from __future__ import annotations

from importlib.metadata import distributions
from importlib.util import find_spec

from pipelines.errors import WebtextError


def require_extra(extra: str, purpose: str, *modules: str, otherwise: str = "") -> None:
    """Raise an error, with the command that installs the extra, if one of its modules cannot be imported.

    A name with a hyphen is that of a package of PyPI. `otherwise` is another way out.
    """
    is_installed = (any(distributions(name=name)) if "-" in name else find_spec(name) for name in modules)
    missing = [name.replace("_", "-") for name, found in zip(modules, is_installed, strict=True) if not found]
    if missing:
        remedies = ", or ".join(filter(None, (install_command(extra), otherwise)))
        raise WebtextError(f"{purpose} needs {' and '.join(missing)}; run: {remedies}")


def install_command(extra: str) -> str:
    """Return the command that installs an extra of this package."""
    return f"pip install 'webtext-kit[{extra}]'"
