------------------------------ MODULE Properties ------------------------------
EXTENDS Journal

(* What holds always *)

Types ==
  /\ life \in [Ids -> States] /\ pc \in Phases /\ alive \subseteq open /\ open \subseteq Slots
  /\ \A c \in Copies : at[c] \in {Ready, Ghost, Acked, Away, Dead} \cup Slots
  /\ \A s \in alive : Held(s) = handles[s] \cup acks[s] \/ Broken # {}
  /\ \A i \in Known : life[i] = "unseen"

(* The heart: what is acknowledged was committed. So nothing is lost, as the broker deletes nothing else. *)
AcknowledgedIsCommitted ==
  \A c \in Copies : at[c] = Acked \/ (\E s \in Slots : c \in acks[s]) => Committed(Id(c))

NothingTwice == \A i \in Ids : output[i] <= 1

(* A batch that the sink has is the same when it comes again; each is what was planned, but for what was given up. *)
SameBatch ==
  pc = "run" /\ Whole =>
    /\ sink # None => Batch = sink
    /\ Batch = InOrder(end)
    /\ Awaited = {}

(* Both offsets, of which a restart begins with one or both. *)
Offsets  == {start} \cup (IF end = None THEN {} ELSE {end})
Memories == {e.memory : e \in Offsets}

(* What a file remembers is committed, and is not planned in the same file. *)
NamedIsCommitted ==
  \A e \in Offsets :
    /\ \A i \in IdsOf(e.memory) : Committed(i)
    /\ IdsOf(e.memory) \cap Ran(e) = {}

(* The file that an offset names is there. *)
NamedIsThere == \A e \in Offsets : e.file \in disk \cup {0}

(* Every other file is going, or the next process can know its name. *)
NothingIsLeftOver ==
  disk \subseteq {e.file : e \in Offsets} \cup (IF next = None THEN {} ELSE {next.file}) \cup Restored.gone \cup stray

(* What may come again is known to the source, and to one that begins now, as far as the promise goes. *)
MayComeAgain(c) == Committed(Id(c)) /\ (at[c] # Acked \/ \E r \in recent : r[1] = c)
MayComeAgainIsKnown ==
  \A c \in Copies : MayComeAgain(c) =>
    /\ Promised(PromiseThere, Id(c)) => Id(c) \in IdsOf(Restored)
    /\ adopted /\ Promised(promise, Id(c)) => Id(c) \in Known \/ life[Id(c)] = "planned"

(* What is remembered is bounded by counts; an epoch is unsettled only while something of it is owed. *)
MemoryIsBounded ==
  \A m \in Memories :
    /\ m.window = <<>> \/ Size(Tail(m.window)) <= DedupWindow
    /\ m.left = <<>> \/ Size(Tail(m.left)) <= RememberLeft
SettledIsSettled ==
  [][pc = "gather" /\ next' # next /\ mem' # mem => \A e \in Range(mem'.unsettled) : e \cap Owed # {}]_vars

(* Only the end of a session counts as a delivery, and only that puts a message aside. *)
Ends == Faults["cut"] + Faults["silence"] + Faults["broker"] + Faults["crash"] + Faults["away"]
        - budget["cut"] - budget["silence"] - budget["broker"] - budget["crash"] - budget["away"]
NothingCounted ==
  Mode = "stream" => \A c \in Copies : counted[c] <= Ends /\ (at[c] = Dead /\ c \notin Odd => Limit > 0 /\ Ends > Limit)

(* What is dropped, bound, given up, or left and no longer remembered, is counted in the same step (rule 8). *)
Silently ==
  \/ \E c \in Copies \ Odd : at[c] = Ready /\ at'[c] \in Slots /\ \A q \in Queues : Len(buffer'[q]) <= Len(buffer[q])
  \/ \E s \in open \ alive, c \in Copies : DeliverLate(s, c) /\ \A q \in Queues : Len(buffer'[q]) <= Len(buffer[q])
  \/ life # life' /\ \E i \in Ids : life[i] = "awaited" /\ life'[i] = "unseen" /\ pc' # "down"
  \/ pc' # "down" /\ ~(All(mem.left) \subseteq All(mem'.left))
Counted == [][note' = "" => ~Silently]_vars

-----------------------------------------------------------------------------
(* What comes about, once there are no more faults *)

Good(c) == at[c] # Dead
Emitted    == <>[](\A c \in Copies : Good(c) => output[Id(c)] > 0)
AllSettled == <>[](\A c \in Copies : Good(c) => at[c] = Acked)
AllAnswered == Mode = "stream" => <>[](\A s \in Slots : owes[s] = {})
=============================================================================
