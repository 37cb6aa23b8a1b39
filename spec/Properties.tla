------------------------------ MODULE Properties ------------------------------
EXTENDS LateAcknowledgement

(* What holds always *)

Types ==
  /\ mem \in [Ids -> States] /\ pc \in Phases /\ alive \subseteq open /\ open \subseteq Slots
  /\ \A c \in Copies : at[c] \in {Ready, Ghost, Acked, Away, Dead} \cup Slots
  /\ \A s \in alive : Held(s) = handles[s] \cup acks[s] \/ Broken # {}

(* The heart: what is acknowledged was committed. So nothing is lost, as the broker deletes nothing else. *)
AcknowledgedIsCommitted ==
  \A c \in Copies : at[c] = Acked \/ (\E s \in Slots : c \in acks[s]) => Committed(Id(c))

NothingTwice == \A i \in Ids : output[i] <= 1

(* A batch that the sink has is the same when it comes again; each is what was planned, but for what was given up. *)
SameBatch ==
  pc = "run" /\ Whole =>
    /\ sink # None => Batch = sink
    /\ ~end.blind => Batch = [q \in Queues |-> SelectSeq(end.planned[q], LAMBDA i : i \notin end.gaveUp)]
    /\ Awaited = {}

(* What is carried is committed, is not planned besides, and is no more than may come again. *)
CarriedIsCommitted ==
  \A p \in {start} \cup (IF end = None THEN {} ELSE {end}) :
    /\ \A i \in p.carried : Committed(i)
    /\ p.blind \/ p.carried \cap Planned(p) = {}

(* What may come again after a restart is known to that restart. *)
MayComeAgainIsKnown ==
  \A i \in Ids :
    Committed(i) /\ (\E c \in Copies : Id(c) = i /\ (at[c] # Acked \/ c \in recent)) =>
      i \in CommittedBy(start) \cup (IF end = None THEN {} ELSE end.carried)

(* Only the end of a session counts as a delivery, and only that puts a message aside. *)
Ends == Faults["cut"] + Faults["silence"] + Faults["broker"] + Faults["crash"] + Faults["away"]
        - left["cut"] - left["silence"] - left["broker"] - left["crash"] - left["away"]
NothingCounted ==
  Mode = "stream" => \A c \in Copies : counted[c] <= Ends /\ (at[c] = Dead /\ c \notin Odd => Limit > 0 /\ Ends > Limit)

(* What is dropped, bound or given up is counted in the same step (rule 8). *)
Silently ==
  \/ \E c \in Copies \ Odd : at[c] = Ready /\ at'[c] \in Slots /\ \A q \in Queues : Len(buffer'[q]) <= Len(buffer[q])
  \/ \E s \in Slots, c \in Copies : DeliverLate(s, c) /\ \A q \in Queues : Len(buffer'[q]) <= Len(buffer[q])
  \/ mem # mem' /\ \E i \in Ids : mem[i] = "awaited" /\ mem'[i] = "unseen" /\ pc' # "down"
Counted == [][Silently => note' # ""]_vars

-----------------------------------------------------------------------------
(* What comes about, once there are no more faults *)

Good(c) == at[c] # Dead
Emitted    == <>[](\A c \in Copies : Good(c) => output[Id(c)] > 0)
(* Before 4.2 the last epoch of an idle queue waits for the next. *)
Last(i)    == ~Shows /\ i \in Planned(start)
AllSettled == <>[](\A c \in Copies : Good(c) => at[c] = Acked \/ Last(Id(c)))
Forgotten  == Mode = "stream" => <>[](\A i \in Ids : mem[i] \notin Carries \/ Last(i))
=============================================================================
