"""Finds many consecutive STOMP messages in a buffer at once.

Messages from one producer usually have the same headers in the same order. So NumPy compares the header names of the
first message with the header names of all other messages, line by line. The comparison also finds the position at which
each value begins and ends. When a column is requested, it is made from these positions.

This works only for common frames. They must be consecutive, complete MESSAGE frames of the broker, each after one line
feed. Each frame must have a content-length that matches, or its body must be text without NUL, followed by another
frame of the broker. Header names must be short and ASCII, and no carriage return may precede the body. All other frames
are handled by :mod:`pyspark_mq.wire.stomp.frames`, and only that module decides whether a frame is malformed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np

__all__ = ["Frames", "find_frames"]

_COMMAND = b"MESSAGE"
#: The bytes between the body of a frame and the headers of the next frame. The next frame begins at the third byte.
_BETWEEN = b"\0\nMESSAGE\n"
_LAST = b"\0\n"
_EOL, _RETURN = b"\n\r"
_LENGTH, _SUBSCRIPTION = "content-length", "subscription"
_DIGITS_MAX = 9
#: If the frames are larger than this on average, copying them together takes longer than decoding together saves.
_FRAME_BYTES_MAX = 10 << 10
#: Maximum number of layouts (sequences of header names) to look for. At least one in `_SHARE_MIN` frames must have each
#: layout.
_LAYOUTS_MAX, _SHARE_MIN = 3, 8
#: Maximum number of headers of a layout, and maximum bytes of a header name. To compare a name, as many bytes as the
#: name has are copied for each message.
_HEADERS_MAX, _NAME_BYTES_MAX = 64, 256


class Field(NamedTuple):
    """The positions of a header in many messages. Each attribute is an array.

    Attributes:
        begins, ends: positions at which the header's value begins and ends in each message.
        present: whether each message has the header.
    """

    begins: Any
    ends: Any
    present: Any

    @classmethod
    def of(cls, count: int, parts: Sequence[tuple[Any, Field]]) -> Field:
        """Merge the positions of a header in several groups of messages.

        Args:
            count: number of all messages.
            parts: for each group, the indices of its messages among all messages, and the positions in these messages.
        """
        begins, ends, present = np.zeros(count, np.int64), np.zeros(count, np.int64), np.zeros(count, bool)
        for places, part in parts:
            begins[places], ends[places], present[places] = part
        return cls(begins, ends, present)


class Frames(NamedTuple):
    """MESSAGE frames in one buffer, in order.

    Attributes:
        data: the buffer.
        spans: array with a column for each frame and four rows: start and end of the header block (see
            :mod:`pyspark_mq.decode.stomp_headers`), and start and end of the body.
        layouts: the different sequences of header names that occur.
        kinds: array with the index of each frame's layout.
        fields: the positions of each header, by name.
    """

    data: bytes
    spans: Any
    layouts: list[tuple[str, ...]]
    kinds: Any
    fields: Mapping[str, Field]

    def taken(self, places: Any) -> Frames:
        """Return the frames with the indices `places`, a slice or an integer array."""
        fields = {name: Field(*(part[places] for part in field)) for name, field in self.fields.items()}
        return Frames(self.data, self.spans[:, places], self.layouts, self.kinds[places], fields)

    def cut(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield the header block and the body of each frame."""
        data = self.data
        for a, b, c, d in zip(*self.spans.tolist(), strict=True):
            yield data[a:b], data[c:d]

    def values(self, name: str) -> list[bytes]:
        """Return the value of a header in each frame, with its escapes.

        If a frame lacks the header, the value is empty.
        """
        field = self.fields.get(name)
        if field is None:
            return [b""] * len(self.kinds)
        data = self.data
        return [data[begin:end] for begin, end in zip(field.begins.tolist(), field.ends.tolist(), strict=True)]

    @classmethod
    def of(cls, parts: Sequence[Frames]) -> Frames:
        """Merge frames from several buffers, in order, into one buffer."""
        pieces: list[bytes] = []
        starts = []
        start = end = 0
        for part in parts:
            if not pieces or part.data is not pieces[-1]:  # slices of one batch share a buffer, which is copied once
                pieces.append(part.data)
                start, end = end, end + len(part.data)
            starts.append(start)
        layouts = list(dict.fromkeys(layout for part in parts for layout in part.layouts))
        bounds = [0, *accumulate(len(part.kinds) for part in parts)]
        rows = [slice(low, high) for low, high in pairwise(bounds)]
        fields = {
            name: Field.of(
                bounds[-1],
                [
                    (places, Field(begins + start, ends + start, present))
                    for places, start, part in zip(rows, starts, parts, strict=True)
                    if name in part.fields
                    for begins, ends, present in [part.fields[name]]
                ],
            )
            for name in dict.fromkeys(name for layout in layouts for name in layout)
        }
        kinds = [np.array([layouts.index(layout) for layout in part.layouts])[part.kinds] for part in parts]
        spans = [part.spans + start for part, start in zip(parts, starts, strict=True)]
        return cls(b"".join(pieces), np.concatenate(spans, axis=1), layouts, np.concatenate(kinds), fields)


def find_frames(
    data: bytes | bytearray, least: int, most: int, last: str, own: bytes = b""
) -> tuple[Frames | None, int]:
    """Find consecutive complete MESSAGE frames, which must have few different layouts.

    Args:
        data: the received bytes, beginning with the first frame.
        least: minimum number of frames. If `data` seems to have fewer frames, they are not examined.
        most: maximum number of frames to examine, which limits the time.
        last: name of the header whose last entry is used if the header is repeated; empty if there is no such header.
        own: the bytes with which header `subscription` of the broker's frames ends, see
            :class:`~pyspark_mq.wire.stomp.frames.FrameReader`; empty to accept any such header.

    Returns:
        the frames, which take the first `len(frames.data)` bytes of `data`, or None if the first frame cannot be
        decoded in this way; and the number of frames that `data` seems to have, up to `most`.
    """
    starts = [0]
    while len(starts) <= most and (found := data.find(_BETWEEN, starts[-1])) >= 0:
        starts.append(found + 2)
    begins = np.array(starts)
    ends = begins[1:] - 2
    # More text may follow after the NUL, so the end of the last message is certain only with a content-length.
    ends_here = len(starts) <= most and data.endswith(_LAST)
    if ends_here:
        ends = np.append(ends, len(data) - 2)
    count = len(ends)
    if count < least or int(ends[-1]) > count * _FRAME_BYTES_MAX:
        return None, count
    with memoryview(data) as view:
        piece = bytes(view[: int(ends[-1]) + 1])
    # Whether another frame of the broker follows the last frame.
    mark = data.find(own, starts[-1]) if own else starts[-1]
    followed = not ends_here and mark >= 0 and data.find(b"\0", starts[-1], mark) < 0
    return _Finder(piece, begins[:count], ends, last, own, followed=followed).found(), count


class _Finder:
    """Finds frames in a buffer, given the positions at which frames may begin, and those at which they may end.

    Args:
        data: the buffer.
        begins, ends: the positions at which frames may begin, and the positions of the NULs at which they may end.
        last, own: as for :func:`find_frames`.
        followed: whether another frame of the broker follows the last frame.
    """

    def __init__(self, data: bytes, begins: Any, ends: Any, last: str, own: bytes, *, followed: bool) -> None:
        self._data, self._ends = data, ends
        self._last, self._own, self._followed = last, own, followed
        frames = zip(begins.tolist(), ends.tolist(), strict=True)
        heads = [data[begin : data.find(b"\n\n", begin, end) + 2] for begin, end in frames]
        #: The parts of all frames before their bodies (the *heads*), concatenated. Only these parts are searched.
        self._heads = b"".join(heads)
        bounds = np.cumsum([0, *map(len, heads)])
        self._begins, self._bodies = bounds[:-1], bounds[1:]
        #: For each frame, what to add to a position in `_heads` to get the position in the buffer.
        self._shift = begins - self._begins
        self._octets = np.frombuffer(self._heads, np.uint8)
        self._lines = np.flatnonzero(self._octets == _EOL)
        #: For each frame, the index in `_lines` of the end of the frame's first line.
        self._first = np.searchsorted(self._lines, self._begins + len(_COMMAND))
        self._returns = np.flatnonzero(self._octets == _RETURN) if b"\r" in self._heads else ()
        # A NUL in headers may be the end of a text, so that another frame begins after the NUL.
        self._nuls = np.flatnonzero(self._octets == 0) if own and b"\0" in self._heads else ()

    def found(self) -> Frames | None:
        count = len(self._ends)
        spans = np.empty((4, count), np.int64)
        spans[0], spans[3] = self._begins + self._shift + len(_COMMAND), self._ends
        kinds = np.zeros(count, np.int64)
        groups: list[tuple[tuple[str, ...], Any, Any]] = []
        left = np.arange(count)
        while len(left) and len(groups) < _LAYOUTS_MAX and (layout := self._layout(int(left[0]))) is not None:
            bounds, good = self._like(layout, left)
            if not good[0] or good.sum() * _SHARE_MIN < count:
                break
            rows, left = left[good], left[~good]
            bounds = bounds[:, good] + self._shift[rows]
            kinds[rows] = len(groups)
            spans[1, rows], spans[2, rows] = bounds[-2] + 1, bounds[-1] + 1
            groups.append((layout, rows, bounds))
        # Return the frames before the first frame that has none of the layouts.
        first = int(left[0]) if len(left) else count
        followed = self._followed if first == count else not self._own
        if first and not followed and _LENGTH not in groups[kinds[first - 1]][0]:
            first -= 1  # it is not certain that the text of the last frame has ended
        if not first:
            return None
        found = Frames(self._data, spans, [layout for layout, _, _ in groups], kinds, self._fields(groups))
        if first == count:
            return found
        return found.taken(slice(first))._replace(data=self._data[: int(self._ends[first - 1]) + 1])

    def _fields(self, groups: Sequence[tuple[tuple[str, ...], Any, Any]]) -> dict[str, Field]:
        """Return the positions of all headers, by name.

        Args:
            groups: for each layout: the layout, the indices of the frames that have the layout, and the positions at
                which the lines of these frames end.
        """
        found: dict[str, list[tuple[Any, Field]]] = {}
        for layout, rows, bounds in groups:
            present = np.ones(len(rows), bool)
            for name in dict.fromkeys(layout):
                # If a header is repeated, only its first entry is used; of header `_last`, the last entry is used.
                number = layout.index(name) if name != self._last else len(layout) - 1 - layout[::-1].index(name)
                field = Field(bounds[number] + len(name) + 2, bounds[number + 1], present)
                found.setdefault(name, []).append((rows, field))
        if len(groups) == 1:
            return {name: field for name, [(_, field)] in found.items()}
        return {name: Field.of(len(self._ends), parts) for name, parts in found.items()}

    def _layout(self, row: int) -> tuple[str, ...] | None:
        """Return the names of the headers of frame `row`, or None if this frame must be decoded alone."""
        begin, end = int(self._begins[row]) + len(_COMMAND) + 1, int(self._bodies[row]) - 2
        lines = self._heads[begin:end].split(b"\n") if end > begin else []
        names = [line.partition(b":")[0] for line in lines if b":" in line]
        are_plain = all(
            0 < len(name) <= _NAME_BYTES_MAX and name.isascii() and b"\\" not in name and b"\0" not in name
            for name in names
        )
        if not are_plain or not 0 < len(lines) == len(names) <= _HEADERS_MAX:
            return None
        return tuple(name.decode() for name in names)

    def _like(self, layout: tuple[str, ...], rows: Any) -> tuple[Any, Any]:
        """Find the frames whose header names are those of a layout, in the same order.

        Args:
            layout: the header names.
            rows: the indices of the frames to compare with the layout.

        Returns:
            the positions at which the lines of each frame end, from the first line to the empty line; and an array that
            tells whether each frame has the layout.
        """
        first, last = self._first[rows], len(self._lines) - 1
        bounds = self._lines[np.minimum(first + np.arange(len(layout) + 2)[:, None], last)]
        bodies, ends = self._bodies[rows], self._ends[rows] - self._shift[rows]
        good = (bounds[-1] == bounds[-2] + 1) & (bounds[-1] + 1 == bodies)
        for begins, name in zip(bounds, layout, strict=False):
            good &= self._starts(begins + 1, f"{name}:".encode())
        if self._own:
            # A frame without these bytes may be part of a text, so it is decoded alone.
            place = bounds[layout.index(_SUBSCRIPTION) + 1] if _SUBSCRIPTION in layout else bounds[0]
            good &= self._starts(place - len(self._own), self._own)
        for excluded in (self._returns, self._nuls):
            if len(excluded):
                good &= np.searchsorted(excluded, bodies) == np.searchsorted(excluded, self._begins[rows])
        if _LENGTH in layout:
            number = layout.index(_LENGTH)
            sizes, are_sizes = self._sizes(bounds[number] + len(_LENGTH) + 2, bounds[number + 1])
            good &= are_sizes & (bodies + sizes == ends)
        elif self._data.count(b"\0") != len(self._ends):  # there are NULs other than those at the ends of frames
            spans = zip((bodies + self._shift[rows]).tolist(), self._ends[rows].tolist(), strict=True)
            good &= np.array([self._data.find(b"\0", begin, end) < 0 for begin, end in spans], bool)
        return bounds, good

    def _starts(self, places: Any, name: bytes) -> Any:
        """Return an array that tells for each position in `places` whether `name` begins there in `_heads`."""
        size = len(name)
        most = len(self._heads) - size
        if most < 0:
            return np.zeros(len(places), bool)
        windows = np.ndarray((most + 1,), f"S{size}", self._heads, 0, (1,))
        return (windows[np.minimum(places, most)] == name) & (places <= most)

    def _sizes(self, begins: Any, ends: Any) -> tuple[Any, Any]:
        """Parse the decimal number between positions `begins` and `ends` in `_heads`, for each frame.

        Returns:
            an array with the numbers, and an array that tells whether each number is valid and not too long.
        """
        lengths = ends - begins
        good = (lengths >= 1) & (lengths <= _DIGITS_MAX)
        sizes = np.zeros(len(begins), np.int64)
        for place in range(int(lengths[good].max(initial=0))):
            within = place < lengths
            digits = self._octets[ends - 1 - np.where(within, place, 0)].astype(np.int64) - ord("0")
            good &= ~within | ((digits >= 0) & (digits <= 9))
            sizes += np.where(within, digits * 10**place, 0)
        return sizes, good
