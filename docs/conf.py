"""How the documentation is built: MyST pages, the furo theme, no address fetched on the way."""

import json
import sys
from pathlib import Path

from myst_parser.parsers.sphinx_ import MystParser

from airflow_provider_icechunk import __version__

sys.path.insert(0, str(Path(__file__).parent.parent))
from tools.notebook import as_page

project = "airflow-provider-icechunk"
author = "The airflow-provider-icechunk authors"
copyright = "The airflow-provider-icechunk authors, Apache License 2.0"
release = __version__
version = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinxcontrib.mermaid"]
exclude_patterns = ["_build"]
myst_enable_extensions = ["colon_fence", "deflist"]
# The same fence is a picture on a code host and here.
myst_fence_as_directive = ["mermaid"]
myst_heading_anchors = 3
nitpicky = True
# Links between pages are checked; types of Airflow, NumPy and Zarr have no page to link to.
nitpick_ignore_regex = [(r"py:.*", r".*")]
# A field called `bytes` is no reason to warn about every annotation that says `bytes`.
suppress_warnings = ["ref.python"]
# A word in single backticks is code in docstrings as it is on the pages.
default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
python_use_unqualified_type_names = True
toc_object_entries = False

html_theme = "furo"
html_title = f"airflow-provider-icechunk {__version__}"


class NotebookParser(MystParser):
    """Shows a notebook as it was stored, with what its cells showed."""

    supported = ("notebook",)

    def parse(self, inputstring, document):
        """Parse the page that a notebook makes."""
        super().parse(as_page(json.loads(inputstring)), document)


def setup(app):
    """Let notebooks be pages."""
    app.add_source_suffix(".ipynb", "notebook")
    app.add_source_parser(NotebookParser)
