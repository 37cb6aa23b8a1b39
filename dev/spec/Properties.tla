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
    /\ ~FileOf(end).blind => Batch = InOrder(FileOf(end))
    /\ Awaited = {}

(* Both offsets, of which a restart begins with one or both. *)
Offsets == {start} \cup (IF end = None THEN {} ELSE {end})

(* What the journal knows again after a restart. *)
Remembered == LET lists == Restored(start, end) IN All(lists.settled) \cup All(lists.left)

(* What is named is committed, and is not planned besides. *)
NamedIsCommitted ==
  \A p \in Offsets :
    LET names == NamesOf(FileOf(p))
        ids   == UNION {All(Read(names[l])) : l \in DOMAIN names}
    IN /\ \A i \in ids : Committed(i)
       /\ FileOf(p).blind \/ ids \cap Part(<<p.file, "planned">>) = {}

(* A file that is named is there. *)
NamedIsThere ==
  \A p \in Offsets :
    LET names == NamesOf(FileOf(p))
    IN p.file # Gone /\ \A l \in DOMAIN names : \A n \in Range(names[l]) : n.place[1] # Gone

(* What may come again after a restart is known to that restart, as far as the assumption about the broker goes. *)
MayComeAgain(c) == Committed(Id(c)) /\ (at[c] # Acked \/ \E r \in recent : r[1] = c) /\ Assumption(c)
MayComeAgainIsKnown ==
  LET again == {Id(c) : c \in {d \in Copies : MayComeAgain(d)}} IN again = {} \/ again \subseteq Remembered

(* Names are bounded by counts: a file names nothing that has more behind it than its list remembers. *)
NamesAreBounded ==
  \A p \in Offsets :
    LET names == NamesOf(FileOf(p))
    IN /\ \A n \in Range(names.left) : n.behind <= RememberLeft
       /\ \A n \in Range(names.settled) : n.behind <= DedupWindow

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
  \/ pc = "gather" /\ pc' # "down" /\ ~(All(known.left) \subseteq All(known.left)')
Counted == [][note' = "" => ~Silently]_vars

-----------------------------------------------------------------------------
(* What comes about, once there are no more faults *)

Good(c) == at[c] # Dead
Emitted    == <>[](\A c \in Copies : Good(c) => output[Id(c)] > 0)
(* Before 4.2 the last epoch of an idle queue waits for the next. *)
Last(i)    == ~Shows /\ i \in Planned(FileOf(start))
AllSettled == <>[](\A c \in Copies : Good(c) => at[c] = Acked \/ Last(Id(c)))
AllAnswered == Mode = "stream" => <>[](\A s \in Slots : owes[s] = {})
=============================================================================
