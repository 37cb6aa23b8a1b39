-------------------------------- MODULE Journal --------------------------------
(* Exactly-once from a queue that forgets what is acknowledged.

   A broker hands messages out and deletes them once they are acknowledged. Spark reads in batches, and after a crash it
   wants the same batch again. Between them a source plans batches ("epochs"). It writes the IDs of each into a file of
   its own, which Spark's offset names, and acknowledges an epoch once Spark has committed it. The file also has the
   IDs that may come again. Three parties act here: the broker, the source, Spark; each may crash, and connections may
   end, seen by one side or by both.

   "Rule 5" is docs/design.md#rule-5. Each may be left out, by naming it in Broken; then a property of the
   module Properties fails. docs/reports/specification.md says what is not modelled. *)
EXTENDS Memory

CONSTANTS
  Slots,      \* connections of the source, <<queue, n>>
  Odd,        \* copies that cannot be decoded
  Mode,       \* "stream", or runs that end: "available" (Trigger.AvailableNow), "once" (Trigger.Once)
  Faults,     \* kind of fault -> how often it may happen
  Window,     \* messages that a session may be handed, unacknowledged
  Room,       \* messages that the source keeps at most
  EpochMax,   \* messages of an epoch, at most
  Limit,      \* deliveries that come back until the broker puts a message aside; 0 for no limit
  GivesUp,    \* option failOnDataLoss is false
  Ready, Ghost, Acked, Away, Dead

VARIABLES
  \* the broker
  at,         \* copy -> Ready; the session that holds it; Ghost, held by one whose end the broker has not noticed;
              \* Acked; Away, with another consumer; Dead, put aside
  recent,     \* <<copy, session>>: acknowledged there, and forgotten if the broker is killed now
  counted,    \* copy -> deliveries that came back
  \* connections
  open,       \* sessions that live as the source knows
  alive,      \* ... as the broker knows
  handles,    \* session -> copies that the source may acknowledge there
  acks,       \* session -> copies whose acknowledgement is on its way
  \* the source: gone in a crash
  taking,     \* deliveries may be taken
  adopted,    \* Spark has shown what is committed
  life,       \* ID -> what the source knows of it before its epoch is committed, see States
  buffer,     \* queue -> IDs received and not planned, in order
  mem,        \* the memory, see the module Memory
  owes,       \* session -> <<copy, again>>: acknowledged there, with its epoch or as a duplicate, and not settled
  next,       \* the epoch that is planned, and not in the offset log
  \* the checkpoint
  disk,       \* numbers of the files of epochs
  stray,      \* the files among these that a crash has left out of the offset log, and that no other file lists
  start,      \* the last committed epoch
  end,        \* the epoch in the offset log that is not committed
  \* Spark
  pc,         \* where the query stands, see Phases
  sink,       \* what the sink has of that batch
  output,     \* ID -> how often it is in the output
  \* faults, and what only the checker knows
  still,      \* the process stands still
  budget,     \* faults that may still happen
  promise,    \* what the memory is held to
  note        \* what the source counts in this step

broker  == <<at, recent, counted>>
links   == <<open, alive, handles, acks>>
waiting == <<taking, life, buffer, next>>
memory  == <<adopted, mem, owes, promise>>
source  == <<waiting, memory>>
journal == <<disk, stray, start, end>>
spark   == <<pc, sink, output>>
vars    == <<broker, links, source, journal, spark, still, budget, note>>
Seen    == <<broker, links, source, journal, spark, still, budget>>    \* all but the note: a state for TLC

States == {"unseen", "received",
           "awaited",    \* planned by a former process, and not handed out again yet
           "planned"}
Phases == {"down", "idle", "gather",
           "filed",      \* planned: its file is written, and Spark does not know it yet
           "logged",     \* in the offset log, planned by this process
           "open",       \* in the offset log, planned by a former one
           "run", "sunk", "over"}

Up          == pc # "down" /\ ~still
SlotsOf(q)  == {s \in Slots : s[1] = q}
Connected(q) == SlotsOf(q) \subseteq open
Held(s)     == {c \in Copies : at[c] = s}
Committed(i) == output[i] > 0 /\ ~(sink # None /\ \E q \in Queues : i \in Range(sink[q]))
May(fault)  == budget[fault] > 0
Spend(fault) == budget' = [budget EXCEPT ![fault] = @ - 1]
Without(ids) == [q \in Queues |-> SelectSeq(buffer[q], LAMBDA i : i \notin ids)]

-----------------------------------------------------------------------------
(* The memory, see the module Memory *)

Known    == IdsOf(mem)
Owed     == {Id(o[1]) : o \in {d \in UNION Range(owes) : ~d[2]}}
ReliedOn == {Id(c) : c \in {d \in Copies : at[d] = Acked /\ \A r \in recent : r[1] # d}}

(* The promise after a plan. *)
Promise == PromisedBy(mem, promise, Owed, ReliedOn)
Written(m) ==
  IF ~Keep("5") THEN Nothing     \* rule 5: what may come again is in the next file, which the next offset names
  ELSE [m EXCEPT !.named = {}]

(* A process reads one file: that of the open epoch, else that of the committed one. *)
FromEnd  == end # None /\ end.file # 0
Restored == IF FromEnd /\ Keep("file of the end") THEN Loaded(end, ~Keep("end is open"), disk)
            ELSE Loaded(start, TRUE, disk)
PromiseThere == IF FromEnd THEN end.promise ELSE start.promise

(* The assumption, all of it: the broker hands out no message again after the promise for it is void. *)
Assumption(c) == Committed(Id(c)) => Promised(IF adopted THEN promise ELSE PromiseThere, Id(c))

Init ==
  /\ at = [c \in Copies |-> Ready] /\ recent = {} /\ counted = [c \in Copies |-> 0]
  /\ open = {} /\ alive = {} /\ handles = [s \in Slots |-> {}] /\ acks = [s \in Slots |-> {}]
  /\ taking = FALSE /\ adopted = FALSE /\ life = [i \in Ids |-> "unseen"] /\ buffer = Empty /\ next = None
  /\ mem = Nothing /\ owes = [s \in Slots |-> {}] /\ promise = NoneYet
  /\ disk = {} /\ stray = {} /\ start = Beginning /\ end = None
  /\ pc = "down" /\ sink = None /\ output = [i \in Ids |-> 0]
  /\ still = FALSE /\ budget = Faults /\ note = ""

-----------------------------------------------------------------------------
(* Acknowledging *)

Handled(i) == \E s \in Slots : \E c \in handles[s] : Id(c) = i

(* Handles of these messages, session by session. A broker takes a cumulative acknowledgement for all up to it. *)
Due(ids) ==
  LET own(s) == {c \in handles[s] : Id(c) \in ids}
      void   == {i \in ids : ~Handled(i)}
  IN [s \in Slots |->
       IF \/ ~Keep("3") /\ own(s) # {}                            \* rule 3: nothing beyond the epoch's own
          \/ ~Keep("10") /\ \E i \in void : i[1] = s[1]           \* rule 10: an old handle names another message
       THEN handles[s] ELSE own(s)]

(* What was acknowledged in a session is owed until that has given a sign of life. *)
Send(due, again) ==
  /\ acks'    = [s \in Slots |-> acks[s] \cup due[s]]
  /\ handles' = [s \in Slots |-> handles[s] \ due[s]]
  /\ owes'    = [s \in Slots |-> owes[s] \cup {<<c, again>> : c \in due[s]}]

(* The IDs to settle when Spark shows that the epoch of `start` is committed. *)
Proven == {i \in Planned(start) :
            IF i \in start.gaveUp THEN ~Keep("given up") /\ life[i] = "unseen" ELSE life[i] = "planned"}

(* Spark shows `start`, so its epoch is committed. A process that was shown nothing before takes in all that it loads:
   it has received nothing by then. The wanted messages are those of an epoch to replay. A planned message that turns out
   to be committed and has no handle was left by the end of a session.

   Before Spark 4.2 `latestOffset` has no start. Spark shows one all the same: at a restart it first asks for the
   partitions between the newest offset of its log and itself. So if it has shown nothing, the log is empty. *)
Learn(more, wanted) ==
  LET m    == IF ~adopted THEN IF Keep("shown first") \/ pc # "idle" THEN Restored ELSE Nothing
              ELSE IF Proven = {} THEN mem ELSE [mem EXCEPT !.unsettled = Append(@, Proven)]
      ids  == (IF adopted THEN Proven ELSE IdsOf(m)) \cup more
      void == IF Keep("no handle") THEN {i \in ids : life[i] = "planned" /\ ~Handled(i)} ELSE {}
  IN /\ Send(Due(ids), ~adopted)
     /\ mem' = [m EXCEPT !.loose = @ \cup void]
     /\ life' = [i \in Ids |-> IF i \in ids THEN "unseen"
                               ELSE IF i \in wanted THEN "awaited" ELSE life[i]]
     /\ buffer' = Without(ids)
     /\ adopted' = TRUE /\ promise' = (IF adopted THEN promise ELSE PromiseThere)

-----------------------------------------------------------------------------
(* The broker and the connections *)

Open(s) ==
  /\ Up /\ pc # "over" /\ s \notin open
  /\ open' = open \cup {s} /\ alive' = alive \cup {s} /\ note' = ""
  /\ UNCHANGED <<broker, handles, acks, source, journal, spark, still, budget>>

(* rule 17: what is read of a message depends on its bytes alone *)
Reads(s, c) ==
  {Id(c)} \cup (IF Keep("17") THEN {} ELSE {i \in Ids : i[1] = c[1] /\ (life[i] # "unseen" \/ i \in Known)})

(* rule 14: only what is kept takes room *)
Kept == Cardinality({i \in Ids : life[i] \in {"received", "planned"} \/ (~Keep("14") /\ i \in Known)})

(* The source takes a delivery in. *)
Enter(s, c) ==
  \E i \in Reads(s, c) :
    LET held  == \E t \in Slots : \E d \in handles[t] : Id(d) = i
        taken == \/ life[i] = "unseen" /\ i \notin Known
                 \/ ~Keep("7") /\ held /\ life[i] \in {"received", "planned"}
                 \/ ~Keep("6") /\ ~held /\ (life[i] \in {"received", "planned"} \/ i \in Known)
        more  == [handles EXCEPT ![s] = @ \cup {c}]
    IN IF taken
       THEN /\ life' = [life EXCEPT ![i] = "received"] /\ buffer' = [buffer EXCEPT ![c[1]] = Append(@, i)]
            /\ handles' = more /\ note' = "" /\ UNCHANGED <<acks, owes>>
       ELSE IF life[i] # "unseen"                                   \* rule 7: it shares the fate of the first
       THEN /\ life' = [life EXCEPT ![i] = IF @ = "awaited" THEN "planned" ELSE @]
            /\ handles' = more /\ note' = "bound" /\ UNCHANGED <<buffer, acks, owes>>
       ELSE /\ IF Keep("4")                                         \* rule 4: a dropped duplicate is acknowledged
               THEN acks' = [acks EXCEPT ![s] = @ \cup {c}] /\ owes' = [owes EXCEPT ![s] = @ \cup {<<c, TRUE>>}]
               ELSE UNCHANGED <<acks, owes>>
            /\ note' = IF Keep("8") THEN "dropped" ELSE ""           \* rule 8: nothing is dropped uncounted
            /\ UNCHANGED <<life, buffer, handles>>

HasRoom == Kept < Room \/ (pc = "run" /\ Keep("14"))

(* The broker hands a copy out. Which comes first is its choice. *)
Deliver(s, c) ==
  /\ Up /\ taking /\ s \in alive /\ s[1] = c[1] /\ at[c] = Ready /\ c \notin Odd /\ Assumption(c)
  /\ HasRoom /\ Cardinality(Held(s)) < Window
  /\ at' = [at EXCEPT ![c] = s] /\ Enter(s, c)
  /\ UNCHANGED <<recent, counted, open, alive, taking, adopted, mem, promise, next, journal, spark, still, budget>>

(* It was on its way when the broker gave the session up, and another consumer may have been handed it since. *)
DeliverLate(s, c) ==
  /\ Up /\ taking /\ s \in open \ alive /\ s[1] = c[1] /\ at[c] \in {Ready, Ghost, Away} /\ Assumption(c)
  /\ c \notin handles[s] \cup acks[s] \cup Odd /\ HasRoom /\ Enter(s, c)
  /\ UNCHANGED <<broker, open, alive, taking, adopted, mem, promise, next, journal, spark, still, budget>>

(* The broker takes an acknowledgement. *)
Take(s, c) ==
  /\ s \in alive /\ c \in acks[s]
  /\ acks' = [acks EXCEPT ![s] = @ \ {c}]
  /\ at' = [at EXCEPT ![c] = Acked] /\ recent' = (IF May("broker") THEN recent \cup {<<c, s>>} ELSE {}) /\ note' = ""
  /\ UNCHANGED <<counted, open, alive, handles, source, journal, spark, still, budget>>

(* The session has confirmed an acknowledgement, and has answered something that was asked `settleGrace` later: so the
   broker lived all the while, and does not forget it. *)
Answer(s, o) ==
  /\ o \in owes[s] /\ o[1] \notin acks[s]
  /\ IF Up /\ s \in alive /\ Keep("sign of life")
     THEN recent' = recent \ {<<o[1], s>>}
     ELSE /\ \/ ~Keep("sign of life") /\ Up /\ s \in alive      \* the confirmation is enough
             \/ ~Keep("asked later") /\ Up /\ s \in open       \* what is read was sent before
             \/ ~Keep("18") /\ still /\ s \in open              \* rule 18: the time of a stopped process is no grace
          /\ UNCHANGED recent
  /\ owes' = [owes EXCEPT ![s] = @ \ {o}] /\ note' = ""
  /\ UNCHANGED <<at, counted, links, waiting, adopted, mem, promise, journal, spark, still, budget>>

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
  /\ UNCHANGED <<recent, links, source, journal, spark, still, budget>>

(* rule 6: the end of a session is a restart of it. Every handle is void, and what comes again is known by its ID. *)
Lose(ss) ==
  LET kept == [s \in Slots |-> IF s \in ss THEN {} ELSE handles[s]]
      gone == {i \in Ids : life[i] = "received" /\ \A s \in Slots : \A c \in kept[s] : Id(c) # i}
      cut  == {Id(o[1]) : o \in UNION {owes[s] : s \in ss}}
  IN /\ open' = open \ ss /\ alive' = alive \ ss
     /\ handles' = kept /\ acks' = [s \in Slots |-> IF s \in ss THEN {} ELSE acks[s]]
     /\ owes' = [s \in Slots |-> IF s \in ss THEN {} ELSE owes[s]]
     /\ mem' = IF Keep("ends of sessions") THEN [mem EXCEPT !.loose = @ \cup cut] ELSE mem
     /\ life' = [i \in Ids |-> IF i \in gone THEN "unseen" ELSE life[i]]
     /\ buffer' = Without(gone)
     /\ UNCHANGED <<taking, adopted, next, promise>>

(* rule 13: what cannot be decoded is the user's decision (here: reject it), and not the connection's fault *)
DeliverOdd(s, c) ==
  /\ Up /\ taking /\ s \in alive /\ s[1] = c[1] /\ at[c] = Ready /\ c \in Odd
  /\ IF Keep("13")
     THEN at' = [at EXCEPT ![c] = Dead] /\ note' = "rejected" /\ UNCHANGED <<links, source>>
     ELSE at' = [d \in Copies |-> IF at[d] = s \/ d = c THEN Ghost ELSE at[d]] /\ note' = "" /\ Lose({s})
  /\ UNCHANGED <<recent, counted, journal, spark, still, budget>>

(* A connection ends, and the source sees it. The broker may see it later, or has seen it before. *)
Cut(s) ==
  /\ Up /\ s \in open
  /\ IF s \in alive THEN May("cut") /\ Spend("cut") ELSE UNCHANGED budget
  /\ Lose({s}) /\ note' = ""
  /\ at' = [c \in Copies |-> IF at[c] = s THEN Ghost ELSE at[c]]
  /\ UNCHANGED <<recent, counted, journal, spark, still>>

(* The broker gives a connection up, and the source does not know. *)
Silence(s) ==
  /\ s \in alive /\ May("silence") /\ Spend("silence")
  /\ alive' = alive \ {s} /\ Back(Held(s)) /\ note' = ""
  /\ UNCHANGED <<recent, open, handles, acks, source, journal, spark, still>>

(* The broker is killed: every session ends, which the source sees later. Of the last acknowledgements
   some are forgotten. *)
KillBroker(forgotten) ==
  /\ May("broker") /\ Cardinality(forgotten) <= budget["forget"]
  /\ budget' = [budget EXCEPT !["broker"] = @ - 1, !["forget"] = @ - Cardinality(forgotten)]
  /\ Back({c \in Copies : at[c] \in Slots \cup {Ghost}} \cup forgotten)
  /\ recent' = {r \in recent : r[1] \notin forgotten} /\ alive' = {} /\ note' = ""
  /\ UNCHANGED <<open, handles, acks, source, journal, spark, still>>

(* Another consumer takes a message that is not in the output, and gives it back. *)
Depart(c) ==
  /\ May("away") /\ Spend("away") /\ at[c] = Ready /\ output[Id(c)] = 0
  /\ at' = [at EXCEPT ![c] = Away] /\ note' = ""
  /\ UNCHANGED <<recent, counted, links, source, journal, spark, still>>

Return(c) ==
  /\ at[c] = Away /\ Back({c}) /\ note' = ""
  /\ UNCHANGED <<recent, links, source, journal, spark, still, budget>>

(* rule 12: who holds back does not deliver; that returns nothing. Left out, a held message is returned to make room. *)
HoldBack(s, c) ==
  /\ ~Keep("12") /\ Up /\ s \in alive /\ c \in handles[s] /\ life[Id(c)] = "received"
  /\ Back({c}) /\ note' = ""
  /\ handles' = [handles EXCEPT ![s] = @ \ {c}]
  /\ life' = [life EXCEPT ![Id(c)] = "unseen"] /\ buffer' = Without({Id(c)})
  /\ UNCHANGED <<recent, open, alive, acks, taking, next, memory, journal, spark, still, budget>>

-----------------------------------------------------------------------------
(* Spark and the source, call by call *)

(* A process begins; what is in the offset log and not committed is run first. *)
Start ==
  /\ pc = "down"
  /\ pc' = IF end = None THEN "idle" ELSE "open"
  /\ note' = "" /\ UNCHANGED <<broker, links, source, journal, sink, output, still, budget>>

(* latestOffset.
   rule 2: that Spark shows `start` proves that it is committed. *)
Latest ==
  /\ Up /\ pc = "idle" /\ next = None
  /\ pc' = "gather" /\ taking' = TRUE /\ note' = ""
  /\ IF adopted /\ ~Keep("2") THEN UNCHANGED <<handles, acks, life, buffer, memory>> ELSE Learn({}, {})
  /\ UNCHANGED <<broker, open, alive, next, journal, sink, output, still, budget>>

(* Phase one: the oldest of each queue become an epoch. Its file is kept for good before Spark gets the offset that
   names it. *)
NewFile ==
  LET used == disk \cup mem.gone \cup UNION {IF e = None THEN {} ELSE e.memory.gone : e \in {start, end}}
  IN CHOOSE k \in 1..Cardinality(used) + 1 : k \notin used /\ 1..k - 1 \subseteq used

Plan(sizes) ==
  LET planned == [q \in Queues |-> SubSeq(buffer[q], 1, sizes[q])]
      ids     == UNION {Range(planned[q]) : q \in Queues}
      k       == NewFile
      m       == Composed(mem, k, Owed, stray)
  IN /\ Up /\ pc = "gather"
     /\ Cardinality(ids) <= EpochMax
     /\ ids # {}
     /\ life' = [i \in Ids |-> IF i \in ids THEN "planned" ELSE life[i]]
     /\ buffer' = [q \in Queues |-> SubSeq(buffer[q], sizes[q] + 1, Len(buffer[q]))]
     /\ disk' = (disk \cup {k}) \ Removed(mem, k)
     /\ mem' = m /\ promise' = Promise /\ next' = Epoch(k, planned, Written(m), Promise)
     /\ pc' = "filed"
     /\ IF Keep("1") THEN UNCHANGED <<acks, handles, owes>> ELSE Send(Due(ids), FALSE)  \* rule 1: not before the commit
     /\ note' = IF All(mem.left) \subseteq All(mem'.left) THEN "" ELSE "forgotten"
     /\ UNCHANGED <<broker, open, alive, taking, adopted, stray, start, end, sink, output, still, budget>>

(* Nothing is new; a bounded run ends there, once it was handed what is ready. *)
NothingNew ==
  /\ Up /\ pc = "gather" /\ buffer = Empty
  /\ Mode # "stream" => open = Slots /\ \A c \in Copies : at[c] # Ready
  /\ pc' = IF Mode = "stream" THEN "idle" ELSE "over"
  /\ note' = "" /\ UNCHANGED <<broker, links, source, journal, sink, output, still, budget>>

(* The offset log. A file says what crashes have left. *)
Log ==
  /\ Up /\ pc = "filed"
  /\ end' = next /\ next' = None /\ pc' = "logged" /\ stray' = {} /\ note' = ""
  /\ UNCHANGED <<broker, links, taking, life, buffer, memory, disk, start, sink, output, still, budget>>

(* commit(start), then partitions(start, end), of an epoch that was planned here.
   rule 16: only what Spark has said is committed is settled, whatever else is planned *)
Run ==
  /\ Up /\ pc = "logged" /\ pc' = "run" /\ note' = ""
  /\ Learn(IF Keep("16") THEN {} ELSE {i \in Ids : life[i] = "planned"}, {})
  /\ UNCHANGED <<broker, open, alive, taking, next, journal, sink, output, still, budget>>

(* partitions(start, end) of an epoch of a former process: its messages are awaited. *)
Replay ==
  /\ Up /\ pc = "open" /\ ~adopted /\ pc' = "run" /\ taking' = TRUE /\ note' = "replayed"
  /\ Learn({}, (Planned(end) \ end.gaveUp) \ IdsOf(Restored))
  /\ UNCHANGED <<broker, open, alive, next, journal, sink, output, still, budget>>

Awaited == {i \in Planned(end) : life[i] = "awaited"}
Whole   == Keep("9") => Awaited = {}

(* 'pyspark-mq release', for one epoch, while no query runs *)
Release ==
  /\ pc = "down" /\ end # None /\ May("release") /\ Spend("release")
  /\ end' = [end EXCEPT !.released = TRUE] /\ note' = ""
  /\ UNCHANGED <<broker, links, source, disk, stray, start, spark, still>>

(* rule 15: what is given up is written down before anything of its epoch is emitted. If the sink has the batch, it has
   these messages, and has them twice if they come back (docs/guarantees.md): that is left out here. *)
GiveUp ==
  /\ Up /\ pc = "run" /\ Awaited # {} /\ sink = None
  /\ GivesUp \/ end.released
  /\ \A i \in Awaited : Connected(i[1])
  /\ end' = IF Keep("15") THEN [end EXCEPT !.gaveUp = @ \cup Awaited] ELSE end
  /\ life' = [i \in Ids |-> IF i \in Awaited THEN "unseen" ELSE life[i]] /\ note' = "lost"
  /\ UNCHANGED <<broker, links, taking, buffer, next, memory, disk, stray, start, spark, still, budget>>

(* Somebody runs the open epoch with guarantee 'at-least-once', as one without messages, and goes back; or that is
   killed before it comes to the commit log. All of the epoch is given up first. *)
Lower ==
  /\ pc = "down" /\ end # None /\ sink = None /\ end.file # 0 /\ May("lower") /\ Spend("lower")
  /\ LET kept == IF Keep("lower guarantee") THEN [end EXCEPT !.gaveUp = Planned(end)] ELSE end
     IN \/ start' = kept /\ end' = None
        \/ end' = kept /\ UNCHANGED start
  /\ note' = "" /\ UNCHANGED <<broker, links, source, disk, stray, spark, still>>

(* The batch goes to the sink, which skips one that it has. *)
Batch == [q \in Queues |-> SelectSeq(InOrder(end)[q], LAMBDA i : life[i] = "planned")]
Emit ==
  /\ Up /\ pc = "run" /\ Whole
  /\ pc' = "sunk" /\ note' = ""
  /\ IF sink # None THEN UNCHANGED <<sink, output>>
     ELSE /\ sink' = Batch
          /\ output' = [i \in Ids |-> output[i] + Cardinality({n \in 1..Len(Batch[i[1]]) : Batch[i[1]][n] = i})]
  /\ UNCHANGED <<broker, links, source, journal, still, budget>>

CommitLog ==
  /\ Up /\ pc = "sunk"
  /\ start' = end /\ end' = None /\ sink' = None /\ note' = ""
  /\ pc' = IF Mode = "once" THEN "over" ELSE "idle"
  /\ UNCHANGED <<broker, links, source, disk, stray, output, still, budget>>

(* The process ends: killed, or a bounded run is over. The broker notices later. A file that was written and is not in
   the offset log is left; the next process knows its name. *)
Die ==
  /\ pc' = "down" /\ still' = FALSE
  /\ at' = [c \in Copies |-> IF at[c] \in Slots THEN Ghost ELSE at[c]]
  /\ open' = {} /\ alive' = {} /\ handles' = [s \in Slots |-> {}] /\ acks' = [s \in Slots |-> {}]
  /\ taking' = FALSE /\ adopted' = FALSE /\ life' = [i \in Ids |-> "unseen"] /\ buffer' = Empty
  /\ owes' = [s \in Slots |-> {}] /\ mem' = Nothing /\ promise' = NoneYet /\ next' = None
  /\ stray' = stray \cup IF next = None THEN {} ELSE {next.file}
  /\ disk' = IF ~Keep("file first") /\ pc = "logged" THEN disk \ {end.file} ELSE disk
  /\ UNCHANGED <<recent, counted, start, end, sink, output>>
Crash  == pc # "down" /\ May("crash") /\ Spend("crash") /\ Die /\ note' = ""
Finish == Up /\ pc = "over" /\ UNCHANGED budget /\ Die /\ note' = ""
(* rule 9: without leave, an epoch whose messages do not come back is not run: the query fails, and is started again *)
Fail   == /\ Up /\ pc = "run" /\ ~GivesUp /\ ~end.released
          /\ \E i \in Awaited : \A c \in Copies : Id(c) = i => at[c] \in {Away, Dead}
          /\ UNCHANGED budget /\ Die /\ note' = "failed"

(* The process is stopped, or its machine: it does nothing, and does not notice that time passes. *)
Stop     == Up /\ May("still") /\ Spend("still") /\ still' = TRUE /\ note' = ""
            /\ UNCHANGED <<broker, links, source, journal, spark>>
Continue == still /\ still' = FALSE /\ note' = "" /\ UNCHANGED <<broker, links, source, journal, spark, budget>>
-----------------------------------------------------------------------------
Weather ==
  \/ \E s \in Slots : (s \in alive /\ Cut(s)) \/ Silence(s) \/ \E c \in Copies : HoldBack(s, c)
  \/ May("broker") /\ \E forgotten \in SUBSET {r[1] : r \in recent} : KillBroker(forgotten)
  \/ \E c \in Copies : Depart(c)
  \/ Release \/ Lower \/ Crash \/ Stop

Planning == /\ pc = "gather"
            /\ \E sizes \in [Queues -> 0..EpochMax] :
                 (\A q \in Queues : sizes[q] <= Len(buffer[q])) /\ Plan(sizes)
Calls    == Start \/ Latest \/ Planning \/ NothingNew \/ Log \/ Run \/ Replay \/ Emit \/ CommitLog
            \/ Finish
Hands(c) == \E s \in Slots : Deliver(s, c) \/ DeliverLate(s, c) \/ DeliverOdd(s, c)
Opens(s) == Open(s) \/ (s \notin alive /\ Cut(s))
Takes(c) == \E s \in Slots : Take(s, c)
Answers(c) == \E s \in Slots, again \in BOOLEAN : Answer(s, <<c, again>>)

Next ==
  \/ Weather \/ Calls \/ GiveUp \/ Fail \/ Continue
  \/ \E c \in Copies : Hands(c) \/ Takes(c) \/ Notice(c) \/ Return(c) \/ Answers(c)
  \/ \E s \in Slots : Opens(s)

Spec == Init /\ [][Next]_vars

(* Who is not hindered for good gets on. *)
Fair ==
  /\ WF_vars(Calls) /\ WF_vars(GiveUp) /\ WF_vars(Continue)
  /\ \A c \in Copies : SF_vars(Hands(c)) /\ SF_vars(Takes(c)) /\ SF_vars(Answers(c))
  /\ \A c \in Copies : WF_vars(Notice(c)) /\ WF_vars(Return(c))
  /\ \A s \in Slots : SF_vars(Opens(s))

FairSpec == Spec /\ Fair

=============================================================================
