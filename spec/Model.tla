-------------------------------- MODULE Model --------------------------------
(* Sizes for the checker, by name: tools/spec.py puts them together. *)
EXTENDS Properties, TLC

OneQueue   == {<<"a", 1, 1>>, <<"a", 2, 1>>}
Three      == {<<"a", 1, 1>>, <<"a", 2, 1>>, <<"a", 3, 1>>}
TwoQueues  == {<<"a", 1, 1>>, <<"a", 2, 1>>, <<"b", 1, 1>>}
OneEach    == {<<"a", 1, 1>>, <<"b", 1, 1>>}
Repeated   == {<<"a", 1, 1>>, <<"a", 1, 2>>, <<"a", 2, 1>>}
SlotEach   == {<<"a", 1>>, <<"b", 1>>}
OneSlot    == {<<"a", 1>>}
TwoSlots   == {<<"a", 1>>, <<"a", 2>>}
OddFirst   == {<<"a", 1, 1>>}
One        == {<<"a", 1, 1>>}
Nobody     == {}

==============================================================================
