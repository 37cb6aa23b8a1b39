-------------------------------- MODULE Memory --------------------------------
(* What the source remembers of all queues, and what the file of an epoch has of it. There are no variables here:
   Journal.tla says when the memory changes. The code is pyspark_mq/dedup/memory.py. *)
EXTENDS Integers, Sequences, FiniteSets

CONSTANTS
  Copies,     \* deliverable messages, <<queue, ID, n>>: a producer may send a message more than once
  RememberLeft, DedupWindow,    \* options: an ID is remembered until this many were left, or settled, after it
  Broken,     \* rules and safeguards that are left out
  None

Id(c)  == <<c[1], c[2]>>                \* identity is the queue and the ID
Ids    == {Id(c) : c \in Copies}
Queues == {c[1] : c \in Copies}
Keep(rule) == rule \notin Broken
Range(f)   == {f[x] : x \in DOMAIN f}
All(list)  == UNION Range(list)

Nothing ==
  [unsettled |-> <<>>,    \* committed epochs of which an acknowledgement is not settled
   window    |-> <<>>,    \* settled epochs, the newest DedupWindow IDs
   left      |-> <<>>,    \* IDs that were left first, plan by plan, the newest RememberLeft
   loose     |-> {},      \* IDs to be written as left with the next plan: an end has cut their acknowledgement off
   gone      |-> {},      \* files that the next plan removes: in the code the 120th
   named     |-> {}]      \* the file of the last plan
IdsOf(m) == All(m.unsettled) \cup All(m.window) \cup All(m.left) \cup m.loose

(* An epoch, as its offset and its file have it. The file has the whole memory. (In the code it has what has changed
   since other files, which it names: tests/property/test_memory.py.) *)
NoneYet == [left |-> [i \in Ids |-> {}], settled |-> [i \in Ids |-> {}]]
Epoch(number, planned, m, promise) ==
  [file |-> number, planned |-> planned, memory |-> m, promise |-> promise, gaveUp |-> {}, released |-> FALSE]
Empty      == [q \in Queues |-> <<>>]
Beginning  == Epoch(0, Empty, Nothing, NoneYet)
InOrder(e) == [q \in Queues |-> SelectSeq(e.planned[q], LAMBDA i : i \notin e.gaveUp)]
Planned(e) == UNION {Range(e.planned[q]) : q \in Queues}
Ran(e)     == IF Keep("given up") THEN Planned(e) \ e.gaveUp ELSE Planned(e)

(* IDs go from the old end only: the oldest, once enough others came after them. *)
RECURSIVE Size(_)
Size(list) == IF list = <<>> THEN 0 ELSE Cardinality(Head(list)) + Size(Tail(list))
RECURSIVE Forget(_, _)
Forget(list, bound) ==
  IF list = <<>> \/ ~Keep("the oldest go") THEN list
  ELSE IF Size(Tail(list)) < bound \/ (Size(Tail(list)) = bound /\ Keep("at the bound")) THEN list
  ELSE Forget(Tail(list), bound)

(* A plan settles the epochs of which nothing is owed, whatever is owed of those before them, and writes down what was
   left. An ID that was left before stays where it is. The file of the plan before goes, and what a crash has left. *)
Settled(m, owed) ==
  LET waits   == {k \in DOMAIN m.unsettled : m.unsettled[k] \cap owed # {}}
      over(e) == IF Keep("listed") THEN e \cap owed = {} ELSE \A k \in waits : \E j \in 1..k - 1 : m.unsettled[j] = e
  IN SelectSeq(m.unsettled, over)
Composed(m, number, owed, stray) ==
  LET settled == Settled(m, owed)
      fresh   == IF Keep("distinct") THEN m.loose \ All(m.left) ELSE m.loose
      going   == (m.named \cup IF Keep("strays") THEN stray ELSE {}) \ {number}
  IN [unsettled |-> SelectSeq(m.unsettled, LAMBDA e : e \notin Range(settled)),
      window    |-> Forget(m.window \o settled, DedupWindow),
      left      |-> Forget(IF fresh = {} THEN m.left ELSE Append(m.left, fresh), RememberLeft),
      loose     |-> {},
      gone      |-> IF Keep("a plan later") THEN going ELSE {},
      named     |-> {number}]
Removed(m, number) == IF Keep("a plan later") THEN m.gone ELSE m.named \ {number}

(* A load reads a file; its own epoch may be committed too. What was unsettled at the end of a process is left. *)
Loaded(e, committed, disk) ==
  LET m   == e.memory
      own == IF committed /\ Keep("own file") THEN Ran(e) ELSE {}
  IN [m EXCEPT !.unsettled = IF Keep("ends of processes") THEN <<>> ELSE IF own = {} THEN @ ELSE Append(@, own),
               !.loose = IF Keep("ends of processes") THEN All(m.unsettled) \cup own ELSE {},
               !.gone = @ \cap disk, !.named = {e.file} \ {0}]

-----------------------------------------------------------------------------
(* The promise: an ID is recognised until RememberLeft distinct others were left since it was first left, or, if its
   acknowledgement can be relied on, until DedupWindow newer ones were settled. A promise maps each ID to itself and
   those others, and to all IDs once it is void. A process takes it from the file that it loads, as the memory. *)
Count(past, list, bound) ==
  LET since(i) == IF past[i] # {} THEN past[i] \cup All(list)
                  ELSE UNION {{i} \cup All(SubSeq(list, k + 1, Len(list))) : k \in {j \in DOMAIN list : i \in list[j]}}
  IN [i \in Ids |-> IF Cardinality(since(i)) > bound + 1 THEN Ids ELSE since(i)]
PromisedBy(m, past, owed, reliedOn) ==
  LET settled == Count(past.settled, Settled(m, owed), DedupWindow)
  IN [left    |-> Count(past.left, IF m.loose = {} THEN <<>> ELSE <<m.loose>>, RememberLeft),
      settled |-> [i \in Ids |-> IF past.settled[i] = {} /\ i \notin reliedOn THEN {} ELSE settled[i]]]
Promised(promise, i) ==
  \/ promise.left[i] = {} /\ promise.settled[i] = {}
  \/ promise.left[i] # {} /\ Cardinality(promise.left[i]) <= RememberLeft + 1
  \/ promise.settled[i] # {} /\ Cardinality(promise.settled[i]) <= DedupWindow + 1
================================================================================
