"""A loss of power below a single node of streams, which are not on the disk when they are confirmed."""

from __future__ import annotations

import os
import uuid
from contextlib import ExitStack
from pathlib import Path

import pytest

from pyspark_mq.errors import DataLossError
from pyspark_mq.streams.topology import forget_connections
from testbed.brokers.rabbitmq import RabbitNode
from testbed.brokers.rabbitmq_erlang import SYNC
from testbed.power.disk import Disk
from testbed.process import NodeError, poll
from tests.faults.test_streams import published
from tests.plugin import missing
from tests.support.streams import StreamQuery, numbered, publish


@pytest.mark.whole
@pytest.mark.skipif(os.geteuid() != 0, reason="to mount a disk takes root")
def test_a_loss_of_power_is_never_silent(tmp_path: Path) -> None:
    """Read up to an end that the disk has not: what is written there afterwards is not taken for what was read."""
    stream = f"test-{uuid.uuid4().hex[:12]}"
    with ExitStack() as stack:
        disk = Disk(tmp_path)
        stack.callback(disk.close)
        try:
            node = RabbitNode(version="4.3", plugins=("rabbitmq_stream",), data=disk.path)
        except NodeError as absent:
            missing(str(absent))
        stack.callback(node.close)
        node.start()
        publish(node.stream_port, stream, numbered(0, 1_000))
        node.eval(SYNC)  # or it may not know after the cut who coordinates its streams
        os.sync()
        query = StreamQuery(node.stream_url(), stream)
        assert query.bodies() == numbered(0, 1_000)
        publish(node.stream_port, stream, numbered(1_000, 2_000))
        assert query.bodies() == numbered(1_000, 2_000)
        disk.cut()
        node.kill()
        node.end_helpers()
        disk.restore()
        node.start()
        assert poll(lambda: published(node, stream), 60, interval_s=1.0), node.log_tail()
        publish(node.stream_port, stream, [b"after"] * 2_000)
        forget_connections()
        query.look_again()
        before = query.offset
        with pytest.raises(DataLossError, match=r"end was rewritten"):
            query.epoch()
        assert query.offset == before
