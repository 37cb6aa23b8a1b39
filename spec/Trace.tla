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

(* Two steps of the code that the specification does not have, see docs/specification.md, "Where the code differs".
   What was acknowledged, came again and was acknowledged again is confirmed by the newer session alone: the older one,
   whose end the source does not know yet, waits for nothing any more. *)
TakenWhole(i) == \A c \in Copies : Id(c) = i => at[c] = Acked
ConfirmAgain(i) ==
  /\ Up /\ TakenWhole(i) /\ \A s \in alive : \A c \in acks[s] : Id(c) # i
  /\ mem' = [mem EXCEPT ![i] = "confirmed"] /\ note' = ""
  /\ UNCHANGED <<broker, links, taking, adopted, buffer, next, spark, still, left>>
(* The end of one session of a queue says nothing of what another one of it has confirmed, and that still lives. *)
ExpireBeside(i) ==
  /\ Up /\ mem[i] = "carried" /\ TakenWhole(i) /\ ~Connected(i[1]) /\ SlotsOf(i[1]) \cap open # {}
  /\ mem' = [mem EXCEPT ![i] = "settled"] /\ recent' = {c \in recent : Id(c) # i} /\ note' = ""
  /\ UNCHANGED <<at, counted, links, taking, adopted, buffer, next, spark, still, left>>

Step ==
  \/ Is("start")   /\ Start
  \/ Is("latest")  /\ Latest
  \/ Is("plan")    /\ \A one \in Queues : Len(Event[2][one]) <= Len(buffer[one])
                   /\ Plan([q \in Queues |-> Len(Event[2][q])])
                   /\ end'.planned = Event[2] /\ end'.carried = Event[3] /\ end'.blind = Event[4]
  (* It may wait for more messages than one. *)
  \/ Is("nothing") /\ Up /\ pc = "gather" /\ pc' = "idle" /\ note' = ""
                   /\ UNCHANGED <<broker, links, source, start, end, sink, output, still, left>>
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
  (* One that comes when another session has ended, or the bound is over, changes nothing any more. *)
  \/ Is("confirm") /\ IF mem[Event[2]] = "sent" THEN Confirm(Event[2]) \/ ConfirmAgain(Event[2])
                       ELSE mem[Event[2]] \in {"confirmed", "carried", "settled"} /\ UNCHANGED vars
  \/ (Is("expire") \/ Is("drop")) /\ (Expire(Event[2]) \/ ExpireBeside(Event[2]))    \* dropped: by time alone
  \/ Is("kill")    /\ Event[2] \subseteq recent /\ KillBroker(Event[2])
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
TraceNext == /\ \/ Step /\ place' = place + 1
                \/ Unseen /\ UNCHANGED place
             /\ UNCHANGED trace
TraceSpec == TraceInit /\ [][TraceNext]_<<vars, trace, place>>

Accepted == AtEnd => PrintT(<<"accepted", trace>>)
Always == AcknowledgedIsCommitted /\ NothingTwice
==============================================================================
