-------------------------------- MODULE Trace --------------------------------
(* Is what the code did a behaviour of the specification? Each trace is what one run wrote down, event by event
   (tests/support/traces.py). Here each event is a step of the specification that looks the same. Between events only
   what nobody can see may happen, and only where the next event needs it. A trace that can be followed to its end is
   accepted. *)
EXTENDS Properties, TLC

CONSTANT Traces
VARIABLES trace, place

ASSUME TLCSet(1, Traces)    \* read once, not at each look
Told(t)  == TLCGet(1)[t]
Event    == Told(trace)[place]
AtEnd    == place > Len(Told(trace))
Is(kind) == ~AtEnd /\ Event[1] = kind

(* In a trace RememberLeft and DedupWindow are so large that nothing is forgotten, so nothing has to be counted: whoever
   checks traces may put these in the place of Forget and Count. Confirmations and signs of life are not in it: without
   them more is left, and nothing is known that would not be. *)
ForgetNothing(list, bound) == list
CountNothing(past, list, bound) == past

Step ==
  \/ Is("start")   /\ Start
  \/ Is("latest")  /\ Latest
  \/ Is("plan")    /\ \A one \in Queues : Len(Event[2][one]) <= Len(buffer[one])
                   /\ Plan([q \in Queues |-> Len(Event[2][q])])
                   /\ next'.planned = Event[2]
  (* It may wait for more messages than one. *)
  \/ Is("nothing") /\ Up /\ pc = "gather" /\ pc' = "idle" /\ note' = ""
                   /\ UNCHANGED <<broker, links, source, journal, sink, output, still, budget>>
  \/ Is("run")     /\ Run
  \/ Is("replay")  /\ Replay
  \/ Is("sink")    /\ Emit /\ Batch = Event[2]
  \/ Is("commit")  /\ CommitLog
  \/ Is("crash")   /\ Crash
  \/ Is("release") /\ Release
  \/ Is("open")    /\ Open(Event[2])
  \/ Is("lose")    /\ Cut(Event[2])
  \/ Is("deliver") /\ (Deliver(Event[2], Event[3]) \/ DeliverLate(Event[2], Event[3]))
  (* The source asks for it; on its way it is from the call on that proved the commit. *)
  \/ Is("acknowledge") /\ Event[3] \in acks[Event[2]] /\ UNCHANGED vars
  \/ Is("take")    /\ at[Event[2]] \in Slots /\ Take(at[Event[2]], Event[2])
  \/ Is("kill")    /\ Event[2] \subseteq {r[1] : r \in recent} /\ KillBroker(Event[2])
  \/ Is("depart")  /\ Depart(Event[2])
  \/ Is("return")  /\ Return(Event[2])

(* The copy of the next event is still where the broker has not noticed an end; or messages are given up. *)
Unseen ==
  LET c == IF Is("deliver") THEN Event[3] ELSE Event[2]
  IN \/ (Is("deliver") \/ Is("depart")) /\ at[c] = Ghost /\ Notice(c)
     \/ (Is("deliver") \/ Is("depart")) /\ at[c] \in Slots /\ Silence(at[c])
     \/ Is("deliver") /\ at[c] = Away /\ Event[2] \in alive /\ Silence(Event[2])
     \/ Is("sink") /\ GiveUp

TraceInit == Init /\ trace \in DOMAIN Traces /\ place = 1
(* What was planned is in the offset log; what is not, is in no trace. *)
TraceNext == /\ IF pc = "filed" THEN Log /\ UNCHANGED place
                ELSE \/ Step /\ place' = place + 1
                     \/ Unseen /\ UNCHANGED place
             /\ UNCHANGED trace
TraceSpec == TraceInit /\ [][TraceNext]_<<vars, trace, place>>

Accepted == AtEnd => PrintT(<<"accepted", trace>>)
Always == AcknowledgedIsCommitted /\ NothingTwice
==============================================================================
