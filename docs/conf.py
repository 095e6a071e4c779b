"""How the documentation is built: MyST pages, the furo theme, no address fetched on the way."""

from airflow_provider_icechunk import __version__

project = "airflow-provider-icechunk"
author = "The airflow-provider-icechunk authors"
copyright = "The airflow-provider-icechunk authors, Apache License 2.0"
release = __version__
version = __version__

extensions = ["myst_parser", "sphinxcontrib.mermaid"]
exclude_patterns = ["_build"]
myst_enable_extensions = ["colon_fence", "deflist"]
# The same fence is a picture on a code host and here.
myst_fence_as_directive = ["mermaid"]
myst_heading_anchors = 3
nitpicky = True

html_theme = "furo"
html_title = f"airflow-provider-icechunk {__version__}"
