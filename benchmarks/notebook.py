"""A notebook run from its first cell to its last, as it is saved: with its outputs, and nothing that changes from day to day."""

import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode


def executed(path: Path, folder: Path) -> NotebookNode:
    """The notebook with fresh outputs, run in this folder; an error in a cell is raised."""
    notebook = nbformat.read(path, as_version=4)
    where, quiet = {"metadata": {"path": str(folder)}}, ["--log-level=ERROR"]  # of the kernel, which advises to encrypt
    NotebookClient(notebook, timeout=300, record_timing=False, resources=where, extra_arguments=quiet).execute()
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    return notebook


if __name__ == "__main__":
    path, folder = map(Path, sys.argv[1:])
    nbformat.write(executed(path, folder), path)
