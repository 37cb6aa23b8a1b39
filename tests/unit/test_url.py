"""Broker urls: schemes, ports, virtual hosts, escapes, failover lists, and how they are shown."""

from __future__ import annotations

import dataclasses
import re
import time
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_mq.brokers import BROKERS
from pyspark_mq.errors import OptionError
from pyspark_mq.wire import url as url_module
from pyspark_mq.wire.url import SCHEMES, BrokerUrl, parse_urls, redact, redact_in


def one(text: str) -> BrokerUrl:
    (url,) = parse_urls(text)
    return url


def refusal(text: str) -> str:
    with pytest.raises(OptionError) as caught:
        parse_urls(text)
    assert caught.value.option == "url"
    return str(caught.value)


# -- parts ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scheme", "port", "tls"),
    [("amqp", 5672, False), ("amqps", 5671, True), ("stomp", 61613, False), ("stomp+ssl", 61612, True)],
)
def test_a_scheme_has_its_port_and_tells_of_tls(scheme: str, port: int, tls: bool) -> None:
    url = one(f"{scheme}://host")
    assert (url.scheme, url.port, url.tls) == (scheme, port, tls)


def test_each_scheme_has_a_partner_that_differs_in_tls() -> None:
    for name, scheme in SCHEMES.items():
        assert SCHEMES[scheme.partner].partner == name
        assert SCHEMES[scheme.partner].tls is not scheme.tls


def test_every_scheme_of_a_broker_is_known() -> None:
    streams = {"rabbitmq-stream", "rabbitmq-stream+tls"}
    assert {name for broker in BROKERS.values() for name in broker.protocols} | streams == set(SCHEMES)


def test_a_scheme_may_be_written_in_capitals() -> None:
    assert one("STOMP+SSL://host") == one("stomp+ssl://host")


@pytest.mark.parametrize("port", [1, 5673, 65_535])
def test_a_port_is_taken_as_written(port: int) -> None:
    assert one(f"amqp://host:{port}").port == port


def test_a_colon_without_a_port_means_the_default() -> None:
    assert one("amqp://host:/").port == 5672


@pytest.mark.parametrize(
    ("path", "virtual_host"),
    [
        ("", "/"),
        ("/", "/"),
        ("/%2F", "/"),
        ("/%2f", "/"),
        ("//", "/"),
        ("/a", "a"),
        ("/%2Fa", "/a"),
        ("//a", "/a"),
        ("/a%2Fb", "a/b"),
        ("/a/b", "a/b"),
        ("/%C3%A9t%C3%A9", "été"),
        ("/a%20b%40c", "a b@c"),
        ("/%252F", "%2F"),
        ("/CaSe", "CaSe"),
    ],
)
def test_the_path_is_the_virtual_host(path: str, virtual_host: str) -> None:
    assert one(f"amqp://host{path}").virtual_host == virtual_host


@pytest.mark.parametrize(
    ("written", "host", "port"),
    [
        ("[::1]", "::1", 5672),
        ("[::1]:5673", "::1", 5673),
        ("user:pw@[2001:DB8::1]:1", "2001:db8::1", 1),
        ("[fe80::1%25eth0]", "fe80::1%25eth0", 5672),
        ("127.0.0.1", "127.0.0.1", 5672),
        ("Broker-1.Example.ORG", "broker-1.example.org", 5672),
    ],
)
def test_a_host_is_a_name_or_an_address(written: str, host: str, port: int) -> None:
    url = one(f"amqp://{written}/v")
    assert (url.host, url.port, url.virtual_host) == (host, port, "v")


@pytest.mark.parametrize(
    ("userinfo", "username", "password"),
    [
        ("", None, None),
        ("u@", "u", None),
        ("u:@", "u", ""),
        (":pw@", "", "pw"),
        ("u:pw@", "u", "pw"),
        ("u:p:w@", "u", "p:w"),
        ("u%40corp:p%2Fw@", "u@corp", "p/w"),
        ("u:%2F%40%2C%3F%23%25%20@", "u", "/@,?#% "),
        ("%C3%A9:%F0%9F%90%87@", "é", "🐇"),
        ("u:p+w@", "u", "p+w"),
        ("u:p@w@", "u", "p@w"),
        ("u:p w@", "u", "p w"),
        ("u:p,w@", "u", "p,w"),
    ],
)
def test_credentials_are_decoded(userinfo: str, username: str | None, password: str | None) -> None:
    url = one(f"amqp://{userinfo}host/v")
    assert (url.username, url.password) == (username, password)
    assert (url.host, url.virtual_host) == ("host", "v")


# -- failover ---------------------------------------------------------------------------------


@pytest.mark.parametrize("comma", [",", ", ", " ,", " ,\n ", ",,", ", ,"])
def test_candidates_keep_their_order(comma: str) -> None:
    urls = parse_urls(f"amqp://u:a@one{comma}amqp://v:b@two:1{comma}amqp://three/")
    assert [(url.host, url.port, url.password) for url in urls] == [
        ("one", 5672, "a"),
        ("two", 1, "b"),
        ("three", 5672, None),
    ]


def test_a_comma_at_the_end_means_nothing() -> None:
    assert parse_urls("amqp://one,amqp://two, ") == parse_urls("amqp://one,amqp://two")


def test_candidates_may_have_credentials_with_commas() -> None:
    urls = parse_urls("amqp://u:a,b@one,amqp://u:c,d@two")
    assert [(url.host, url.password) for url in urls] == [("one", "a,b"), ("two", "c,d")]


def test_candidates_of_different_schemes_are_refused() -> None:
    text = refusal("amqp://u:pw@one,amqps://two")
    assert "mixes schemes in 'amqp://one:5672,amqps://two:5671'" in text


def test_candidates_of_different_virtual_hosts_are_refused() -> None:
    text = refusal("amqp://u:pw@one/a,amqp://two/b")
    assert "mixes virtual hosts in 'amqp://one:5672/a,amqp://two:5672/b'" in text


def test_the_default_virtual_host_is_one_however_it_is_written() -> None:
    urls = parse_urls("amqp://one,amqp://two/,amqp://three/%2F")
    assert [url.virtual_host for url in urls] == ["/", "/", "/"]


def test_one_wrong_candidate_is_enough_for_a_refusal() -> None:
    assert "'amqp://two:99999' is not a URL" in refusal("amqp://one,amqp://two:99999")


# -- refusals ---------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["", "  ", ",", " , ,"])
def test_nothing_is_refused(text: str) -> None:
    assert "is empty; set for example amqp://" in refusal(text)


@pytest.mark.parametrize("text", ["http://host", "host:5672", "host", "amqp+tls://host", "//host", "tcp://host:61616"])
def test_another_scheme_is_refused_with_those_accepted(text: str) -> None:
    accepted = "use one of: amqp://, amqps://, stomp://, stomp+ssl://"
    assert f"{text!r} has no known scheme; {accepted}" in refusal(text)


@pytest.mark.parametrize("port", ["0", "65536", "-1", "x", "56 72", "5672x"])
def test_a_port_out_of_range_is_refused(port: str) -> None:
    text = refusal(f"amqp://host:{port}/v")
    assert "the port must be a number from 1 to 65535" in text


@pytest.mark.parametrize("text", ["amqp://", "amqp:///v", "amqp://u:pw@", "amqp://:5672", "amqp:host"])
def test_a_url_without_host_is_refused(text: str) -> None:
    assert "names no host" in refusal(text)


def test_a_list_of_hosts_is_refused() -> None:
    assert "names several hosts; write each candidate as a whole URL" in refusal("amqp://one,two/v")


def test_an_address_with_one_bracket_is_refused() -> None:
    assert "is not a URL: malformed" in refusal("amqp://[::1/v")


@pytest.mark.parametrize("tail", ["?heartbeat=5", "#part", "/v?heartbeat=5", "/v#part"])
def test_parameters_are_refused(tail: str) -> None:
    text = refusal(f"amqp://host{tail}")
    assert "has parameters; set options of the source instead" in text
    assert "'?' as %3F" in text


def test_an_at_sign_behind_the_host_is_refused() -> None:
    # A password of "12/34" otherwise becomes port 12 of host "user", and half of it is shown.
    text = refusal("amqp://user:12/34@host/v")
    assert "'amqp://***@host/v' has an '@' after the host" in text
    assert "'/' as %2F" in text


# -- how it is shown --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("amqp://u:pw@host", "amqp://host:5672"),
        ("amqp://u:pw@host/", "amqp://host:5672"),
        ("amqps://host:1/a", "amqps://host:1/a"),
        ("stomp://u:pw@[::1]/", "stomp://[::1]:61613"),
    ],
)
def test_a_url_is_shown_without_credentials(text: str, shown: str) -> None:
    assert str(one(text)) == shown


def test_a_shown_url_without_credentials_is_the_same_url() -> None:
    url = one("amqps://u:pw@[::1]:1/a")
    assert one(str(url)) == dataclasses.replace(url, username=None, password=None)


def test_the_repr_of_a_url_has_no_credentials() -> None:
    url = one("amqp://somebody:hushhush@host/v")
    assert "somebody" not in repr(url)
    assert "hushhush" not in repr(url)
    assert "host='host'" in repr(url)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("amqp://u:pw@host:5672/v", "amqp://***@host:5672/v"),
        ("amqp://host:5672/v", "amqp://host:5672/v"),
        ("amqp://u:p/w@[::1]:1/v", "amqp://***@[::1]:1/v"),
        ("u:pw@host", "***@host"),
        ("amqp://u:pw", "amqp://***"),
        ("amqp://u:pw/v", "amqp://***"),
        ("amqp://host/?password=pw", "amqp://host/?***"),
        ("amqp://host/?password=p@w", "amqp://***@***"),
        ("amqp://u:p?w@host", "amqp://***@***"),
        ("amqp://u:p\nw@host/v", "amqp://***@host/v"),
        ("", ""),
    ],
)
def test_malformed_urls_are_shown_as_far_as_it_is_safe(text: str, shown: str) -> None:
    assert redact(text) == shown


@pytest.mark.parametrize(
    ("said", "url", "shown"),
    [
        ("When opening 'b/ids': no such bucket", "s3://key:hushhush@b/ids", "When opening 'b/ids': no such bucket"),
        ("Cannot parse 's3://key:hushhush@b/ids'", "s3://key:hushhush@b/ids", "Cannot parse 's3://***@b/ids'"),
        ("bad login key:hush%2Fhush", "s3://key:hush%2Fhush@b/ids", "bad login ***"),
        ("bad secret hush/hush", "s3://key:hush%2Fhush@b/ids", "bad secret ***"),
        ("key:hush%2fhush in small letters", "s3://key:hush%2Fhush@b/ids", "*** in small letters"),
        ("parameter x=hushhush", "s3://b/ids?x=hushhush", "parameter ***"),
        ("[Errno 13] Permission denied: '/data/ids'", "/data/ids", "[Errno 13] Permission denied: '/data/ids'"),
    ],
)
def test_what_is_said_of_a_url_has_no_secret(said: str, url: str, shown: str) -> None:
    assert redact_in(said, url) == shown


@pytest.mark.parametrize(
    "text",
    [
        "amqp://a" + "," * 50_000, "amqp://a" + "," * 50_000 + "x", ",".join(["amqp://a"] * 5_000), "a," * 50_000,
        "amqp://a" + ", " * 50_000 + "amqp://b", "amqp://" + "a" * 50_000 + ",", "amqp://u:" + "@" * 50_000,
    ],
)  # fmt: skip
def test_a_url_of_any_length_is_read_in_a_moment(text: str) -> None:
    began_s = time.process_time()
    with suppress(OptionError):
        parse_urls(text)
    redact(text)
    assert time.process_time() - began_s < 2


@pytest.mark.parametrize("text", ["amqp://u:p%0Aw@host", "amqp://u:p\nw@host", "amqp://host/a%0D%0Ab", "amqp://h\tost"])
def test_a_url_with_the_end_of_a_line_in_it_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match="control character") as refused:
        parse_urls(text)
    assert "p%0Aw" not in str(refused.value)


@given(st.lists(st.sampled_from(["amqp://a", "stomp://b:1", "c", " ", ",", "\t", ":", "//", "x,y@h"]), max_size=8))
def test_urls_are_told_apart_as_before(pieces: list[str]) -> None:
    """By the expression that says what is meant, and takes time that grows with the third power of the length."""
    text = "".join(pieces).strip(", \t\r\n")
    assert list(url_module._candidates(text)) == re.split(r"[\s,]*,[\s,]*(?=[A-Za-z][\w+.-]*://)", text)
