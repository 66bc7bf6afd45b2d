"""How Sphinx builds these pages."""

from importlib.metadata import version as installed_version

project = "Postroad"
author = "The Postroad authors"
copyright = "The Postroad authors"
release = installed_version("postroad")
version = ".".join(release.split(".")[:2])

extensions = ["myst_parser"]
exclude_patterns = ["_build"]
source_suffix = {".md": "markdown"}

# Links to headings work as they do on a page of the repository.
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence", "deflist"]

html_theme = "furo"
html_title = f"Postroad {release}"
