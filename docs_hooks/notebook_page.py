"""A notebook as a page of the site: its text, its code, and the outputs that were saved with it."""

import base64
import json
from pathlib import Path
from typing import Any


def page(notebook: Path) -> tuple[str, dict[str, bytes]]:
    """The Markdown of a notebook, and its figures: name -> PNG."""
    parts: list[str] = []
    figures: dict[str, bytes] = {}
    for cell in json.loads(notebook.read_text())["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for output in cell.get("outputs", []):
            figure = f"{notebook.stem}-{len(figures) + 1}.png"
            text, png = shown(output, figure)
            parts.append(text)
            figures |= {figure: png} if png else {}
    return "\n\n".join(parts), figures


def shown(output: dict[str, Any], figure: str) -> tuple[str, bytes | None]:
    """One output as Markdown: a figure of this name, or text; and the PNG of a figure."""
    data = output.get("data", {})
    if "image/png" in data:
        return f"![Figure]({figure})", base64.b64decode(data["image/png"])
    text = "".join(data.get("text/plain", output.get("text", "")))
    return f"```text\n{text}\n```", None
