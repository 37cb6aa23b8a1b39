-------------------------------- MODULE Model --------------------------------
(* Sizes for the checker, by name: dev/tools/spec.py puts them together. *)
EXTENDS Properties, TLC

OneQueue   == {<<"a", 1, 1>>, <<"a", 2, 1>>}
Three      == {<<"a", 1, 1>>, <<"a", 2, 1>>, <<"a", 3, 1>>}
Four       == Three \cup {<<"a", 4, 1>>}
Five       == Four \cup {<<"a", 5, 1>>}
TwoQueues  == {<<"a", 1, 1>>, <<"a", 2, 1>>, <<"b", 1, 1>>}
OneEach    == {<<"a", 1, 1>>, <<"b", 1, 1>>}
Repeated   == {<<"a", 1, 1>>, <<"a", 1, 2>>, <<"a", 2, 1>>}
SlotEach   == {<<"a", 1>>, <<"b", 1>>}
OneSlot    == {<<"a", 1>>}
TwoSlots   == {<<"a", 1>>, <<"a", 2>>}
OddFirst   == {<<"a", 1, 1>>}
One        == {<<"a", 1, 1>>}
Nobody     == {}

(* Where there are too many histories to look for the one that should not be, these: messages come in turn, while Spark
   waits; a connection ends while it acknowledges, a process between two batches or while it runs one. *)
Directed ==
  /\ \A c \in Copies : at[c] = Ready /\ at'[c] \in Slots =>
       /\ pc \in {"gather", "run"}
       /\ \/ output[Id(c)] > 0
          \/ \A d \in Copies : d[1] = c[1] /\ d[2] < c[2] => output[Id(d)] > 0 \/ life[Id(d)] # "unseen"
  /\ pc = "idle" /\ pc' = "gather" => open = Slots
  /\ budget'["cut"] < budget["cut"] => \E s \in Slots : acks[s] # {} /\ s \notin open'
  /\ budget'["crash"] < budget["crash"] => pc \in {"idle", "run"}
(* And the broker takes nothing. *)
Untaken == Directed /\ \A c \in Copies : at'[c] # Acked
==============================================================================
