"""The files of the documentation site (a hook of mkdocs.yml): docs/ and what it links to elsewhere in the repository.

Every file keeps its path in the repository, so a relative link such as ../benchmarks/dedup.md works both where the
repository is browsed and on the site.
"""

from __future__ import annotations

from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

REPOSITORY = Path(__file__).resolve().parents[1]
SOURCES = (
    "README.md", "CONTRIBUTING.md", "CHANGELOG.md", "LICENSE", "Dockerfile", "data/extractor.md", "examples/*.py",
    "docs/**/*.md", "docs/pictures/*.png", "docs/iframe-worker.js", "benchmarks/*.md",
)  # fmt: skip


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Add the decisions and the results of the benchmarks to the navigation, which would be long lists otherwise."""
    assert config.nav is not None
    for title, pattern in (("Decisions", "docs/decisions/*.md"), ("Benchmarks", "benchmarks/*.md")):
        config.nav[-1]["Reference"].append({title: _paths(pattern)})
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Replace the files of docs/ with those of the repository that the site contains."""
    for file in list(files.src_uris.values()):
        if file.abs_src_path and Path(file.abs_src_path).is_relative_to(config.docs_dir):
            files.remove(file)
    for path in (path for pattern in SOURCES for path in _paths(pattern)):
        files.append(File(path, str(REPOSITORY), config.site_dir, config.use_directory_urls))
    return files


def _paths(pattern: str) -> list[str]:
    return sorted(path.relative_to(REPOSITORY).as_posix() for path in REPOSITORY.glob(pattern))
