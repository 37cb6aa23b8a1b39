------------------------- MODULE LateAcknowledgement -------------------------
(* Exactly-once from a queue that forgets what is acknowledged.

   A broker hands messages out and deletes them once they are acknowledged. Spark reads in batches, and after a crash it
   wants the same batch again. Between them a source plans batches ("epochs"), writes the IDs of their messages into
   Spark's offsets, and acknowledges an epoch once Spark has committed it. Three parties act here: the broker, the
   source, Spark; each may crash, and connections may end, seen by one side or by both.

   "Rule 5" is docs/how-it-works.md#rule-5. Each may be left out, by naming it in Broken; then a property of the
   module Properties fails. What is not modelled is in docs/specification.md. *)
EXTENDS Naturals, Sequences, FiniteSets

CONSTANTS
  Copies,     \* deliverable messages, <<queue, ID, n>>: a producer may send a message more than once
  Slots,      \* connections of the source, <<queue, n>>
  Odd,        \* copies that cannot be decoded
  Shows,      \* Spark shows the committed offset when it plans: from 4.2 on
  Mode,       \* "stream", or runs that end: "available" (Trigger.AvailableNow), "once" (Trigger.Once)
  Faults,     \* kind of fault -> how often it may happen
  Window,     \* messages that a session may be handed, unacknowledged
  Room,       \* messages that the source keeps at most
  EpochMax,   \* messages of an epoch, at most
  Limit,      \* deliveries that come back until the broker puts a message aside; 0 for no limit
  GivesUp,    \* option failOnDataLoss is false
  Broken,     \* rules and safeguards that are left out
  Ready, Ghost, Acked, Away, Dead, None

Id(c)  == <<c[1], c[2]>>                \* identity is the queue and the ID
Ids    == {Id(c) : c \in Copies}
Queues == {c[1] : c \in Copies}
Keep(rule) == rule \notin Broken

VARIABLES
  \* the broker
  at,         \* copy -> Ready; the session that holds it; Ghost, held by one whose end the broker has not noticed;
              \* Acked; Away, with another consumer; Dead, put aside
  recent,     \* acknowledged copies that the broker forgets if it is killed now
  counted,    \* copy -> deliveries that came back
  \* connections
  open,       \* sessions that live as the source knows
  alive,      \* ... as the broker knows
  handles,    \* session -> copies that the source may acknowledge there
  acks,       \* session -> copies whose acknowledgement is on its way
  \* the source: gone in a crash
  taking,     \* deliveries may be taken
  adopted,    \* Spark has shown what is committed
  mem,        \* ID -> what the source knows of it, see States
  buffer,     \* queue -> IDs received and not planned, in order
  next,       \* planned before the open epoch was shown (Spark 4.0, bounded run)
  \* Spark
  pc,         \* where the query stands, see Phases
  start,      \* offset of the last committed batch
  end,        \* offset of the batch in the offset log that is not committed
  sink,       \* what the sink has of that batch
  output,     \* ID -> how often it is in the output
  \* faults
  still,      \* the process stands still
  left,       \* faults that may still happen
  note        \* what the source counts in this step

broker == <<at, recent, counted>>
links  == <<open, alive, handles, acks>>
source == <<taking, adopted, mem, buffer, next>>
spark  == <<pc, start, end, sink, output>>
vars   == <<broker, links, source, spark, still, left, note>>
Seen   == <<broker, links, source, spark, still, left>>   \* all but the note: a state for TLC

States == {"unseen", "received",
           "awaited",    \* planned by a former process, and not handed out again yet
           "planned",
           "sent",       \* committed; acknowledged, unconfirmed
           "confirmed",  \* committed; the broker took that, and may forget it for a moment
           "carried",    \* committed; a session ended before that was known: it may come again
           "settled"}    \* it cannot come again, but is remembered
Carries == {"sent", "confirmed", "carried"}    \* what an offset repeats
Phases == {"down", "idle", "gather",
           "logged",     \* in the offset log, planned by this process
           "open",       \* in the offset log, planned by a former one
           "run", "sunk", "over"}

Range(f)    == {f[x] : x \in DOMAIN f}
Planned(p)  == UNION {Range(p.planned[q]) : q \in Queues}
Empty       == [q \in Queues |-> <<>>]
Offset(planned, carried, blind) ==
  [planned |-> planned, carried |-> carried, blind |-> blind, gaveUp |-> {}, released |-> FALSE]
Up          == pc # "down" /\ ~still
SlotsOf(q)  == {s \in Slots : s[1] = q}
Connected(q) == SlotsOf(q) \subseteq open
Held(s)     == {c \in Copies : at[c] = s}
Committed(i) == output[i] > 0 /\ ~(sink # None /\ \E q \in Queues : i \in Range(sink[q]))
May(fault)  == left[fault] > 0
Spend(fault) == left' = [left EXCEPT ![fault] = @ - 1]
Without(ids) == [q \in Queues |-> SelectSeq(buffer[q], LAMBDA i : i \notin ids)]

Init ==
  /\ at = [c \in Copies |-> Ready] /\ recent = {} /\ counted = [c \in Copies |-> 0]
  /\ open = {} /\ alive = {} /\ handles = [s \in Slots |-> {}] /\ acks = [s \in Slots |-> {}]
  /\ taking = FALSE /\ adopted = FALSE /\ mem = [i \in Ids |-> "unseen"] /\ buffer = Empty /\ next = None
  /\ pc = "down" /\ start = Offset(Empty, {}, FALSE) /\ end = None /\ sink = None /\ output = [i \in Ids |-> 0]
  /\ still = FALSE /\ left = Faults /\ note = ""

-----------------------------------------------------------------------------
(* Acknowledging *)

(* Handles of these messages, session by session. A broker takes a cumulative acknowledgement for all up to it. *)
Due(ids) ==
  LET own(s) == {c \in handles[s] : Id(c) \in ids}
      void   == {i \in ids : \A s \in Slots : \A c \in handles[s] : Id(c) # i}
  IN [s \in Slots |->
       IF \/ ~Keep("3") /\ own(s) # {}                            \* rule 3: nothing beyond the epoch's own
          \/ ~Keep("10") /\ \E i \in void : i[1] = s[1]           \* rule 10: an old handle names another message
       THEN handles[s] ELSE own(s)]

Send(due) ==
  /\ acks'    = [s \in Slots |-> acks[s] \cup due[s]]
  /\ handles' = [s \in Slots |-> handles[s] \ due[s]]

(* What is known of these IDs once they are known as committed. *)
AsCommitted(ids, known) ==
  [i \in Ids |->
    IF i \notin ids THEN known[i]
    ELSE IF \E s \in Slots : \E c \in handles[s] : Id(c) = i THEN "sent"
    ELSE IF known[i] \in {"sent", "confirmed", "settled"} THEN known[i] ELSE "carried"]

(* What an offset says of the time up to its own epoch, and with it. Given up is not committed. *)
CommittedBy(p) == p.carried \cup (Planned(p) \ p.gaveUp)

(* The IDs to settle when Spark shows that the epoch of `start` is committed. *)
Proven ==
  IF ~adopted THEN CommittedBy(start)
  ELSE {i \in Planned(start) :
         IF i \in start.gaveUp THEN ~Keep("given up") /\ mem[i] = "unseen" ELSE mem[i] = "planned"}

-----------------------------------------------------------------------------
(* The broker and the connections *)

Open(s) ==
  /\ Up /\ pc # "over" /\ s \notin open
  /\ open' = open \cup {s} /\ alive' = alive \cup {s} /\ note' = ""
  /\ UNCHANGED <<broker, handles, acks, source, spark, still, left>>

(* rule 17: what is read of a message depends on its bytes alone *)
Reads(s, c) == {Id(c)} \cup (IF Keep("17") THEN {} ELSE {i \in Ids : i[1] = c[1] /\ mem[i] # "unseen"})

(* rule 14: only what is kept takes room *)
Kept == Cardinality({i \in Ids : mem[i] \in {"received", "planned"}
                                   \cup (IF Keep("14") THEN {} ELSE Carries \cup {"settled"})})

(* The source takes a delivery in. *)
Enter(s, c) ==
  \E i \in Reads(s, c) :
    LET held  == \E t \in Slots : \E d \in handles[t] : Id(d) = i
        taken == \/ mem[i] = "unseen"
                 \/ ~Keep("7") /\ held /\ mem[i] \in {"received", "planned"}
                 \/ ~Keep("6") /\ ~held /\ mem[i] \notin {"unseen", "awaited"}
        known == [handles EXCEPT ![s] = @ \cup {c}]
    IN IF taken
       THEN /\ mem' = [mem EXCEPT ![i] = "received"] /\ buffer' = [buffer EXCEPT ![c[1]] = Append(@, i)]
            /\ handles' = known /\ note' = "" /\ UNCHANGED acks
       ELSE IF mem[i] \in {"received", "awaited", "planned"}         \* rule 7: it shares the fate of the first
       THEN /\ mem' = [mem EXCEPT ![i] = IF @ = "awaited" THEN "planned" ELSE @]
            /\ handles' = known /\ note' = "bound" /\ UNCHANGED <<buffer, acks>>
       ELSE /\ IF Keep("4")                                         \* rule 4: a dropped duplicate is acknowledged
               THEN mem' = [mem EXCEPT ![i] = "sent"] /\ acks' = [acks EXCEPT ![s] = @ \cup {c}]
               ELSE UNCHANGED <<mem, acks>>
            /\ note' = IF Keep("8") THEN "dropped" ELSE ""           \* rule 8: nothing is dropped uncounted
            /\ UNCHANGED <<buffer, handles>>

HasRoom == Kept < Room \/ (pc = "run" /\ Keep("14"))

(* The broker hands a copy out. Which comes first is its choice. *)
Deliver(s, c) ==
  /\ Up /\ taking /\ s \in alive /\ s[1] = c[1] /\ at[c] = Ready /\ c \notin Odd
  /\ HasRoom /\ Cardinality(Held(s)) < Window
  /\ at' = [at EXCEPT ![c] = s] /\ Enter(s, c)
  /\ UNCHANGED <<recent, counted, open, alive, taking, adopted, next, spark, still, left>>

(* It was on its way when the broker gave the session up, and another consumer may have been handed it since. *)
DeliverLate(s, c) ==
  /\ Up /\ taking /\ s \in open \ alive /\ s[1] = c[1] /\ at[c] \in {Ready, Ghost, Away}
  /\ c \notin handles[s] \cup acks[s] \cup Odd /\ HasRoom /\ Enter(s, c)
  /\ UNCHANGED <<broker, open, alive, taking, adopted, next, spark, still, left>>

(* The broker takes an acknowledgement; and the source is told, once all for a message were taken. *)
Take(s, c) ==
  /\ s \in alive /\ c \in acks[s]
  /\ acks' = [acks EXCEPT ![s] = @ \ {c}]
  /\ at' = [at EXCEPT ![c] = Acked] /\ recent' = recent \cup {c} /\ note' = ""
  /\ UNCHANGED <<counted, open, alive, handles, source, spark, still, left>>

Confirm(i) ==
  /\ Up /\ mem[i] = "sent" /\ \A s \in Slots : \A c \in acks[s] : Id(c) # i
  /\ mem' = [mem EXCEPT ![i] = IF Keep("grace") THEN "confirmed" ELSE "settled"] /\ note' = ""
  /\ UNCHANGED <<broker, links, taking, adopted, buffer, next, spark, still, left>>

(* A message was handed out, comes back, and the broker counts that. *)
Back(cs) ==
  LET over(c) == Limit > 0 /\ counted[c] + 1 > Limit
  IN /\ at' = [c \in Copies |-> IF c \notin cs THEN at[c] ELSE IF over(c) THEN Dead ELSE Ready]
     /\ counted' = [c \in Copies |-> IF c \in cs /\ Limit > 0 THEN counted[c] + 1 ELSE counted[c]]

(* The broker notices the end of a session, sooner or later, and hands out again in any order.
   rule 11: the receiver ends with its process; one that outlives it keeps what it holds *)
Notice(c) ==
  /\ at[c] = Ghost /\ Keep("11")
  /\ Back({c}) /\ note' = ""
  /\ UNCHANGED <<recent, links, source, spark, still, left>>

(* rule 6: the end of a session is a restart of it. Every handle is void, and what comes again is known by its ID. *)
Lose(ss) ==
  LET kept == [s \in Slots |-> IF s \in ss THEN {} ELSE handles[s]]
      gone == {i \in Ids : mem[i] = "received" /\ \A s \in Slots : \A c \in kept[s] : Id(c) # i}
  IN /\ open' = open \ ss /\ alive' = alive \ ss
     /\ handles' = kept /\ acks' = [s \in Slots |-> IF s \in ss THEN {} ELSE acks[s]]
     /\ mem' = [i \in Ids |-> IF i \in gone THEN "unseen"
                              ELSE IF mem[i] \in {"sent", "confirmed"} /\ \E s \in ss : s[1] = i[1] THEN "carried"
                              ELSE mem[i]]
     /\ buffer' = Without(gone)
     /\ UNCHANGED <<taking, adopted, next>>

(* rule 13: what cannot be decoded is the user's decision (here: reject it), and not the connection's fault *)
DeliverOdd(s, c) ==
  /\ Up /\ taking /\ s \in alive /\ s[1] = c[1] /\ at[c] = Ready /\ c \in Odd
  /\ IF Keep("13")
     THEN at' = [at EXCEPT ![c] = Dead] /\ note' = "rejected" /\ UNCHANGED <<links, source>>
     ELSE at' = [d \in Copies |-> IF at[d] = s \/ d = c THEN Ghost ELSE at[d]] /\ note' = "" /\ Lose({s})
  /\ UNCHANGED <<recent, counted, spark, still, left>>

(* A connection ends, and the source sees it. The broker may see it later, or has seen it before. *)
Cut(s) ==
  /\ Up /\ s \in open
  /\ IF s \in alive THEN May("cut") /\ Spend("cut") ELSE UNCHANGED left
  /\ Lose({s}) /\ note' = ""
  /\ at' = [c \in Copies |-> IF at[c] = s THEN Ghost ELSE at[c]]
  /\ UNCHANGED <<recent, counted, spark, still>>

(* The broker gives a connection up, and the source does not know. *)
Silence(s) ==
  /\ s \in alive /\ May("silence") /\ Spend("silence")
  /\ alive' = alive \ {s} /\ Back(Held(s)) /\ note' = ""
  /\ UNCHANGED <<recent, open, handles, acks, source, spark, still>>

(* The broker is killed: every session ends, which the source sees later. Of the last acknowledgements
   some are forgotten. *)
KillBroker(forgotten) ==
  /\ May("broker") /\ Cardinality(forgotten) <= left["forget"]
  /\ left' = [left EXCEPT !["broker"] = @ - 1, !["forget"] = @ - Cardinality(forgotten)]
  /\ Back({c \in Copies : at[c] \in Slots \cup {Ghost}} \cup forgotten)
  /\ recent' = recent \ forgotten /\ alive' = {} /\ note' = ""
  /\ UNCHANGED <<open, handles, acks, source, spark, still>>

(* Another consumer takes a message that is not in the output, and gives it back. *)
Depart(c) ==
  /\ May("away") /\ Spend("away") /\ at[c] = Ready /\ output[Id(c)] = 0
  /\ at' = [at EXCEPT ![c] = Away] /\ note' = ""
  /\ UNCHANGED <<recent, counted, links, source, spark, still>>

Return(c) ==
  /\ at[c] = Away /\ Back({c}) /\ note' = ""
  /\ UNCHANGED <<recent, links, source, spark, still, left>>

(* rule 12: who holds back does not deliver; that returns nothing. Left out, a held message is returned to make room. *)
HoldBack(s, c) ==
  /\ ~Keep("12") /\ Up /\ s \in alive /\ c \in handles[s] /\ mem[Id(c)] = "received"
  /\ Back({c}) /\ note' = ""
  /\ handles' = [handles EXCEPT ![s] = @ \ {c}]
  /\ mem' = [mem EXCEPT ![Id(c)] = "unseen"] /\ buffer' = Without({Id(c)})
  /\ UNCHANGED <<recent, open, alive, acks, taking, adopted, next, spark, still, left>>

(* The bound of an ID is over: what could come again has come. What a session left open is waited for while the queue is
   connected, what was confirmed in any case. That is all this says of time. It assumes that the broker keeps to a bound
   (docs/guarantees.md). The clock that waits for it, in sources/queues/redelivery.py, is that of one queue, and stands
   still with the process. *)
BoundIsOver(i) == /\ mem[i] = "carried" => Connected(i[1])
                  /\ \A c \in Copies : Id(c) = i => at[c] \notin {Ready, Ghost, Away} \cup Slots
Expire(i) ==
  /\ mem[i] \in {"confirmed", "carried"} /\ pc # "down"
  /\ \/ ~still /\ BoundIsOver(i)
     \/ ~Keep("slow") /\ Up /\ Connected(i[1])                                 \* not awaited if it is slow
     \/ ~Keep("other clock") /\ Up /\ \E q \in Queues \ {i[1]} : Connected(q)  \* another queue's time counts
     \/ ~Keep("18") /\ still                                                   \* rule 18: no time of a broker
  /\ mem' = [mem EXCEPT ![i] = "settled"] /\ recent' = {c \in recent : Id(c) # i} /\ note' = ""
  /\ UNCHANGED <<at, counted, links, taking, adopted, buffer, next, spark, still, left>>

-----------------------------------------------------------------------------
(* Spark and the source, call by call *)

(* A process begins; what is in the offset log and not committed is run first. *)
Start ==
  /\ pc = "down"
  /\ pc' = IF end = None \/ (~Shows /\ Mode # "stream") THEN "idle" ELSE "open"
  /\ note' = "" /\ UNCHANGED <<broker, links, source, start, end, sink, output, still, left>>

(* latestOffset.
   rule 2: that Spark shows `start` proves that it is committed. Before 4.2 it does not show it. *)
Latest ==
  /\ Up /\ pc = "idle" /\ next = None
  /\ pc' = "gather" /\ taking' = TRUE /\ note' = ""
  /\ IF Shows
     THEN /\ adopted' = TRUE
          /\ IF adopted /\ ~Keep("2") THEN UNCHANGED <<acks, handles, mem, buffer>>
             ELSE Send(Due(Proven)) /\ mem' = AsCommitted(Proven, mem) /\ buffer' = Without(Proven)
     ELSE UNCHANGED <<adopted, acks, handles, mem, buffer>>
  /\ UNCHANGED <<broker, open, alive, next, start, end, sink, output, still, left>>

(* Phase one: the oldest of each queue become an epoch, which Spark writes to the offset log. One without messages says
   that something was given up. Before 4.2 it also makes room, as an epoch is settled after the next is planned; and it is
   the first answer of a process: Spark compares that with an offset which the process has not been shown. *)
NeedsEmpty == \/ start.gaveUp # {}
              \/ ~Shows /\ ~adopted
              \/ /\ ~Shows /\ \E i \in Ids : mem[i] = "planned"
                 /\ Kept >= Room \/ \E s \in Slots : Cardinality(Held(s)) >= Window
Plan(sizes) ==
  LET planned == [q \in Queues |-> SubSeq(buffer[q], 1, sizes[q])]
      ids     == UNION {Range(planned[q]) : q \in Queues}
      (* rule 5: what is not confirmed, or was a moment ago, is in the next offset; so is an epoch yet to be settled *)
      carried == {i \in Ids : Keep("5") /\ (mem[i] \in Carries \/ (mem[i] = "planned" /\ end = None))}
      offset  == Offset(planned, carried, ~adopted)
  IN /\ Up /\ pc = "gather"
     /\ Cardinality(ids) <= EpochMax
     /\ ids # {} \/ NeedsEmpty
     /\ mem' = [i \in Ids |-> IF i \in ids THEN "planned" ELSE mem[i]]
     /\ buffer' = [q \in Queues |-> SubSeq(buffer[q], sizes[q] + 1, Len(buffer[q]))]
     /\ IF end = None THEN end' = offset /\ pc' = "logged" /\ UNCHANGED next
        ELSE next' = offset /\ pc' = "open" /\ UNCHANGED end
     /\ IF Keep("1") THEN UNCHANGED <<acks, handles>> ELSE Send(Due(ids))     \* rule 1: not before the commit
     /\ note' = "" /\ UNCHANGED <<broker, open, alive, taking, adopted, start, sink, output, still, left>>

(* Nothing is new; a bounded run ends there, once it was handed what is ready. Before 4.2 a process that has been shown no
   offset must not answer so: Spark makes a batch of the beginning, which carries nothing, nor says that it is blind. *)
Nothing ==
  /\ Up /\ pc = "gather" /\ buffer = Empty
  /\ Shows \/ adopted \/ ~Keep("first answer")
  /\ Mode # "stream" => open = Slots /\ \A c \in Copies : at[c] # Ready
  /\ IF ~Keep("first answer") /\ ~adopted /\ end = None /\ start.carried \cup Planned(start) # {}
     THEN end' = Offset(Empty, {}, FALSE) /\ pc' = "logged"
     ELSE /\ pc' = IF end # None THEN "open" ELSE IF Mode = "stream" THEN "idle" ELSE "over"
          /\ UNCHANGED end
  /\ note' = "" /\ UNCHANGED <<broker, links, source, start, sink, output, still, left>>

LogNext ==
  /\ Up /\ pc = "idle" /\ next # None
  /\ end' = next /\ next' = None /\ pc' = "logged" /\ note' = ""
  /\ UNCHANGED <<broker, links, taking, adopted, mem, buffer, start, sink, output, still, left>>

(* commit(start), then partitions(start, end), of an epoch that was planned here. Before 4.2 `start` is shown only now:
   what it says is committed is taken out of the epoch.
   rule 16: only what Spark has said is committed is settled, whatever else is planned *)
Run ==
  LET ids == Proven \cup (IF Keep("16") THEN {} ELSE {i \in Ids : mem[i] = "planned"})
  IN /\ Up /\ pc = "logged"
     /\ Send(Due(ids)) /\ mem' = AsCommitted(ids, mem) /\ buffer' = Without(ids)
     /\ pc' = "run" /\ adopted' = TRUE /\ note' = ""
     /\ UNCHANGED <<broker, open, alive, taking, next, start, end, sink, output, still, left>>

(* partitions(start, end) of an epoch of a former process: its messages are awaited. Its offset says what may come
   again, unless it was planned blindly; then `start` does. *)
Replay ==
  LET known   == IF adopted THEN {} ELSE IF end.blind THEN CommittedBy(start) ELSE end.carried
      wanted  == Planned(end) \ end.gaveUp
      then    == AsCommitted(known, mem)
  IN /\ Up /\ pc = "open"
     /\ Send(Due(known))
     /\ mem' = [i \in Ids |-> IF i \in wanted /\ then[i] = "unseen" THEN "awaited"
                              ELSE IF i \in wanted /\ then[i] = "received" THEN "planned" ELSE then[i]]
     /\ buffer' = Without(known \cup wanted)
     /\ pc' = "run" /\ adopted' = TRUE /\ taking' = TRUE /\ note' = "replayed"
     /\ UNCHANGED <<broker, open, alive, next, start, end, sink, output, still, left>>

Awaited == {i \in Planned(end) : mem[i] = "awaited"}

(* 'pyspark-mq release', for one epoch, while no query runs *)
Release ==
  /\ pc = "down" /\ end # None /\ May("release") /\ Spend("release")
  /\ end' = [end EXCEPT !.released = TRUE] /\ note' = ""
  /\ UNCHANGED <<broker, links, source, pc, start, sink, output, still>>

(* rule 15: what is given up is written down before anything of its epoch is emitted. If the sink has the batch, it has
   these messages, and has them twice if they come back (docs/guarantees.md): that is left out here. *)
GiveUp ==
  /\ Up /\ pc = "run" /\ Awaited # {} /\ sink = None
  /\ GivesUp \/ end.released
  /\ \A i \in Awaited : Connected(i[1])
  /\ end' = [end EXCEPT !.gaveUp = IF Keep("15") THEN @ \cup Awaited ELSE @]
  /\ mem' = [i \in Ids |-> IF i \in Awaited THEN "unseen" ELSE mem[i]] /\ note' = "lost"
  /\ UNCHANGED <<broker, links, taking, adopted, buffer, next, pc, start, sink, output, still, left>>

(* The batch goes to the sink, which skips one that it has. An epoch that was planned blindly does not carry what a
   former process left, so that is waited for: for as long as what may come again takes to come, and what is taken takes
   to be kept for good. *)
Batch == [q \in Queues |-> SelectSeq(end.planned[q], LAMBDA i : i \notin end.gaveUp /\ mem[i] = "planned")]
Waits == end.blind /\ Keep("leftovers")
Whole == /\ Keep("9") => Awaited = {}
         /\ Waits => \A c \in Copies : CASE mem[Id(c)] \in {"sent", "confirmed"} -> FALSE
                                       [] mem[Id(c)] = "carried"               -> at[c] = Acked
                                       [] OTHER                                -> TRUE
Emit ==
  /\ Up /\ pc = "run" /\ Whole
  /\ pc' = "sunk" /\ note' = ""
  /\ IF sink # None THEN UNCHANGED <<sink, output>>
     ELSE /\ sink' = Batch
          /\ output' = [i \in Ids |-> output[i] + Cardinality({n \in 1..Len(Batch[i[1]]) : Batch[i[1]][n] = i})]
  /\ recent' = {c \in recent : ~(Waits /\ mem[Id(c)] = "carried")}
  /\ UNCHANGED <<at, counted, links, source, start, end, still, left>>

CommitLog ==
  /\ Up /\ pc = "sunk"
  /\ start' = end /\ end' = None /\ sink' = None /\ note' = ""
  /\ pc' = IF Mode = "once" THEN "over" ELSE "idle"
  /\ UNCHANGED <<broker, links, source, output, still, left>>

(* The process ends: killed, or a bounded run is over. The broker notices later. *)
Gone ==
  /\ pc' = "down" /\ still' = FALSE
  /\ at' = [c \in Copies |-> IF at[c] \in Slots THEN Ghost ELSE at[c]]
  /\ open' = {} /\ alive' = {} /\ handles' = [s \in Slots |-> {}] /\ acks' = [s \in Slots |-> {}]
  /\ taking' = FALSE /\ adopted' = FALSE /\ mem' = [i \in Ids |-> "unseen"] /\ buffer' = Empty /\ next' = None
  /\ UNCHANGED <<recent, counted, start, end, sink, output>>
Crash  == pc # "down" /\ May("crash") /\ Spend("crash") /\ Gone /\ note' = ""
Finish == Up /\ pc = "over" /\ UNCHANGED left /\ Gone /\ note' = ""
(* rule 9: without leave, an epoch whose messages do not come back is not run: the query fails, and is started again *)
Fail   == /\ Up /\ pc = "run" /\ ~GivesUp /\ ~end.released
          /\ \E i \in Awaited : \A c \in Copies : Id(c) = i => at[c] \in {Away, Dead}
          /\ UNCHANGED left /\ Gone /\ note' = "failed"

(* The process is stopped, or its machine: it does nothing, and does not notice that time passes. *)
Stop     == Up /\ May("still") /\ Spend("still") /\ still' = TRUE /\ note' = ""
            /\ UNCHANGED <<broker, links, source, spark>>
Continue == still /\ still' = FALSE /\ note' = "" /\ UNCHANGED <<broker, links, source, spark, left>>
-----------------------------------------------------------------------------
Weather ==
  \/ \E s \in Slots : (s \in alive /\ Cut(s)) \/ Silence(s) \/ \E c \in Copies : HoldBack(s, c)
  \/ May("broker") /\ \E forgotten \in SUBSET recent : KillBroker(forgotten)
  \/ \E c \in Copies : Depart(c)
  \/ Release \/ Crash \/ Stop

Planning == /\ pc = "gather"
            /\ \E sizes \in [Queues -> 0..EpochMax] : (\A q \in Queues : sizes[q] <= Len(buffer[q])) /\ Plan(sizes)
Calls    == Start \/ Latest \/ Planning \/ Nothing \/ LogNext \/ Run \/ Replay \/ Emit \/ CommitLog \/ Finish
Hands(c) == \E s \in Slots : Deliver(s, c) \/ DeliverLate(s, c) \/ DeliverOdd(s, c)
Opens(s) == Open(s) \/ (s \notin alive /\ Cut(s))
Takes(c) == \E s \in Slots : Take(s, c)

Next ==
  \/ Weather \/ Calls \/ GiveUp \/ Fail \/ Continue
  \/ \E c \in Copies : Hands(c) \/ Takes(c) \/ Notice(c) \/ Return(c)
  \/ \E s \in Slots : Opens(s)
  \/ \E i \in Ids : Confirm(i) \/ Expire(i)

Spec == Init /\ [][Next]_vars

(* Who is not hindered for good gets on. *)
Fair ==
  /\ WF_vars(Calls) /\ WF_vars(GiveUp) /\ WF_vars(Continue)
  /\ \A c \in Copies : SF_vars(Hands(c)) /\ SF_vars(Takes(c)) /\ WF_vars(Notice(c)) /\ WF_vars(Return(c))
  /\ \A s \in Slots : SF_vars(Opens(s))
  /\ \A i \in Ids : SF_vars(Confirm(i)) /\ SF_vars(Expire(i))

FairSpec == Spec /\ Fair

=============================================================================
