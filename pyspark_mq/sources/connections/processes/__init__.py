"""Receivers in processes of their own (option `receivers`), for drivers with cores to spare.

One Python process takes in messages on one core, whatever it has threads for. With `receivers=N` the connections
of a query are dealt to N child processes. Each runs the ordinary :class:`.Receiver` with
its consumers, turns what they receive into columns, and hands those over in shared memory. One process, the source's
own, still decides about every message: there is one ledger, and it sees sessions, letters and deliveries as it does
without children.

The parts:

* :mod:`.chunk`: deliveries as columns, and a decoder that takes them apart;
* :mod:`.messages`, :mod:`.channel`: what parent and child say to each other, over a Unix socket;
* :mod:`.child`: the child's side;
* :mod:`.pool`: the parent's side: one pool for a query, however many queues it reads.

What must hold, and why it does:

**Order** (rules 6 and 10). All that a child says goes through one socket, from one thread. Before a confirmation it
hands over what its session had received by then; behind the end of a session it hands over nothing of it.
A request names its session by the child's number and is dropped when that one has ended.

**Nothing is in flight unseen.** The horizon concludes from time and room that what was ready has come. A child may be
slow, or stopped. So its word counts, not the clock: every tenth of a second it says up to when everything that
came has been handed over, and the horizon's time does not go beyond that. A child that finds that it stood still
for longer than the horizon allows a delivery to take says so, and the horizon begins anew.

**Bytes.** The child's consumer counts what arrived, and learns from the parent what was taken out of the parent's
inbox. The difference is what pauses it: what waits in the child, what is being turned into columns, what is on its
way and what waits in the parent, together.

**Memory.** A chunk lives as long as one of its rows is referred to. Where most of what came together was dropped, the
intake has what is kept copied, so what is dropped takes no room for long.

**Ends.** A child ends with its parent: the kernel closes the socket, and it watches its parent besides. Shared
memory has no name, so nothing is left behind whoever is killed. A child that dies is the end of its sessions, and
another one is started after a rest. One that says nothing for as long as a dead connection may go unnoticed is killed.

The child is a fresh interpreter: the source process has threads, and belongs to Spark's daemon, so a fork would copy
locks that nobody opens. Options, with the password, go over the socket: command lines and environments can be read.
"""
