-------------------------------- MODULE Journal --------------------------------
(* Exactly-once from a queue that forgets what is acknowledged.

   A broker hands messages out and deletes them once they are acknowledged. Spark reads in batches, and after a crash it
   wants the same batch again. Between them a source plans batches ("epochs"). It writes the IDs of each into a file of
   its own, which Spark's offset names, and acknowledges an epoch once Spark has committed it. What may come again is
   remembered by the names of files of before. Three parties act here: the broker, the source, Spark; each may crash,
   and connections may end, seen by one side or by both.

   "Rule 5" is docs/how-it-works.md#rule-5. Each may be left out, by naming it in Broken; then a property of the
   module Properties fails. What is not modelled, and how the memory differs now: docs/reports/specification.md. *)
EXTENDS Integers, Sequences, FiniteSets

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
  RememberLeft, DedupWindow,    \* options: IDs behind a left segment, and behind a settled one, until it closes
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
  known,      \* segments of committed IDs: under way, settled, left, each with its place in a file
  owes,       \* session -> IDs acknowledged there for which it has given no sign of life since
  loose,      \* IDs to be written as left with the next plan
  next,       \* planned, and not in the offset log
  \* the checkpoint
  files,      \* of epochs, in the order in which they were written
  start,      \* offset of the last committed batch
  end,        \* offset of the batch in the offset log that is not committed
  \* Spark
  pc,         \* where the query stands, see Phases
  sink,       \* what the sink has of that batch
  output,     \* ID -> how often it is in the output
  \* faults
  still,      \* the process stands still
  budget,     \* faults that may still happen
  after,      \* ID -> itself and the IDs that were left behind it; nothing if it never was left
  note        \* what the source counts in this step

broker  == <<at, recent, counted>>
links   == <<open, alive, handles, acks>>
waiting == <<taking, life, buffer, next>>
memory  == <<adopted, known, owes, loose, after>>
source  == <<waiting, memory>>
journal == <<files, start, end>>
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

Range(f)    == {f[x] : x \in DOMAIN f}
Empty       == [q \in Queues |-> <<>>]
Up          == pc # "down" /\ ~still
SlotsOf(q)  == {s \in Slots : s[1] = q}
Connected(q) == SlotsOf(q) \subseteq open
Held(s)     == {c \in Copies : at[c] = s}
Committed(i) == output[i] > 0 /\ ~(sink # None /\ \E q \in Queues : i \in Range(sink[q]))
May(fault)  == budget[fault] > 0
Spend(fault) == budget' = [budget EXCEPT ![fault] = @ - 1]
Without(ids) == [q \in Queues |-> SelectSeq(buffer[q], LAMBDA i : i \notin ids)]

-----------------------------------------------------------------------------
(* The journal *)

Unnamed == [way |-> <<>>, settled |-> <<>>, left |-> <<>>]
Gone    == -1                             \* the place of a file that is removed
Offset(k) == [file |-> k, released |-> FALSE]

(* What an epoch's file says. Two things are written beside it later: what was given up; and, where it was planned
   blindly, before Spark had shown what is committed, the names that it lacks. *)
File(planned, names, left, merged, blind) ==
  [planned |-> planned, names |-> names, left |-> left, merged |-> merged, blind |-> blind,
   gaveUp |-> {}, beside |-> None,
   ahead |-> IF end = None THEN 1 ELSE 2]  \* its epoch's number, less that of the last one committed
Blank == File(Empty, Unnamed, {}, {}, FALSE)    \* of the beginning
FileOf(p)    == IF p.file \in DOMAIN files THEN files[p.file] ELSE Blank
InOrder(f)   == [q \in Queues |-> SelectSeq(f.planned[q], LAMBDA i : i \notin f.gaveUp)]
Planned(f)   == UNION {Range(f.planned[q]) : q \in Queues}
NamesOf(f)   == IF ~f.blind THEN f.names ELSE IF f.beside = None THEN Unnamed ELSE f.beside.names

(* A segment of a file, without what was given up. *)
Part(place) ==
  IF place[1] \notin DOMAIN files THEN {}
  ELSE LET f == files[place[1]]
       IN CASE place[2] = "planned" -> IF Keep("given up") THEN Planned(f) \ f.gaveUp ELSE Planned(f)
            [] place[2] = "left"    -> f.left
            [] place[2] = "merged"  -> f.merged
            [] place[2] = "beside"  -> f.beside.merged

(* A list of segments: from the one that was there first to the newest. Each knows how many IDs came behind it in this
   list, each of them counted once. A file says that too: so a restart does not count anew. One whose IDs are all in
   newer ones is dropped. *)
Segment(place, ids) == [place |-> place, ids |-> ids, behind |-> 0]
All(list)   == UNION {list[k].ids : k \in DOMAIN list}
Known       == All(known.way) \cup All(known.settled) \cup All(known.left)
Names(list) == [k \in DOMAIN list |-> [place |-> list[k].place, behind |-> list[k].behind]]
Read(names) ==
  LET of(n) == [place |-> n.place, ids |-> Part(n.place), behind |-> n.behind]
  IN SelectSeq([k \in DOMAIN names |-> of(names[k])], LAMBDA e : e.ids # {})
Later(list, k) == UNION {list[j].ids : j \in k + 1..Len(list)}
Join(list, e) ==
  LET counts(k) == IF Keep("counting twice") THEN e.ids \ Later(list, k) ELSE e.ids
      joined    == Append([k \in DOMAIN list |-> [list[k] EXCEPT !.behind = @ + Cardinality(counts(k))]],
                          [e EXCEPT !.behind = IF Keep("counts of a list") THEN 0 ELSE @])
      spent     == {joined[k] : k \in {j \in DOMAIN list : joined[j].ids \subseteq Later(joined, j)}}
  IN IF e.ids = {} THEN list ELSE SelectSeq(joined, LAMBDA d : d \notin spent)
RECURSIVE JoinAll(_, _)
JoinAll(list, more) == IF more = <<>> THEN list ELSE JoinAll(Join(list, Head(more)), Tail(more))

(* It closes when more than so many are behind it. *)
Close(list, bound) ==
  SelectSeq(list, LAMBDA e : IF Keep("at the bound") THEN e.behind <= bound ELSE e.behind < bound)

(* Some of a list become one, in the place of the newest. *)
Merge(list, ks, place) ==
  LET last  == CHOOSE k \in ks : \A j \in ks : j <= k
      raw(k) == IF list[k].place[2] = "planned" /\ ~Keep("given up in merges")
                THEN Planned(files[list[k].place[1]]) ELSE list[k].ids
      one   == [list[last] EXCEPT !.place = place, !.ids = UNION {raw(k) : k \in ks}]
      moved == [k \in DOMAIN list |-> IF k = last THEN one ELSE IF k \in ks THEN Segment(place, {}) ELSE list[k]]
  IN SelectSeq(moved, LAMBDA e : e.ids # {})

(* The assumption, all of it: of the messages that a broker will hand out again, at most so many were left behind after
   each. (What was left is what ends of connections and processes left open, and a plan has written down. A process that
   begins again where the one before it began leaves nothing anew: the order of what it leaves is the former's.) *)
Assumption(c) == Committed(Id(c)) => Cardinality(after[Id(c)] \ {Id(c)}) <= RememberLeft
Leave(past, ids) ==
  [i \in Ids |-> IF i \in ids THEN {i} ELSE IF past[i] = {} THEN {} ELSE past[i] \cup ids]
RECURSIVE LeaveAll(_, _)
LeaveAll(past, list) ==
  LET ids == Head(list).ids
  IN IF list = <<>> THEN past
     ELSE LeaveAll([i \in Ids |-> IF past[i] = {} THEN Leave(past, ids)[i] ELSE past[i] \cup ids], Tail(list))

(* After a restart: what the file of `start` names, and as left what it names as under way and its own epoch. Of an
   epoch that is not committed only what it wrote down as left. *)
Stranded(p) == Read(NamesOf(FileOf(p)).way)
               \o IF Keep("own file") THEN <<Segment(<<p.file, "planned">>, Part(<<p.file, "planned">>))>> ELSE <<>>
Restored(p, e) ==
  LET named  == NamesOf(FileOf(p))
      before == Read(named.left)
      old    == IF Keep("counts are kept") THEN before
                ELSE JoinAll(<<>>, [k \in DOMAIN before |-> Segment(before[k].place, before[k].ids)])
      ofEnd  == IF e = None THEN <<>>
                ELSE (IF Keep("left of the end") THEN <<Segment(<<e.file, "left">>, Part(<<e.file, "left">>))>>
                      ELSE <<>>)
                     \o IF Keep("end is open") THEN <<>>
                        ELSE <<Segment(<<e.file, "planned">>, Part(<<e.file, "planned">>))>>
  IN [way |-> <<>>, settled |-> Read(named.settled), left |-> JoinAll(old, ofEnd \o Stranded(p))]

(* What a plan makes of the lists, or what goes beside the file of a blind epoch. *)
Closed(lists) ==
  LET closed == [lists EXCEPT !.settled = Close(@, DedupWindow), !.left = Close(@, RememberLeft)]
      gone   == UNION {UNION {e.ids : e \in Range(lists[l]) \ Range(closed[l])} : l \in {"settled", "left"}}
      hold(list) == [k \in DOMAIN list |-> [list[k] EXCEPT !.ids = @ \ gone]]
  IN IF Keep("one segment") THEN closed                   \* an ID is known while any segment has it
     ELSE [l \in DOMAIN closed |-> hold(closed[l])]
Merges == {None} \cup (IF May("merge") THEN {"settled", "left"} \X {{1, 2}, {1, 3}, {2, 3}} ELSE {})
CanMerge(lists, m) == IF m = None THEN TRUE ELSE m[2] \subseteq DOMAIN lists[m[1]]
Merging(lists, m, place) == IF m = None THEN lists ELSE [lists EXCEPT ![m[1]] = Merge(@, m[2], place)]
SpendMerge(m) == budget' = IF m = None THEN budget ELSE [budget EXCEPT !["merge"] = @ - 1]
At(lists, place) == UNION {e.ids : e \in {d \in Range(lists.settled) \cup Range(lists.left) : d.place = place}}
NamesIn(lists)   == [l \in DOMAIN lists |-> Names(lists[l])]

(* Files go by the numbers of their epochs, once Spark has shown what is committed. What those that stay name, stays;
   and what the source has in memory, which after a replay is more than the file of its epoch names. *)
Places(names)   == {e.place[1] : e \in UNION {Range(names[l]) : l \in DOMAIN names}}
PlacesIn(f)     == Places(f.names) \cup (IF f.beside = None THEN {} ELSE Places(f.beside.names))
Naming(fs, ks)  == (ks \cup UNION {PlacesIn(fs[k]) : k \in ks}) \cap DOMAIN fs
ToStay(fs, lists) ==
  LET newest == {k \in DOMAIN fs : fs[k].ahead > 0 \/ k = start.file}
  IN IF ~Keep("removal by files") THEN Naming(fs, {Len(fs)} \cap DOMAIN fs)
     ELSE IF ~Keep("removal of what is named") THEN newest
     ELSE Naming(fs, newest) \cup Places(lists)

(* These stay. What is left gets new numbers, so that the checker knows it again. *)
Store(stay, fs, lists, e, n) ==
  LET new(k)   == IF k = 0 THEN 0 ELSE IF k \in stay THEN Cardinality({j \in stay : j <= k}) ELSE Gone
      list(l)  == [k \in DOMAIN l |-> [l[k] EXCEPT !.place = <<new(@[1]), @[2]>>]]
      names(r) == [l \in DOMAIN r |-> list(r[l])]
      file(f)  == [f EXCEPT !.names = names(@),
                            !.beside = IF @ = None THEN None ELSE [@ EXCEPT !.names = names(@)]]
      offset(p) == IF p = None THEN None ELSE [p EXCEPT !.file = new(@)]
  IN IF stay = DOMAIN fs
     THEN files' = fs /\ known' = lists /\ end' = e /\ next' = n /\ UNCHANGED start
     ELSE /\ files' = [m \in 1..Cardinality(stay) |-> file(fs[CHOOSE k \in stay : new(k) = m])]
          /\ known' = names(lists) /\ start' = offset(start) /\ end' = offset(e) /\ next' = offset(n)

Init ==
  /\ at = [c \in Copies |-> Ready] /\ recent = {} /\ counted = [c \in Copies |-> 0]
  /\ open = {} /\ alive = {} /\ handles = [s \in Slots |-> {}] /\ acks = [s \in Slots |-> {}]
  /\ taking = FALSE /\ adopted = FALSE /\ life = [i \in Ids |-> "unseen"] /\ buffer = Empty /\ next = None
  /\ known = Unnamed /\ owes = [s \in Slots |-> {}] /\ loose = {} /\ after = [i \in Ids |-> {}]
  /\ files = <<>> /\ start = Offset(0) /\ end = None
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
Send(due) ==
  /\ acks'    = [s \in Slots |-> acks[s] \cup due[s]]
  /\ handles' = [s \in Slots |-> handles[s] \ due[s]]
  /\ owes'    = [s \in Slots |-> owes[s] \cup {Id(c) : c \in due[s]}]

(* Of what is committed now: what has no handle was left by the end of a session. *)
Void(ids) == IF Keep("no handle") THEN {i \in ids : ~Handled(i)} ELSE {}

(* The IDs to settle when Spark shows that the epoch of `start` is committed. *)
Proven == {i \in Planned(FileOf(start)) :
            IF i \in FileOf(start).gaveUp THEN ~Keep("given up") /\ life[i] = "unseen" ELSE life[i] = "planned"}
WithProven == [known EXCEPT !.way = Join(@, Segment(<<start.file, "planned">>, Proven))]

(* This much is known as committed now, in these lists. What came while nothing was known has come again. *)
Learn(ids, lists) ==
  /\ Send(Due(ids))
  /\ loose' = loose \cup Void(ids \ (All(lists.left) \cup All(lists.settled)))
                    \cup {i \in ids \cap All(lists.left) : Handled(i)}

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

(* What is settled and comes again is under way again; what was left is to be left again, alone. *)
Again(i) ==
  LET back == SelectSeq(known.settled, LAMBDA e : i \in e.ids)
  IN [known EXCEPT !.settled = SelectSeq(@, LAMBDA e : i \notin e.ids), !.way = JoinAll(@, back)]

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
            /\ handles' = more /\ note' = "" /\ UNCHANGED <<acks, known, owes, loose>>
       ELSE IF life[i] # "unseen"                                   \* rule 7: it shares the fate of the first
       THEN /\ life' = [life EXCEPT ![i] = IF @ = "awaited" THEN "planned" ELSE @]
            /\ handles' = more /\ note' = "bound" /\ UNCHANGED <<buffer, acks, known, owes, loose>>
       ELSE /\ IF Keep("4")                                         \* rule 4: a dropped duplicate is acknowledged
               THEN acks' = [acks EXCEPT ![s] = @ \cup {c}] /\ owes' = [owes EXCEPT ![s] = @ \cup {i}]
               ELSE UNCHANGED <<acks, owes>>
            /\ known' = Again(i) /\ loose' = IF i \in All(known.left) THEN loose \cup {i} ELSE loose
            /\ note' = IF Keep("8") THEN "dropped" ELSE ""           \* rule 8: nothing is dropped uncounted
            /\ UNCHANGED <<life, buffer, handles>>

HasRoom == Kept < Room \/ (pc = "run" /\ Keep("14"))

(* The broker hands a copy out. Which comes first is its choice. *)
Deliver(s, c) ==
  /\ Up /\ taking /\ s \in alive /\ s[1] = c[1] /\ at[c] = Ready /\ c \notin Odd /\ Assumption(c)
  /\ HasRoom /\ Cardinality(Held(s)) < Window
  /\ at' = [at EXCEPT ![c] = s] /\ Enter(s, c)
  /\ UNCHANGED <<recent, counted, open, alive, taking, adopted, next, after, journal, spark, still, budget>>

(* It was on its way when the broker gave the session up, and another consumer may have been handed it since. *)
DeliverLate(s, c) ==
  /\ Up /\ taking /\ s \in open \ alive /\ s[1] = c[1] /\ at[c] \in {Ready, Ghost, Away} /\ Assumption(c)
  /\ c \notin handles[s] \cup acks[s] \cup Odd /\ HasRoom /\ Enter(s, c)
  /\ UNCHANGED <<broker, open, alive, taking, adopted, next, after, journal, spark, still, budget>>

(* The broker takes an acknowledgement. *)
Take(s, c) ==
  /\ s \in alive /\ c \in acks[s]
  /\ acks' = [acks EXCEPT ![s] = @ \ {c}]
  /\ at' = [at EXCEPT ![c] = Acked] /\ recent' = (IF May("broker") THEN recent \cup {<<c, s>>} ELSE {}) /\ note' = ""
  /\ UNCHANGED <<counted, open, alive, handles, source, journal, spark, still, budget>>

(* The session has confirmed all of a message, and has answered something that was asked `settleGrace` later: so the
   broker lived all the while, and forgets nothing of it. *)
Answer(s, i) ==
  /\ i \in owes[s] /\ \A c \in acks[s] : Id(c) # i
  /\ IF Up /\ s \in alive /\ Keep("sign of life")
     THEN recent' = {r \in recent : Id(r[1]) # i \/ r[2] # s}
     ELSE /\ \/ ~Keep("sign of life") /\ Up /\ s \in alive      \* the confirmation is enough
             \/ ~Keep("asked behind") /\ Up /\ s \in open       \* what is read was sent before
             \/ ~Keep("18") /\ still /\ s \in open              \* rule 18: the time of a stopped process is no grace
          /\ UNCHANGED recent
  /\ owes' = [owes EXCEPT ![s] = @ \ {i}] /\ note' = ""
  /\ UNCHANGED <<at, counted, links, waiting, adopted, known, loose, after, journal, spark, still, budget>>

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
  IN /\ open' = open \ ss /\ alive' = alive \ ss
     /\ handles' = kept /\ acks' = [s \in Slots |-> IF s \in ss THEN {} ELSE acks[s]]
     /\ owes' = [s \in Slots |-> IF s \in ss THEN {} ELSE owes[s]]
     /\ loose' = IF Keep("ends of sessions") THEN loose \cup UNION {owes[s] : s \in ss} ELSE loose
     /\ life' = [i \in Ids |-> IF i \in gone THEN "unseen" ELSE life[i]]
     /\ buffer' = Without(gone)
     /\ UNCHANGED <<taking, adopted, next, known, after>>

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
  /\ pc' = IF end = None \/ (~Shows /\ Mode # "stream") THEN "idle" ELSE "open"
  /\ note' = "" /\ UNCHANGED <<broker, links, source, journal, sink, output, still, budget>>

(* latestOffset.
   rule 2: that Spark shows `start` proves that it is committed. Before 4.2 it does not show it. *)
Latest ==
  /\ Up /\ pc = "idle" /\ next = None
  /\ pc' = "gather" /\ taking' = TRUE /\ note' = ""
  /\ IF ~Shows \/ (adopted /\ ~Keep("2"))
     THEN UNCHANGED <<links, life, buffer, next, memory, journal>>
     ELSE LET lists == IF adopted THEN WithProven ELSE Restored(start, None)
              ids   == IF adopted THEN Proven ELSE All(lists.settled) \cup All(lists.left)
          IN /\ Learn(ids, lists) /\ adopted' = TRUE
             /\ life' = [i \in Ids |-> IF i \in ids THEN "unseen" ELSE life[i]] /\ buffer' = Without(ids)
             /\ after' = IF adopted THEN after ELSE LeaveAll(after, Stranded(start))
             /\ Store(ToStay(files, lists), files, lists, end, next)
             /\ UNCHANGED <<open, alive>>
  /\ UNCHANGED <<broker, sink, output, still, budget>>

(* Phase one: the oldest of each queue become an epoch. Its file is kept for good before Spark gets the offset that
   names it. One without messages is planned before 4.2 alone: to make room, as an epoch is settled after the next is
   planned; and as the first answer of a process, as Spark compares that with an offset which the process has not been
   shown. *)
NeedsEmpty == /\ ~Shows
              /\ \/ ~adopted
                 \/ /\ \E i \in Ids : life[i] = "planned"
                    /\ Kept >= Room \/ \E s \in Slots : Cardinality(Held(s)) >= Window

Living(e) == \A s \in Slots : e.ids \cap owes[s] = {}
(* The lists as they are after a plan: what nothing is owed of is settled, what is loose is left, alone. *)
Settling(place) ==
  LET again == UNION {e.ids : e \in {d \in Range(known.left) : d.ids \cap loose # {}}}
      ids   == IF Keep("alone") THEN loose ELSE loose \cup again
  IN [way     |-> SelectSeq(known.way, LAMBDA e : ~Living(e)),
      settled |-> JoinAll(known.settled, SelectSeq(known.way, Living)),
      left    |-> Join(known.left, Segment(place, ids))]

(* Before 4.2 the last epoch that was begun is committed when this one is in the offset log; it is named so. *)
Begun == IF ~Shows /\ adopted /\ end = None /\ Keep("begun")
         THEN <<Segment(<<start.file, "planned">>, {i \in Part(<<start.file, "planned">>) : life[i] = "planned"})>>
         ELSE <<>>

Plan(sizes, m) ==
  LET planned == [q \in Queues |-> SubSeq(buffer[q], 1, sizes[q])]
      ids     == UNION {Range(planned[q]) : q \in Queues}
      k       == Len(files) + 1
      settling == Settling(<<k, "left">>)
      closed  == Closed(settling)
      lists   == Merging(closed, m, <<k, "merged">>)
      (* rule 5: what may come again is named by the next file, and so by the next offset *)
      names   == IF Keep("5") THEN NamesIn([lists EXCEPT !.way = @ \o Begun]) ELSE Unnamed
      file    == File(planned, names, At(settling, <<k, "left">>), At(lists, <<k, "merged">>), ~adopted)
      all     == Append(files, file)
      named   == Naming(all, {k})
      parts   == IF m = None THEN {} ELSE {closed[m[1]][j].place[1] : j \in m[2]}
      stay    == IF ~Keep("removal too early") \/ (~Keep("removal while blind") /\ ~adopted) THEN named
                 ELSE IF ~Keep("parts of a merge") THEN DOMAIN all \ (parts \ named)
                 ELSE DOMAIN all
  IN /\ Up /\ pc = "gather"
     /\ Cardinality(ids) <= EpochMax
     /\ ids # {} \/ NeedsEmpty
     /\ CanMerge(closed, m) /\ SpendMerge(m)
     /\ life' = [i \in Ids |-> IF i \in ids THEN "planned" ELSE life[i]]
     /\ buffer' = [q \in Queues |-> SubSeq(buffer[q], sizes[q] + 1, Len(buffer[q]))]
     /\ loose' = {} /\ after' = Leave(after, loose)
     /\ Store(stay, all, lists, end, Offset(k))
     /\ pc' = IF end = None THEN "filed" ELSE "open"
     /\ IF Keep("1") THEN UNCHANGED <<acks, handles, owes>> ELSE Send(Due(ids))     \* rule 1: not before the commit
     /\ note' = IF All(settling.left) = All(closed.left) THEN "" ELSE "closed"
     /\ UNCHANGED <<broker, open, alive, taking, adopted, sink, output, still>>

(* Nothing is new; a bounded run ends there, once it was handed what is ready. Before 4.2 a process that has been shown
   no offset must not answer so: Spark makes a batch of the beginning, which names nothing and is not blind. *)
Nothing ==
  /\ Up /\ pc = "gather" /\ buffer = Empty
  /\ Shows \/ adopted \/ ~Keep("first answer")
  /\ Mode # "stream" => open = Slots /\ \A c \in Copies : at[c] # Ready
  /\ IF ~Keep("first answer") /\ ~adopted /\ end = None /\ start.file # 0
     THEN end' = Offset(0) /\ pc' = "logged"
     ELSE /\ pc' = IF end # None THEN "open" ELSE IF Mode = "stream" THEN "idle" ELSE "over"
          /\ UNCHANGED end
  /\ note' = "" /\ UNCHANGED <<broker, links, source, files, start, sink, output, still, budget>>

(* The offset log. *)
Log ==
  /\ Up /\ pc \in {"filed", "idle"} /\ next # None
  /\ end' = next /\ next' = None /\ pc' = "logged" /\ note' = ""
  /\ UNCHANGED <<broker, links, taking, life, buffer, memory, files, start, sink, output, still, budget>>

(* Of an epoch that was planned blindly: the names that its file lacks are beside it before anything of it is emitted.
   They are kept if they are there. *)
Lacks(p) == FileOf(p).blind /\ FileOf(p).beside = None /\ Keep("beside")
Beside(lists) == IF Keep("closing beside") THEN Closed(lists) ELSE lists
WithBeside(lists) ==
  [files EXCEPT ![end.file].beside = [names |-> NamesIn(lists), merged |-> At(lists, <<end.file, "beside">>)]]
Complete(stay(_), lists, m) ==
  IF Lacks(end)
  THEN LET more == Merging(Beside(lists), m, <<end.file, "beside">>)
           fs   == WithBeside(more)
       IN CanMerge(Beside(lists), m) /\ SpendMerge(m) /\ Store(stay(fs), fs, more, end, next)
  ELSE m = None /\ SpendMerge(m) /\ Store(stay(files), files, lists, end, next)
Everything(fs) == DOMAIN fs

(* commit(start), then partitions(start, end), of an epoch that was planned here. Before 4.2 `start` is shown only now:
   what it says is committed is taken out of the epoch.
   rule 16: only what Spark has said is committed is settled, whatever else is planned *)
Run(m) ==
  LET lists == IF adopted THEN WithProven ELSE Restored(start, None)
      ids   == (IF adopted THEN Proven ELSE All(lists.settled) \cup All(lists.left))
               \cup (IF Keep("16") THEN {} ELSE {i \in Ids : life[i] = "planned"})
      stay(fs) == IF Shows THEN DOMAIN fs ELSE ToStay(fs, lists)
  IN /\ Up /\ pc = "logged"
     /\ Learn(ids, lists)
     /\ life' = [i \in Ids |-> IF i \in ids THEN "unseen" ELSE life[i]] /\ buffer' = Without(ids)
     /\ after' = IF adopted THEN after ELSE LeaveAll(after, Stranded(start))
     /\ Complete(stay, lists, m)
     /\ pc' = "run" /\ adopted' = TRUE /\ note' = ""
     /\ UNCHANGED <<broker, open, alive, taking, sink, output, still>>

(* partitions(start, end) of an epoch of a former process: its messages are awaited. *)
Replay(m) ==
  LET lists  == Restored(start, end)
      ids    == All(lists.settled) \cup All(lists.left)
      wanted == (Planned(FileOf(end)) \ FileOf(end).gaveUp) \ ids
  IN /\ Up /\ pc = "open" /\ ~adopted
     /\ Learn(ids, lists)
     /\ life' = [i \in Ids |-> IF i \in ids THEN "unseen"
                               ELSE IF i \in wanted /\ life[i] = "unseen" THEN "awaited"
                               ELSE IF i \in wanted /\ life[i] = "received" THEN "planned" ELSE life[i]]
     /\ buffer' = Without(ids \cup wanted)
     /\ after' = LeaveAll(after, Stranded(start))
     /\ Complete(Everything, lists, m)
     /\ pc' = "run" /\ adopted' = TRUE /\ taking' = TRUE /\ note' = "replayed"
     /\ UNCHANGED <<broker, open, alive, sink, output, still>>

Awaited == {i \in Planned(FileOf(end)) : life[i] = "awaited"}

(* 'pyspark-mq release', for one epoch, while no query runs *)
Release ==
  /\ pc = "down" /\ end # None /\ May("release") /\ Spend("release")
  /\ end' = [end EXCEPT !.released = TRUE] /\ note' = ""
  /\ UNCHANGED <<broker, links, source, files, start, spark, still>>

(* rule 15: what is given up is written down before anything of its epoch is emitted. If the sink has the batch, it has
   these messages, and has them twice if they come back (docs/guarantees.md): that is left out here. *)
GiveUp ==
  /\ Up /\ pc = "run" /\ Awaited # {} /\ sink = None
  /\ GivesUp \/ end.released
  /\ \A i \in Awaited : Connected(i[1])
  /\ files' = IF Keep("15") THEN [files EXCEPT ![end.file].gaveUp = @ \cup Awaited] ELSE files
  /\ life' = [i \in Ids |-> IF i \in Awaited THEN "unseen" ELSE life[i]] /\ note' = "lost"
  /\ UNCHANGED <<broker, links, taking, buffer, next, memory, start, end, spark, still, budget>>

(* Offsets move on, and so do the numbers of epochs. *)
MoveOn(fs) ==
  /\ start' = end /\ end' = None
  /\ files' = [k \in DOMAIN fs |-> [fs[k] EXCEPT !.ahead = IF @ = 0 THEN 0 ELSE @ - 1]]

(* Somebody runs the open epoch with guarantee 'at-least-once', as one without messages, and goes back; or that is
   killed before it comes to the commit log. All of the epoch is given up first. *)
Lower ==
  /\ pc = "down" /\ end # None /\ sink = None /\ end.file # 0 /\ May("lower") /\ Spend("lower")
  /\ LET fs     == IF Lacks(end)
                   THEN [files EXCEPT ![end.file] = [@ EXCEPT !.gaveUp = Planned(FileOf(end)), !.beside =
                          [names |-> NamesIn(Beside(Restored(start, end))), merged |-> {}]]]
                   ELSE [files EXCEPT ![end.file].gaveUp = Planned(FileOf(end))]
         kept   == IF Keep("lower guarantee") THEN fs ELSE files
     IN MoveOn(kept) \/ (files' = kept /\ UNCHANGED <<start, end>>)
  /\ note' = "" /\ UNCHANGED <<broker, links, source, spark, still>>

(* The batch goes to the sink, which skips one that it has. *)
Batch == [q \in Queues |-> SelectSeq(InOrder(FileOf(end))[q], LAMBDA i : life[i] = "planned")]
Whole == Keep("9") => Awaited = {}
Emit ==
  /\ Up /\ pc = "run" /\ Whole
  /\ pc' = "sunk" /\ note' = ""
  /\ IF sink # None THEN UNCHANGED <<sink, output>>
     ELSE /\ sink' = Batch
          /\ output' = [i \in Ids |-> output[i] + Cardinality({n \in 1..Len(Batch[i[1]]) : Batch[i[1]][n] = i})]
  /\ UNCHANGED <<broker, links, source, journal, still, budget>>

CommitLog ==
  /\ Up /\ pc = "sunk"
  /\ MoveOn(files) /\ sink' = None /\ note' = ""
  /\ pc' = IF Mode = "once" THEN "over" ELSE "idle"
  /\ UNCHANGED <<broker, links, source, output, still, budget>>

(* The process ends: killed, or a bounded run is over. The broker notices later. *)
Die ==
  /\ pc' = "down" /\ still' = FALSE
  /\ at' = [c \in Copies |-> IF at[c] \in Slots THEN Ghost ELSE at[c]]
  /\ open' = {} /\ alive' = {} /\ handles' = [s \in Slots |-> {}] /\ acks' = [s \in Slots |-> {}]
  /\ taking' = FALSE /\ adopted' = FALSE /\ life' = [i \in Ids |-> "unseen"] /\ buffer' = Empty
  /\ owes' = [s \in Slots |-> {}] /\ loose' = {}
  /\ Store(IF ~Keep("file first") /\ pc = "logged" THEN DOMAIN files \ {end.file} ELSE DOMAIN files,
           files, Unnamed, end, None)
  /\ UNCHANGED <<recent, counted, after, sink, output>>
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
            /\ \E sizes \in [Queues -> 0..EpochMax], m \in Merges :
                 (\A q \in Queues : sizes[q] <= Len(buffer[q])) /\ Plan(sizes, m)
Calls    == Start \/ Latest \/ Planning \/ Nothing \/ Log \/ (\E m \in Merges : Run(m) \/ Replay(m))
            \/ Emit \/ CommitLog \/ Finish
Hands(c) == \E s \in Slots : Deliver(s, c) \/ DeliverLate(s, c) \/ DeliverOdd(s, c)
Opens(s) == Open(s) \/ (s \notin alive /\ Cut(s))
Takes(c) == \E s \in Slots : Take(s, c)
Answers(i) == \E s \in Slots : Answer(s, i)

Next ==
  \/ Weather \/ Calls \/ GiveUp \/ Fail \/ Continue
  \/ \E c \in Copies : Hands(c) \/ Takes(c) \/ Notice(c) \/ Return(c)
  \/ \E s \in Slots : Opens(s)
  \/ \E i \in Ids : Answers(i)

Spec == Init /\ [][Next]_vars

(* Who is not hindered for good gets on. *)
Fair ==
  /\ WF_vars(Calls) /\ WF_vars(GiveUp) /\ WF_vars(Continue)
  /\ \A c \in Copies : SF_vars(Hands(c)) /\ SF_vars(Takes(c)) /\ WF_vars(Notice(c)) /\ WF_vars(Return(c))
  /\ \A s \in Slots : SF_vars(Opens(s))
  /\ \A i \in Ids : SF_vars(Answers(i))

FairSpec == Spec /\ Fair

=============================================================================
