"""Small files in the layouts of the real ones, and a table in which they are what their makers publish."""

from dataclasses import replace
from hashlib import md5

import pytest

from thalweg.paper.data.fetch import SETS


@pytest.fixture
def published(monkeypatch):
    def enter(name, contents, urls=None, form=0):
        """Make `contents`, by file name, and `urls`, with what they give, the published ones of a set."""
        forms = list(SETS[name])
        changed = {file: md5(content).hexdigest() for file, content in contents.items()}
        offered = {url: md5(content).hexdigest() for url, content in (urls or {}).items()} or forms[form].urls
        forms[form] = replace(forms[form], files=changed, urls=offered)
        monkeypatch.setitem(SETS, name, tuple(forms))
        return forms[form]

    return enter


@pytest.fixture
def written():
    def write(folder, contents):
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in contents.items():
            (folder / name).write_bytes(content)

    return write
