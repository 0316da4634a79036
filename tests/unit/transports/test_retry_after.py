"""The waits that providers name in their texts."""

from __future__ import annotations

import pytest

from greenroom.transports.retry_after import retry_after_s


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("Please try again in 1s.", 1),
        ("please try again in 20s.", 20),
        ("try again in 250ms", 0.25),
        ("retry in 500 milliseconds", 0.5),
        ("Please try again in 5 minutes", 300),
        ("Retry-After: 7", 7),
        ("retry-after: 30", 30),
        ("try again in 2 hours", 7200),
        ("try again in 2h", 7200),
        ("try again in a moment", None),
        ("try again at 6:04 PM.", None),
        ("resets 6:23pm (UTC)", None),
        ("", None),
    ],
)
def test_the_wait_that_a_text_names(text: str, seconds: float | None) -> None:
    assert retry_after_s(text) == seconds
