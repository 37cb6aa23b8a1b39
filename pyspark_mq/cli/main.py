"""The command line of ``pyspark-mq``: parses arguments, runs a subcommand, and prints its result.

The command prints plain text for people and JSON for machines. It needs no more libraries than the source itself, so it
runs wherever the source runs.

Exit codes: 0 for success; 1 if the command failed and printed the reason, or if `doctor` found a problem; 2 for wrong
usage.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
from collections.abc import Sequence
from datetime import datetime, timezone
from itertools import chain
from typing import Any

from pyspark_mq import __version__
from pyspark_mq.admin.checks import Level
from pyspark_mq.cli.checkpoint import place_of, read_checkpoint
from pyspark_mq.cli.doctor.examine import examine
from pyspark_mq.cli.doctor.report import as_json, summary, worst
from pyspark_mq.cli.doctor.report import written as written_section
from pyspark_mq.cli.doctor.streams import examine_streams
from pyspark_mq.cli.doctor.writes import examine_write
from pyspark_mq.cli.inspect import report, written
from pyspark_mq.cli.peek import peek
from pyspark_mq.cli.release import describe, mark, open_epochs, seek
from pyspark_mq.cli.repair import find_damage
from pyspark_mq.cli.sink import check_sink
from pyspark_mq.errors import MqError, OptionError, shown
from pyspark_mq.logs import COMMAND
from pyspark_mq.spark_source.folders import ID_FOLDER, below
from pyspark_mq.spark_source.options import parse_options
from pyspark_mq.spark_source.stream_options import is_stream, parse_stream_options

__all__ = ["main"]

_BODY_SHOWN = 200


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command with these arguments (by default those of the process), and return its exit code."""
    setattr(threading.current_thread(), COMMAND, True)
    given = _parsed(arguments)
    try:
        _resolve_places(given)
        code: int = given.command(given) or 0
    except OptionError as wrong:
        print(f"pyspark-mq: {wrong}", file=sys.stderr)
        return 2
    except MqError as failed:
        print(f"pyspark-mq: {failed}", file=sys.stderr)
        return 1
    return code


def _parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the arguments. Options of the source (NAME=VALUE) may also follow other arguments, unlike in argparse."""
    parser = _parser()
    given, rest = parser.parse_known_args(arguments)
    if rest and (not hasattr(given, "options") or any(word.startswith("-") for word in rest)):
        parser.error(f"unrecognized arguments: {' '.join(word.partition('=')[0] for word in rest)}")
    if rest:
        given.options += rest
    return given


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="pyspark-mq", description="Inspect checkpoints and queues of the Spark source 'mq'."
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    one = commands.add_parser("inspect", help="show a checkpoint, and what a restart would wait for")
    one.add_argument("checkpoint", help="the checkpointLocation: a path, or a URI such as s3://bucket/folder")
    one.add_argument("--ids", action="store_true", help="list all message IDs")
    _add_sink(one)
    _add_id_log(one)
    one.add_argument("--json", action="store_true", help="print JSON for machines")
    one.set_defaults(command=_inspect)

    one = commands.add_parser(
        "peek", help="show a queue's next messages and return them (quorum queues and Artemis count it as a delivery)"
    )
    _add_options(one)
    one.add_argument("-n", "--messages", type=_count, default=10, help="how many messages of each queue (10)")
    one.add_argument("--json", action="store_true", help="print a line of JSON for each message")
    one.set_defaults(command=_peek)

    one = commands.add_parser(
        "release", help="let a query's next start continue without planned messages that are not redelivered"
    )
    one.add_argument("checkpoint", help="the checkpointLocation; no query may run with it")
    _add_options(one)
    _add_id_log(one)
    one.add_argument("--yes", action="store_true", help="do not ask")
    one.set_defaults(command=_release)

    one = commands.add_parser("repair", help="repair a checkpoint on local disk after a power loss")
    one.add_argument("checkpoint", help="the checkpointLocation; no query may run with it")
    one.add_argument(
        "--sink", metavar="FOLDER", required=True,
        help="a file sink's folder, from which the files of a batch to rerun are removed; 'none' for other sinks",
    )  # fmt: skip
    _add_id_log(one)
    one.add_argument("--yes", action="store_true", help="do not ask")
    one.set_defaults(command=_repair)

    one = commands.add_parser(
        "doctor", help="check this machine, the broker and the queue for a query that acknowledges late"
    )
    _add_options(one)
    one.add_argument(
        "-n", "--messages", type=_count_or_none, default=20, help="how many messages to examine in each queue (20)"
    )
    one.add_argument("--write", action="store_true", help="the options are for a write: check that the user may write")
    _add_sink(one)
    one.add_argument("--json", action="store_true", help="print JSON for machines")
    one.set_defaults(command=_doctor)
    return parser


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "options", nargs="*", metavar="NAME=VALUE", help="options of the source: broker=… url=… queue=…"
    )
    parser.add_argument("--from", dest="file", metavar="FILE", help="a JSON file with options of the source")
    parser.add_argument(
        "--wait", type=float, default=3.0, metavar="SECONDS", help="longest wait for the next message (3)"
    )


def _add_sink(parser: argparse.ArgumentParser) -> None:
    text = "a file sink or Delta table to compare with the checkpoint"
    parser.add_argument("--sink", metavar="FOLDER", help=text)


def _add_id_log(parser: argparse.ArgumentParser) -> None:
    text = "folder with the files of option 'idLog', if they were moved or the option's URI has credentials"
    parser.add_argument("--id-log", metavar="FOLDER", help=text)


def _count(text: str) -> int:
    number = int(text)
    if not 1 <= number <= 100_000:
        raise argparse.ArgumentTypeError("from 1 to 100000")
    return number


def _count_or_none(text: str) -> int:
    return 0 if text == "0" else _count(text)


def _resolve_places(given: argparse.Namespace) -> None:
    """Interpret the folders among the arguments as Spark does, so that the command accepts a query's folders."""
    for name, argument in (("checkpoint", "CHECKPOINT"), ("sink", "--sink"), ("id_log", "--id-log")):
        text = getattr(given, name, None)
        if text is not None:
            setattr(given, name, place_of(text, argument))


def _inspect(given: argparse.Namespace) -> None:
    described = report(read_checkpoint(given.checkpoint, given.id_log), ids=given.ids)
    sinks = check_sink(given.checkpoint, given.sink)
    if given.json:
        _say_json(described | ({"sink": as_json(sinks)} if sinks else {}), indent=2)
    else:
        _say(*written(described), *(line for sink in sinks for line in ("", *written_section(sink))))


def _peek(given: argparse.Namespace) -> None:
    rows = peek(parse_options(_options_of_queues(given)).settings, given.messages, given.wait)
    for row in rows:
        if given.json:
            _say_json(_plain(row))
        else:
            _say(*_lines(row))
    if not given.json:
        _say(f"{len(rows)} message(s), returned")


def _release(given: argparse.Namespace) -> None:
    given_options = _options_of_queues(given)
    options = parse_options(given_options) if given_options else None
    place = None if options is None else options.id_log
    checkpoint = read_checkpoint(given.checkpoint, given.id_log or place)
    for one in open_epochs(checkpoint):
        found = None if options is None else seek(one, options.settings, given.wait)
        _say(*describe(one, found))
        if one.position.released:
            continue
        if given.yes or _agreed("Let the next start continue without messages that do not return?"):
            _say(f"released; the checkpoint's {mark(given.checkpoint, one, found)} records the previous state")
        else:
            _say("nothing was changed")


def _repair(given: argparse.Namespace) -> None:
    sink = None if given.sink == "none" else given.sink
    found = find_damage(given.checkpoint, sink, given.id_log or below(given.checkpoint, ID_FOLDER))
    _say(*(map(str, found.damages) if found.damages else ["nothing to remove"]))
    if not found.damages or given.yes or _agreed("Remove these files?"):
        found.carry_out()
        _say("you can start the query" if found.damages else "you can start the query as it is")
    else:
        _say("nothing was changed")


def _agreed(question: str) -> bool:
    if not sys.stdin.isatty():
        raise OptionError("--yes", "is required without a terminal")
    try:
        return input(f"{question} No query may be running. [y/N] ").strip().lower() in {"y", "yes"}
    except (EOFError, KeyboardInterrupt):
        _say("")
        return False


def _doctor(given: argparse.Namespace) -> int:
    sections = []
    options = _options(given)
    checkpoint = {name.lower(): value for name, value in options.items()}.get("checkpointlocation")
    sinks = check_sink(checkpoint and place_of(checkpoint, "checkpointLocation"), given.sink)
    if given.write:
        looks = examine_write(options)
    elif is_stream(options):
        looks = examine_streams(parse_stream_options(options).streaming, given.messages, given.wait)
    else:
        looks = examine(parse_options(options), given.messages, given.wait)
    for section in chain(sinks, looks):
        sections.append(section)
        if not given.json:
            # Print each section as soon as it is complete, because a broker that does not answer takes
            # `connectTimeout`.
            _say(*written_section(section))
    if given.json:
        _say_json(as_json(sections), indent=2)
    else:
        _say(summary(sections))
    return int(worst(sections) is Level.PROBLEM)


def _options_of_queues(given: argparse.Namespace) -> dict[str, str]:
    """Return the source's options among the arguments of a command that does not support streams.

    Raises:
        OptionError: the options name a stream.
    """
    options = _options(given)
    if is_stream(options):
        advice = 'read it with spark.read.format("mq"), as often as you like'
        raise OptionError("url", f"names a stream, which this command does not support; {advice}")
    return options


def _options(given: argparse.Namespace) -> dict[str, str]:
    options: dict[str, str] = {}
    if given.file is not None:
        try:
            with open(given.file, encoding="utf-8") as file:
                found = json.load(file)
        except (OSError, ValueError) as failed:
            raise OptionError("--from", f"{given.file!r} cannot be read: {failed}") from None
        if not isinstance(found, dict):
            raise OptionError("--from", f"{given.file!r} is not a JSON object of options")
        options |= {str(name): str(value) for name, value in found.items()}
    for text in given.options:
        name, is_one, value = text.partition("=")
        if not is_one:
            raise OptionError(text.partition("://")[0], "is not of the form NAME=VALUE")
        options[name] = value
    return options


def _say(*lines: str) -> None:
    """Print lines for people, and escape unprintable characters, which may come from producers and brokers."""
    print(*map(shown, lines), sep="\n", flush=True)


def _say_json(value: object, indent: int | None = None) -> None:
    """Print a value for machines. JSON escapes every control character except DEL."""
    print(json.dumps(value, indent=indent).replace("\x7f", "\\u007f"))


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of the row in which bytes and times are text, so that it can be printed as JSON."""
    try:
        body = row["body"].decode("utf-8")
    except UnicodeDecodeError:
        body = {"hex": row["body"].hex()}
    times = {name: _moment(row[name]) for name in ("timestamp", "expiration") if row[name] is not None}
    return {**row, "body": body, **times}


def _moment(since_1970_us: int) -> str:
    try:
        return datetime.fromtimestamp(since_1970_us / 1e6, timezone.utc).isoformat()
    except (OverflowError, ValueError):
        return f"{since_1970_us} microseconds since 1970"


def _lines(row: dict[str, Any]) -> list[str]:
    plain = _plain(row)
    body = plain.pop("body")
    text = body if isinstance(body, str) else f"0x{body['hex']}"
    shown = text if len(text) <= _BODY_SHOWN else f"{text[:_BODY_SHOWN]}... ({len(row['body']):,} bytes)"
    lines = [f"{name}: {value}" for name, value in plain.items() if value not in (None, {}) and name != "messageId"]
    return [f"{plain['messageId']}", *(f"  {line}" for line in lines), f"  body: {shown!r}"]
