"""Receivers in processes of their own (option `receivers`), for drivers with cores to spare.

One Python process takes in messages on one core, whatever it has threads for. With `receivers=N` the connections
of a query are dealt to N child processes. Each has a :class:`.ThreadWorker` with its keepers, as the source's process
has without children, and its blocks come over in shared memory. One process, the source's own, still decides about
every message: there is one ledger, and it sees sessions, handles and deliveries as it does without children.

The parts:

* :mod:`.wire`: what parent and child say to each other, over a Unix socket and in memory that both see;
* :mod:`.child`: the child's side;
* :mod:`.worker`: the parent's side.

What must hold, and why it does:

**Order** (rules 6 and 10). All that a child says goes through one socket, from one thread, in the order that
:mod:`pyspark_mq.sources.connections.thread_worker` keeps. Numbers of sessions are unique over all children, and a
request for one that has ended is dropped.

**Nothing is in flight unseen.** The child's progress mark counts, and not the clock. From its start until it has said
something there is no progress.

**Memory.** A block lives as long as one of its rows is referred to. Where most of what came together was dropped, what
is kept is copied, so what is dropped takes no room for long.

**Ends.** A child ends with its parent: the kernel closes the socket, and it watches its parent besides. Shared
memory has no name, so nothing is left behind whoever is killed. A child that dies is the end of its sessions, and
another one is started after a rest. One that says nothing for as long as a dead connection may go unnoticed is killed.

The child is a fresh interpreter: the source process has threads, and belongs to Spark's daemon, so a fork would copy
locks that nobody opens. Options, with the password, go over the socket: command lines and environments can be read.
"""
