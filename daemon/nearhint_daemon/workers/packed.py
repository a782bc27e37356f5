"""Whether what assembly is handed together lies together: neighbours, in one thread.

A statement of assembly that takes several elements at once takes those that a thread has one after
the other. Which these are depends on the layout that Triton has chosen for them, of which a source
can say nothing. So what was compiled is looked through: a kernel in which some are no neighbours
along the layout's own axis is refused, like one that no device could launch. Verification would
find it as well, but later, and on the device.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_STATEMENT = re.compile(
    r"tt\.elementwise_inline_asm .*packed_element = (\d+) : i32.*-> tensor<[^>]*?(?:, #(\w+))?>"
)
_BLOCKED = re.compile(
    r"#(\w+) = #ttg\.blocked<\{sizePerThread = \[([\d, ]+)\].*order = \[([\d, ]+)\]\}>"
)


def scattered(ttgir: str) -> Iterator[str]:
    """The layouts, in Triton's IR for GPUs, of packed elements that are not next to each other.

    >>> layout = "#{} = #ttg.blocked<{{sizePerThread = [1, {}], order = [1, 0]}}>"
    >>> used = '%1 = tt.elementwise_inline_asm "" {{packed_element = 8 : i32}} ' + (
    ...     "%0 : tensor<1x512xbf16, #{0}> -> tensor<1x512xbf16, #{0}>")
    >>> list(scattered("\\n".join([layout.format("wide", 8), used.format("wide")])))
    []
    >>> list(scattered("\\n".join([layout.format("narrow", 4), used.format("narrow")])))
    ['#narrow has 4 in a row, of 8']
    """
    rows: dict[str, int] = {}
    for name, sizes, order in _BLOCKED.findall(ttgir):
        innermost = int(order.split(",")[0])
        rows[name] = int(sizes.split(",")[innermost])
    for count, layout in _STATEMENT.findall(ttgir):
        if rows.get(layout, 1) % int(count):
            yield f"#{layout} has {rows.get(layout, 1)} in a row, of {count}"
