from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.failpoints import failing_server


@pytest.fixture(scope="module")
def failing_uri(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server with fail points."""
    with failing_server(tmp_path_factory.mktemp("failing")) as address:
        yield address
