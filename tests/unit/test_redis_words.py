"""The store in Redis where no Redis is: what another server says is quoted without the password."""

from __future__ import annotations

import pytest

from pyspark_mq.errors import BrokerUnavailableError
from pyspark_mq.spark_source.options import parse_options
from pyspark_mq.spark_source.source import make_store
from tests.support.sockets import port


def test_a_server_that_quotes_the_login_is_not_believed_to_keep_it() -> None:
    with port(b"-ERR no s3cret/hush here, no s3cret%2fhush\r\n") as opened:
        url = f"redis://:s3cret%2Fhush@127.0.0.1:{opened.number}/0"
        options = parse_options({"broker": "rabbitmq", "url": "amqp://h", "queue": "q", "dedupStore": url})
        store = make_store(options, options.settings)
        with pytest.raises(BrokerUnavailableError, match=r"no \*\*\* here, no \*\*\*") as raised:
            store.known(["a"])
        assert "hush" not in str(raised.value)
