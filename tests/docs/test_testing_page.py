"""The testing page: its tests run as they are pasted."""

from __future__ import annotations

from typing import Any

import pytest
from test_pages import Block, blocks

BLOCKS = [pytest.param(one, marks=one.needed, id=str(one)) for one in blocks("docs/testing.md")]


@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # FastMCP's client in memory needs it
@pytest.mark.parametrize("block", BLOCKS)
async def test_the_tests_on_the_page_pass(block: Block) -> None:
    names: dict[str, Any] = {}
    exec(compile(block.code, str(block), "exec", dont_inherit=True), names)  # as a reader pastes it
    tests = [value for name, value in names.items() if name.startswith("test_")]
    assert tests or "SharedStoreContract" in names  # which the stores' own tests run
    for test in tests:
        await test()
