"""Which shared process takes the next conversation: the books of a room's links. Plain data of the supervisor; no actor of its own."""

from __future__ import annotations

import itertools
from collections.abc import Hashable
from typing import Any

import attrs
import pykka

Ref = pykka.ActorRef[Any]


@attrs.define(kw_only=True)
class Link:
    """One shared process. `guests` are (session id, incarnation); `moves` counts who came and went."""

    link_id: str
    key: Hashable
    ref: Ref
    max_guests: int
    guests: set[tuple[str, int]] = attrs.field(factory=set)
    moves: int = 0
    retired: bool = False

    def join(self, guest: tuple[str, int]) -> None:
        """A conversation comes."""
        self.guests.add(guest)
        self.moves += 1


class Links:
    """All links of a room that have not ended."""

    def __init__(self) -> None:
        self._links: dict[str, Link] = {}
        self._numbers = itertools.count(1)

    def __len__(self) -> int:
        return len(self._links)

    def new_id(self) -> str:
        """Return a name for the next link."""
        return f"link-{next(self._numbers)}"

    def choose(self, key: Hashable) -> Link | None:
        """Return the least loaded link that takes conversations with `key`."""
        open_links = [link for link in self._links.values() if link.key == key and not link.retired and len(link.guests) < link.max_guests]
        return min(open_links, key=lambda link: len(link.guests), default=None)

    def add(self, link: Link) -> None:
        """Enter a link."""
        self._links[link.link_id] = link

    def retire(self, link_id: str) -> None:
        """It takes no new conversations."""
        if link_id in self._links:
            self._links[link_id].retired = True

    def leave(self, guest: tuple[str, int]) -> list[Link]:
        """The conversation is in no link any more. Return the links that it has left empty."""
        left = [link for link in self._links.values() if guest in link.guests]
        for link in left:
            link.guests.discard(guest)
            link.moves += 1
        return [link for link in left if not link.guests]

    def idle(self) -> list[Link]:
        """Return those that carry nobody and are not ending."""
        return [link for link in self._links.values() if not link.guests and not link.retired]

    def remove(self, link_id: str) -> None:
        """It has ended, and nothing of it is left."""
        self._links.pop(link_id, None)

    def refs(self) -> list[Ref]:
        """Their actors."""
        return [link.ref for link in self._links.values()]
