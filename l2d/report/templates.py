"""The HTML templates of the report's pages, which need no network: styles, scripts and images are inside."""

import re

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

# What an SVG file has before its drawing, and what HTML does not need of it.
PROLOGUE = re.compile(r"^.*?(?=<svg)|<metadata>.*?</metadata>|\s+xmlns(:xlink)?=\"[^\"]*\"", re.DOTALL)


def render(name: str, **values: object) -> str:
    """The page of a template: every value is escaped."""
    environment = Environment(
        loader=PackageLoader("l2d.report", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(name).render(**values)


def inline(svg: str) -> Markup:
    """An SVG file of ours as a part of a page."""
    return Markup(PROLOGUE.sub("", svg))
