-------------------------------- MODULE Contents --------------------------------
(* Messages without IDs: which message a delivery is, where only its content is known.

   All messages here have one content; what is of another content is never taken for them. A message is known by an
   ordinal. The first has the ordinal 0; each that is met while the content is known to repeat has one of its own, which
   says so in the files of the journal. The broker hands out, forgets what is acknowledged, and flags what it has handed
   out before; it may flag more. Each row of the table in
   pyspark_mq/ack/copies.py may be left out, by naming it in Broken.

   Of the journal only what matters here is modelled: which messages a file names, and whether the epoch of the newest
   file was acknowledged. How long they are remembered is the subject of the module Journal. *)
EXTENDS Integers, FiniteSets

CONSTANTS
  Copies,     \* messages of the content, 1 to n
  Proves,     \* a delivery without a flag is a new message
  Flags,      \* the broker flags messages that nobody had
  Cuts, Crashes, Kills, Silences,
              \* how often: a session ends, the driver is killed, the broker is killed, it gives a session up unnoticed
  Broken      \* rows that are left out

VARIABLES
  at,         \* copy -> "unborn", "ready", "out", "ghost" (of a session that has ended), "acked"
  flag,       \* copies that the next delivery will flag
  acks,       \* <<copy, ordinal>>: acknowledgements on their way
  recent,     \* <<copy, ordinal>>: acknowledged, and forgotten if the broker is killed now
  (* the source *)
  up, hold,   \* copy -> ordinal that it was received as; None
  st,         \* ordinal -> "unseen", "received", "planned", "committed"
  left,       \* committed messages that the ends of sessions and processes have left open
  way,        \* committed messages that are being acknowledged
  done,       \* settled ones, until the next plan
  repeats, met,         \* the content is known to repeat; one that was settled was met
  lefts,      \* of a content that repeats: how many were left open
  waiting, coming, came, unproved,
  next,       \* the next ordinal
  told,       \* committed messages that the source has to acknowledge
  there,      \* messages of the open epoch that have come to this process
  (* the checkpoint *)
  file, open, \* newest committed file, and that of an open epoch: names and messages of its own; None
  noted,      \* the epoch of `file` was acknowledged
  emitted,    \* ordinals in the output
  (* to compare with *)
  was,        \* ordinal -> copies acknowledged as it
  exposed,    \* messages that were committed at an end, and not acknowledged for sure
  excused,    \* ends at which nothing said that the content repeats
  ambiguous, budget

broker == <<at, flag, acks, recent>>
memory == <<hold, st, left, way, done, repeats, met, lefts, waiting, coming, came, unproved, next, told,
            there>>
disk   == <<file, open, noted, emitted>>
ghosts == <<was, exposed, excused, ambiguous>>
vars   == <<broker, up, memory, disk, ghosts, budget>>

None     == -1
Keep(row) == row \notin Broken
Ordinals == 0..(Cardinality(Copies) * (1 + Cuts + Crashes + Kills + Silences))
Min(set) == CHOOSE x \in set : \A y \in set : x <= y
Of(state) == {k \in Ordinals : st[k] = state}
Blank    == [names |-> {}, own |-> {}]

Init ==
  /\ at = [c \in Copies |-> "unborn"] /\ flag = {} /\ acks = {} /\ recent = {}
  /\ up = TRUE /\ hold = [c \in Copies |-> None] /\ st = [k \in Ordinals |-> "unseen"]
  /\ left = {} /\ way = {} /\ done = {} /\ repeats = FALSE /\ met = FALSE /\ lefts = 0
  /\ waiting = {} /\ coming = {} /\ came = {} /\ unproved = {} /\ next = 1 /\ told = {} /\ there = {}
  /\ file = Blank /\ open = Blank /\ noted = TRUE /\ emitted = {}
  /\ was = [k \in Ordinals |-> {}] /\ exposed = {} /\ excused = 0 /\ ambiguous = 0
  /\ budget = [cut |-> Cuts, crash |-> Crashes, kill |-> Kills, silence |-> Silences]

(* A producer sends equal messages one after the other. *)
Publish(c) ==
  /\ at[c] = "unborn" /\ \A d \in Copies : d < c => at[d] # "unborn"
  /\ at' = [at EXCEPT ![c] = "ready"] /\ UNCHANGED <<flag, acks, recent, up, memory, disk, ghosts, budget>>

(* Which message a delivery is: the first row that applies. *)
Sure(c)  == Proves /\ c \notin flag
Row(c) ==
  IF waiting # {} /\ Keep("waiting") THEN "waiting"
  ELSE IF Sure(c) /\ Keep("proof") THEN "new"
  ELSE IF coming # {} /\ Keep("coming") THEN "coming"
  ELSE IF repeats /\ Keep("repeats") THEN IF lefts > 0 THEN "ambiguous" ELSE "new"
  ELSE IF 0 \in came /\ Keep("once") THEN "new"
  ELSE IF st[0] = "committed" /\ 0 \in left /\ Keep("left") THEN "again"
  ELSE IF ~Proves \/ 0 \in unproved THEN "new"
  ELSE IF 0 \in way /\ Keep("under way") THEN "again"
  ELSE IF st[0] \in {"received", "planned"} /\ Keep("held") THEN "again"
  ELSE "new"

Deliver(c) ==
  /\ up /\ at[c] = "ready"
  /\ LET row   == Row(c)
         fresh == st[0] = "unseen" /\ ~met /\ ~repeats
         new   == row \in {"new", "ambiguous"}
         k     == CASE row = "waiting" -> Min(waiting) [] row = "coming" -> Min(coming)
                    [] row = "again" -> 0 [] OTHER -> IF fresh THEN 0 ELSE next
     IN /\ next <= Cardinality(Copies) * (1 + Cuts + Crashes + Kills + Silences)
        /\ repeats' = (repeats \/ (new /\ ~fresh) \/ (row = "waiting" /\ Sure(c)))
        /\ next' = IF new /\ ~fresh THEN next + 1 ELSE next
        /\ lefts' = (IF row = "ambiguous" THEN lefts - 1 ELSE lefts)
                    + (IF new /\ ~fresh /\ ~repeats /\ 0 \in left /\ 0 \notin came THEN 1 ELSE 0)
        /\ ambiguous' = IF row = "ambiguous" THEN ambiguous + 1 ELSE ambiguous
        /\ coming' = coming \ {k} /\ waiting' = waiting \ {k}
        /\ came' = IF row \in {"coming", "again"} THEN came \cup {k} ELSE came
        /\ unproved' = IF ~Sure(c) /\ (new \/ row = "waiting") THEN unproved \cup {k} ELSE unproved
        /\ IF st[k] = "committed"
           THEN acks' = acks \cup {<<c, k>>} /\ UNCHANGED <<hold, st>>
           ELSE /\ hold' = [hold EXCEPT ![c] = k] /\ UNCHANGED acks
                /\ st' = [st EXCEPT ![k] = IF @ = "unseen" THEN "received" ELSE @]
        /\ there' = there \cup {k}
  /\ at' = [at EXCEPT ![c] = "out"] /\ flag' = flag \cup {c}
  /\ UNCHANGED <<recent, up, left, way, done, met, told, disk, was, exposed, excused, budget>>

(* Phase one: an epoch of some of what was received. Settled messages are forgotten. *)
Plan(ks) ==
  /\ up /\ told = {} /\ open = Blank /\ ks # {} /\ ks \subseteq Of("received")
  /\ st' = [k \in Ordinals |-> IF k \in ks THEN "planned" ELSE IF k \in done \ left THEN "unseen" ELSE st[k]]
  /\ met' = (met \/ done \ left # {}) /\ done' = {}
  /\ open' = [names |-> Of("committed") \ (done \ left), own |-> ks] /\ there' = there \cap ks
  /\ UNCHANGED <<broker, up, hold, left, way, repeats, lefts, waiting, coming, came, unproved, next, told,
                 file, noted, emitted, ghosts, budget>>

(* The batch is in the sink and in the commit log. *)
Commit ==
  /\ up /\ open # Blank /\ open.own \subseteq there
  /\ emitted' = emitted \cup open.own /\ file' = open /\ open' = Blank /\ noted' = FALSE /\ told' = open.own
  /\ UNCHANGED <<broker, up, hold, st, left, way, done, repeats, met, lefts, waiting, coming, came, unproved, next,
                 there, ghosts, budget>>

(* Phase two. It is noted first that the epoch is acknowledged. What has no handle will come. *)
Acknowledge ==
  /\ up /\ told # {}
  /\ LET held == {c \in Copies : hold[c] \in told}
         free == {k \in told : \A c \in held : hold[c] # k}
     IN /\ acks' = acks \cup {<<c, hold[c]>> : c \in held}
        /\ hold' = [c \in Copies |-> IF c \in held THEN None ELSE hold[c]]
        /\ coming' = coming \cup free /\ waiting' = waiting \ free /\ left' = left \cup free /\ way' = way \cup (told \ free)
  /\ st' = [k \in Ordinals |-> IF k \in told THEN "committed" ELSE st[k]]
  /\ told' = {} /\ noted' = TRUE
  /\ UNCHANGED <<at, flag, recent, up, done, repeats, met, lefts, came, unproved, next, there, file, open,
                 emitted, ghosts, budget>>

(* The broker takes an acknowledgement; later it is settled. *)
Take(a) ==
  /\ acks' = acks \ {a} /\ recent' = recent \cup {a} /\ at' = [at EXCEPT ![a[1]] = "acked"]
  /\ was' = [was EXCEPT ![a[2]] = @ \cup {a[1]}]
  /\ UNCHANGED <<flag, up, memory, disk, exposed, excused, ambiguous, budget>>
Settle ==
  /\ up /\ acks = {} /\ (recent # {} \/ way # {})
  /\ recent' = {} /\ way' = {} /\ done' = done \cup way
  /\ UNCHANGED <<at, flag, acks, up, hold, st, left, repeats, met, lefts, waiting, coming, came, unproved, next,
                 told, there, disk, ghosts, budget>>

(* What the broker makes of the end of a session: of the acknowledgements some were taken, of those some are forgotten
   if it is killed. It hands out again what it has not, sooner or later. *)
End(taken, forgotten, more) ==
  /\ at' = [c \in Copies |-> IF \E a \in forgotten : a[1] = c THEN "ghost"
                             ELSE IF \E a \in taken : a[1] = c THEN "acked"
                             ELSE IF at[c] = "out" THEN "ghost" ELSE at[c]]
  /\ was' = [k \in Ordinals |-> {c \in was[k] : <<c, k>> \notin forgotten} \cup {c \in Copies : <<c, k>> \in taken}]
  /\ flag' = flag \cup more /\ acks' = {} /\ recent' = (recent \cup taken) \ forgotten
  /\ exposed' = exposed \cup way \cup told \cup coming \cup {a[2] : a \in acks \cup recent}
  /\ UNCHANGED <<disk, ambiguous>>
Wanting == {c \in Copies : at[c] = "ready"}

Cut(taken, forgotten, more) ==
  /\ up /\ End(taken, forgotten, more)
  /\ LET back == Of("received")
         cut  == way \cup {a[2] : a \in acks \cup recent}
     IN /\ hold' = [c \in Copies |-> None]
        /\ st' = [k \in Ordinals |-> IF k \in back THEN "unseen" ELSE st[k]]
        /\ unproved' = unproved \ back
        /\ waiting' = Of("planned")
        /\ left' = left \cup cut /\ lefts' = lefts + (IF repeats THEN Cardinality(cut) ELSE 0)
        /\ way' = {} /\ came' = {} /\ excused' = excused + IF repeats THEN 0 ELSE 1
  /\ UNCHANGED <<up, done, repeats, met, coming, next, told, there>>

(* The broker gives a session up, and the source does not know: what it holds comes again in another session. *)
Silence ==
  /\ up /\ acks = {} /\ recent = {} /\ way = {}
  /\ at' = [c \in Copies |-> IF at[c] = "out" THEN "ghost" ELSE at[c]]
  /\ UNCHANGED <<flag, acks, recent, up, memory, disk, ghosts>>

(* A file says that the content repeats, by the ordinal of a message. *)
Written == (file.names \cup file.own \cup open.own) \ {0} # {}
Crash(taken, forgotten, more) ==
  /\ up /\ End(taken, forgotten, more)
  /\ up' = FALSE /\ hold' = [c \in Copies |-> None] /\ st' = [k \in Ordinals |-> "unseen"]
  /\ left' = {} /\ way' = {} /\ done' = {} /\ repeats' = FALSE /\ met' = FALSE /\ lefts' = 0
  /\ waiting' = {} /\ coming' = {} /\ came' = {} /\ unproved' = {} /\ told' = {} /\ there' = {}
  /\ excused' = excused + IF Written THEN 0 ELSE 1
  /\ UNCHANGED next            \* no process uses an ordinal of another

(* The next process reads what the newest file names, and the open epoch. *)
Start ==
  /\ ~up /\ up' = TRUE
  /\ LET named == file.names \cup file.own
         sure  == IF (\E k \in file.own : k > 0) /\ (~noted \/ ~Keep("note")) THEN file.own \ {0} ELSE {}
         says  == Written /\ Keep("ordinals")
     IN /\ st' = [k \in Ordinals |-> IF k \in named THEN "committed" ELSE IF k \in open.own THEN "planned" ELSE "unseen"]
        /\ left' = named /\ coming' = sure /\ waiting' = open.own
        /\ noted' = TRUE            \* the next process does not expect them once more
        /\ repeats' = says /\ lefts' = IF says THEN Cardinality(named \ (sure \cup {0})) ELSE 0
  /\ UNCHANGED <<broker, hold, way, done, met, came, unproved, next, told, there, file, open, emitted,
                 ghosts, budget>>

Return(c) ==
  /\ at[c] = "ghost" /\ at' = [at EXCEPT ![c] = "ready"]
  /\ UNCHANGED <<flag, acks, recent, up, memory, disk, ghosts, budget>>

Faults ==
  \/ Silence /\ budget["silence"] > 0 /\ budget' = [budget EXCEPT !["silence"] = @ - 1]
  \/ \E taken \in SUBSET acks, more \in IF Flags THEN SUBSET Wanting ELSE {{}} :
       \/ budget["cut"] > 0 /\ Cut(taken, {}, more) /\ budget' = [budget EXCEPT !["cut"] = @ - 1]
       \/ budget["crash"] > 0 /\ Crash(taken, {}, more) /\ budget' = [budget EXCEPT !["crash"] = @ - 1]
       \/ /\ budget["kill"] > 0 /\ budget' = [budget EXCEPT !["kill"] = @ - 1]
          /\ \E forgotten \in SUBSET recent : Cut(taken, forgotten, more)

Next ==
  \/ \E c \in Copies : Publish(c) \/ Deliver(c) \/ Return(c)
  \/ \E ks \in SUBSET Of("received") : Plan(ks)
  \/ Commit \/ Acknowledge \/ Start \/ Settle \/ (\E a \in acks : Take(a))
  \/ Faults

Spec == Init /\ [][Next]_vars

-----------------------------------------------------------------------------
Born  == {c \in Copies : at[c] # "unborn"}
Quiet == /\ up /\ told = {} /\ open = Blank /\ acks = {} /\ Of("received") = {}
         /\ \A c \in Copies : at[c] \in {"unborn", "acked"}
RECURSIVE Sum(_)
Sum(ks) == IF ks = {} THEN 0 ELSE LET k == Min(ks) IN Cardinality(was[k]) + Sum(ks \ {k})
Shared == {k \in Ordinals : was[k] # {}}
Lost   == Sum(Shared) - Cardinality(Shared)
Twice  == {k \in emitted : was[k] = {}}

(* Only what is in the output is acknowledged. *)
AcknowledgedIsEmitted == \A a \in acks \cup recent : a[2] \in emitted

(* A content of its own comes once. *)
OwnComesOnce ==
  Cardinality(Born) <= 1 => Cardinality(emitted) <= 1 /\ ((\E c \in Copies : at[c] = "acked") => emitted # {})

(* Of equal messages none is lost, but one at an end at which nothing said that they repeat. *)
EqualAreKept == Lost <= excused
(* Those come twice at most that were committed at an end, and not acknowledged for sure. *)
TwiceWasExposed == Quiet => Twice \subseteq exposed
(* An open epoch does not wait for what will not come. *)
NothingAwaitedInVain ==
  up /\ waiting # {} => \E c \in Copies : at[c] \in {"ready", "ghost"}
=============================================================================
