"""Three private RabbitMQ nodes with quorum queues.

The nodes share an epmd and a cookie of their own, and come together by `classic_config`.

A partition is one of Erlang's distribution, over which everything between nodes goes: the log of the quorum queues,
elections, mnesia. Each side is given another cookie for the nodes of the other side and ends its connections to them,
so neither can connect again until the cookies are right. To the nodes, those of the other side are gone, while all of
them go on listening to clients. Rejected: network namespaces and firewall rules, which need root and change the machine
for others; a proxy between the nodes, as they learn each other's ports from epmd and would go around it. What this
does not have is a connection that hangs without an end; that is what freezing a node is for.

`cluster_partition_handling` is `pause_minority`: a node that sees less than half of the others closes its connections
and waits. What is in a quorum queue is decided by Raft in any case. But which queues there are is in mnesia (until
RabbitMQ 4), which does not merge by itself after a partition: with `ignore` somebody has to restart one side then.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress

from pyspark_mq.brokers.base import AMQP_0_9_1, AMQP_1_0, STOMP
from testbed.brokers.node import FROZEN_S, QueueCounts
from testbed.brokers.rabbitmq import RabbitNode
from testbed.clusters.cluster import Cluster, Fault
from testbed.process import NodeError, poll
from testbed.server import at_once

__all__ = ["DISCONNECTED_MS", "RabbitCluster"]

_NODES = 3
CUT_OFF_S = 15.0
_AWAY_S = 5.0
#: What its queues have for `consumer-disconnected-timeout`, from 4.3 on.
DISCONNECTED_MS = 10_000
_TOGETHER_TIMEOUT_S = 60.0
#: Within which a queue is told a second time that a node is gone, if it is: below DISCONNECTED_MS.
_TOLD_TWICE_S = 2.0
#: Two that were killed wait for each other, and for a third that is pausing.
_START_TIMEOUT_S = 120.0

_NODE_NAME = re.compile(r"'?(mq-[0-9a-f]+@localhost)'?")
_LEADER = """
case rabbit_amqqueue:lookup(rabbit_misc:r(<<"/">>, queue, <<"{queue}">>)) of
  {{ok, Queue}} ->
    case ra:members(amqqueue:get_pid(Queue), 2000) of
      {{ok, _, {{_, Leader}}}} -> Leader;
      Other -> Other
    end;
  Other -> Other
end
"""
#: All members answer, and have taken in what the leader has. Nothing else says that the next may be taken away.
_IN_STEP = """
Members = rabbit_quorum_queue:status(<<"/">>, <<"{queue}">>),
Indexes = [proplists:get_value(<<"Commit Index">>, Member) || Member <- Members],
States = [proplists:get_value(<<"Raft State">>, Member) || Member <- Members],
length([State || State <- States, State =:= follower]) =:= {nodes} - 1
  andalso lists:all(fun erlang:is_integer/1, Indexes)
  andalso lists:max(Indexes) - lists:min(Indexes) < 1000
"""

#: The records of a quorum queue's consumers: their name first, then `cfg` and `status`; the one map in them is
#: `checked_out` (`rabbit_fifo.hrl` of 4.3).
_CONSUMERS = """
{{ok, Queue}} = rabbit_amqqueue:lookup(rabbit_misc:r(<<"/">>, queue, <<"{queue}">>)),
{{Name, _}} = amqqueue:get_pid(Queue),
{{ok, {{_, State}}, _}} = ra:local_query({{Name, node()}}, fun(It) -> It end),
Consumers = [One || Map <- tuple_to_list(State), is_map(Map), One <- maps:values(Map),
             is_tuple(One), element(1, One) =:= consumer],
"""
_STATUSES = f"{_CONSUMERS} [element(3, One) || One <- Consumers]"
#: Those that hold messages and whose end it was told of twice, so that it waits for nothing.
_STRANDED = f"""{_CONSUMERS}
length([One || One <- Consumers, element(3, One) =:= suspected_down,
        Held <- tuple_to_list(One), is_map(Held), maps:size(Held) > 0])
"""
#: The end of every consumer on a node, once more.
_LOSE_AGAIN = f"""{_CONSUMERS}
Pids = lists:usort([Pid || One <- Consumers, Pid <- tuple_to_list(element(2, One)),
                    is_pid(Pid), node(Pid) =:= '{{node}}']),
[ra:process_command({{{{Name, node()}}}}, {{{{down, Pid, noconnection}}}}) || Pid <- Pids]
"""
_MOVE_LEADER = """
{{ok, Queue}} = rabbit_amqqueue:lookup(rabbit_misc:r(<<"/">>, queue, <<"{queue}">>)),
rabbit_quorum_queue:transfer_leadership(Queue, '{node}')
"""


class _Member(RabbitNode):
    """A node of a cluster; epmd and cookie are the cluster's."""

    def __init__(self, epmd_port: int, cookie: str, heartbeat_s: int, version: str, plugins: Sequence[str]) -> None:
        super().__init__(
            version=version,
            plugins=("rabbitmq_stomp", "rabbitmq_amqp1_0", *plugins),
            config={"heartbeat": heartbeat_s, "cluster_partition_handling": "pause_minority"},
            start_timeout_s=_START_TIMEOUT_S,
        )
        self._epmd_port = epmd_port
        self._home.mkdir()
        file = self._home / ".erlang.cookie"
        file.write_text(cookie, "ascii")
        file.chmod(0o400)

    @property
    def name(self) -> str:
        """In Erlang's distribution."""
        return self._name

    def join(self, names: Sequence[str]) -> None:
        """To be a cluster with these when it starts with no data."""
        self._config |= {"cluster_formation.peer_discovery_backend": "classic_config"}
        self._config |= {f"cluster_formation.classic_config.nodes.{at}": name for at, name in enumerate(names, 1)}

    def _start_epmd(self) -> None:
        """It is there."""


class _Names(RabbitNode):
    """The epmd of a cluster, which is as a node's own; the node is never started."""

    def open(self) -> int:
        """Start it; its port."""
        self._start_epmd()
        return self._epmd_port


class RabbitCluster(Cluster):
    """Three nodes; its queues are quorum queues with a member on each.

    Args:
        heartbeat_s: that the broker asks of clients; over AMQP 1.0 the only one there is.
        version: of the broker, as of :class:`RabbitNode`.
        plugins: besides those of the protocols.
    """

    broker = "rabbitmq"
    title = "RabbitMQ, three nodes, quorum queue"
    protocols = (AMQP_0_9_1, STOMP, AMQP_1_0)

    def __init__(self, heartbeat_s: int = 2, version: str = "", plugins: Sequence[str] = ()) -> None:
        """Nothing is started yet but epmd.

        Raises:
            NodeError: RabbitMQ is not installed.
        """
        with ExitStack() as made:
            self._names = _Names(version=version)
            made.callback(self._names.close)
            port = self._names.open()
            self._cookie = secrets.token_hex(16)
            self.members: list[_Member] = []
            for _ in range(_NODES):
                member = _Member(port, self._cookie, heartbeat_s, version, plugins)
                made.callback(member.close)
                self.members.append(member)
            made.pop_all()
        for member in self.members:
            member.join([one.name for one in self.members])
        super().__init__(self.members)
        self._turn = 0
        #: Before 4.3 nodes that are cut off pause; from then on all that has to agree does so by Raft.
        self.pauses_minority = self.members[0].version.split(".")[:2] < ["4", "3"]

    # -- as any cluster

    def start(self) -> None:
        first, *others = self.members
        if self.pauses_minority:
            first.start()
            at_once(*(member.start for member in others))
        else:
            # Which of them is the seed is decided by their names, and the others wait for it (`rabbit_peer_discovery`).
            at_once(*(member.start for member in self.members))
        self.wait_together()

    def declare(self, queue: str) -> None:
        arguments = {"x-quorum-initial-group-size": _NODES}
        if not self.pauses_minority:
            # By default a minute, which each kill of a node would take.
            arguments["x-consumer-disconnected-timeout"] = DISCONNECTED_MS

        def declared() -> bool:
            # While the nodes come together again their metadata may have no leader.
            with suppress(NodeError):
                self.members[0].declare(queue, quorum=True, arguments=arguments)
                return True
            return False

        if not poll(declared, _TOGETHER_TIMEOUT_S, interval_s=1.0):
            self.members[0].declare(queue, quorum=True, arguments=arguments)
        self.wait_in_step(queue)

    def counts(self, queue: str) -> QueueCounts:
        self.wait_together()
        return super().counts(queue)

    def close(self) -> None:
        with ExitStack() as stack:
            stack.callback(self._names.close)
            stack.callback(super().close)

    # -- what is there

    def running_nodes(self, member: _Member) -> set[str]:
        """The nodes that RabbitMQ runs on, as one of them sees it."""
        with suppress(NodeError):
            return set(_NODE_NAME.findall(member.eval("rabbit_nodes:all_running()")))
        return set()

    def wait_together(self) -> None:
        """Until all nodes see all nodes.

        Raises:
            NodeError: they do not.
        """
        everybody = {member.name for member in self.members}
        if not poll(
            lambda: all(self.running_nodes(member) == everybody for member in self.members),
            _TOGETHER_TIMEOUT_S,
            interval_s=0.2,
        ):
            tails = "\n".join(member.log_tail(20) for member in self.members)
            raise NodeError(f"the nodes of RabbitMQ did not come together; the ends of their logs:\n{tails}")

    def wait_in_step(self, queue: str) -> None:
        """Until the queue has a member that follows its leader on each node.

        Raises:
            NodeError: it has not.
        """
        expression = _IN_STEP.format(queue=queue, nodes=_NODES)

        def in_step() -> bool:
            with suppress(NodeError):
                return self.members[0].eval(expression) == "true"
            return False

        if not poll(in_step, _TOGETHER_TIMEOUT_S, interval_s=0.2):
            raise NodeError(f"the members of queue {queue!r} do not follow its leader")

    def leader(self, queue: str) -> int:
        """Number of the node that has the leader of a queue.

        Raises:
            NodeError: there is none.
        """
        names = [member.name for member in self.members]
        found: list[int] = []

        def find() -> bool:
            for member in self.members:
                if member.running:
                    with suppress(NodeError):
                        told = _NODE_NAME.fullmatch(member.eval(_LEADER.format(queue=queue)))
                        if told is not None and told[1] in names:
                            found.append(names.index(told[1]))
                            return True
            return False

        if not poll(find, _TOGETHER_TIMEOUT_S, interval_s=0.2):
            raise NodeError(f"queue {queue!r} has no leader")
        return found[0]

    def follower(self, queue: str) -> int:
        """Number of a node that has none of a queue's leader, each time another."""
        self._turn += 1
        leader = self.leader(queue)
        return (leader + 1 + self._turn % (_NODES - 1)) % _NODES

    def stranded(self, queue: str) -> int:
        """Consumers of lost nodes whose messages a quorum queue keeps without waiting for anything (4.3).

        Told twice that a node is gone, which depends on who answers first after an election, it forgets that
        `consumer-disconnected-timeout` is to end that. Its messages come back when another member leads, or after
        `consumer_timeout`; that the node comes back changes nothing.
        """
        if self.pauses_minority:
            return 0
        with suppress(NodeError):
            return int(self.members[self.leader(queue)].eval(_STRANDED.format(queue=queue)))
        return 0

    def unstrand(self, queue: str) -> bool:
        if not self.stranded(queue):
            return False
        self.move_leader(queue)
        return True

    # -- what is done to it

    def strand(self, queue: str, lost: int) -> None:
        """Have a quorum queue told a second time that a node is gone, before it gives up what that had.

        Raises:
            NodeError: it knows of nobody there, or does not strand what they hold.
        """
        leader = self.members[self.leader(queue)]
        if not poll(lambda: "suspected_down" in leader.eval(_STATUSES.format(queue=queue)), _TOGETHER_TIMEOUT_S):
            raise NodeError(f"queue {queue!r} does not notice that node {lost} is gone")
        time.sleep(_TOLD_TWICE_S)
        # A third time would undo it.
        if not self.stranded(queue):
            leader.eval(_LOSE_AGAIN.format(queue=queue, node=self.members[lost].name))
        if not self.stranded(queue):
            raise NodeError(f"queue {queue!r} strands nothing")

    def move_leader(self, queue: str) -> None:
        """Have another node that runs lead a quorum queue.

        Raises:
            NodeError: none does.
        """
        leader = self.leader(queue)
        to = next(number for number, member in enumerate(self.members) if member.running and number != leader)

        def moved() -> bool:
            if self.leader(queue) != leader:
                return True
            # Refused for as long as the other is behind.
            self.members[leader].eval(_MOVE_LEADER.format(queue=queue, node=self.members[to].name))
            return False

        if not poll(moved, _TOGETHER_TIMEOUT_S, interval_s=1.0):
            raise NodeError(f"queue {queue!r} is still led by {self.members[leader].name}")

    def kill(self, *numbers: int) -> None:
        """``kill -9``."""
        for number in numbers:
            self.members[number].kill()

    def bring_back(self, *numbers: int) -> None:
        """Start nodes that were killed or stopped, at once: they may need each other."""
        at_once(*(self.members[number].start for number in numbers))
        self.wait_together()

    def partition(self, *sides: Sequence[int]) -> None:
        """Cut the nodes of each side from those of the others, and wait until each has noticed, a minority by pausing.

        Nodes that find each other again while they are just about to pause may not come together (RabbitMQ 3.10).
        From 4.3 on none pauses: a minority goes on to listen to clients and can do nothing for them.

        Raises:
            NodeError: they do not notice.
        """
        for side in sides:
            others = [self.members[number].name for one in sides if one is not side for number in one]
            for number in side:
                # Not the same wrong one on both ends, or they would agree.
                self._set_cookies(number, others, secrets.token_hex(16))

        def noticed(number: int, side: Sequence[int]) -> bool:
            if self.pauses_minority:
                return 2 * len(side) > _NODES or _pauses(self.members[number])
            return self.running_nodes(self.members[number]) == {self.members[one].name for one in side}

        everybody = [(number, side) for side in sides for number in side]
        if not poll(lambda: all(noticed(*one) for one in everybody), _TOGETHER_TIMEOUT_S, interval_s=0.2):
            raise NodeError("the nodes of RabbitMQ that were cut off do not notice")

    def heal(self) -> None:
        """Let all nodes connect again, and wait until they have."""
        everybody = [member.name for member in self.members]
        for number, member in enumerate(self.members):
            self._set_cookies(number, [name for name in everybody if name != member.name], self._cookie)
        self.wait_together()

    def _set_cookies(self, number: int, names: Sequence[str], cookie: str) -> None:
        wrong = cookie != self._cookie
        said = [f"erlang:set_cookie('{name}', '{cookie}')" for name in names]
        said += [f"erlang:disconnect_node('{name}')" for name in names if wrong]
        said += [f"net_adm:ping('{name}')" for name in names if not wrong]
        self.members[number].eval(", ".join(said))

    def restart_in_turn(self, queue: str) -> None:
        """An orderly restart of one after the other, as for an upgrade."""
        for member in self.members:
            member.restart()
            self.wait_together()
            self.wait_in_step(queue)

    def faults(self, queue: str) -> dict[str, Fault]:
        def whole() -> bool:
            self.wait_together()
            self.wait_in_step(queue)
            self.unstrand(queue)
            return True

        def killed(*numbers: int) -> bool:
            self.kill(*numbers)
            time.sleep(_AWAY_S)
            self.bring_back(*numbers)
            return whole()

        def frozen(number: int) -> bool:
            self.members[number].freeze(FROZEN_S)
            return whole()

        def cut(*sides: Sequence[int]) -> bool:
            self.partition(*sides)
            time.sleep(CUT_OFF_S)
            self.heal()
            return whole()

        def others(number: int) -> list[int]:
            return [one for one in range(_NODES) if one != number]

        def two() -> bool:
            leader = self.leader(queue)
            return killed(leader, others(leader)[0])

        def alone(number: int) -> bool:
            return cut([number], others(number))

        def rolling() -> bool:
            self.restart_in_turn(queue)
            return True

        return {
            "kill -9 of the leader, start": lambda: killed(self.leader(queue)),
            "partition, the leader alone": lambda: alone(self.leader(queue)),
            "SIGSTOP of the leader, SIGCONT": lambda: frozen(self.leader(queue)),
            "kill -9 of a follower, start": lambda: killed(self.follower(queue)),
            "kill -9 of two of three, start": two,
            "SIGSTOP of a follower, SIGCONT": lambda: frozen(self.follower(queue)),
            "partition, a follower alone": lambda: alone(self.follower(queue)),
            "rolling restart": rolling,
            "partition, each alone": lambda: cut([0], [1], [2]),
        }


def _pauses(member: _Member) -> bool:
    with suppress(NodeError):
        return member.eval("rabbit:is_running()") == "false"
    return False
