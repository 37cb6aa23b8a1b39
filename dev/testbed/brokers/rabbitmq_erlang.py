"""What a private RabbitMQ node is asked to evaluate in its own language, Erlang.

Most of these functions are undocumented; they were tried on RabbitMQ 3.10, 4.0 and 4.3. On a
release without them a node still starts, and what asks for counts fails with their name.
"""

from __future__ import annotations

__all__ = ["CATCH_UP", "COUNTS", "PRELOAD", "SYNC"]

# Modules of `rabbit`, of all applications it depends on, and of mnesia, which is started but not
# among them. The `catch`: this only saves time, so a release it does not fit boots without it.
PRELOAD = """
catch begin
  Add = fun Add(App, Seen) ->
    case lists:keymember(App, 1, Seen) of
      true -> Seen;
      false ->
        {ok, [{application, _, Spec}]} =
          file:consult(code:where_is_file(atom_to_list(App) ++ ".app")),
        Modules = proplists:get_value(modules, Spec, []),
        lists:foldl(Add, [{App, Modules} | Seen], proplists:get_value(applications, Spec, []))
    end
  end,
  Apps = lists:foldl(Add, [], [rabbit, mnesia]),
  code:ensure_modules_loaded(lists:append([Modules || {_, Modules} <- Apps]))
end.
"""

# A new leader counts before it has gone through the log again, and says too little. A command
# is answered after all that was logged before it, so one that does nothing is waited for.
CATCH_UP = """
lists:all(
  fun(Queue) ->
    amqqueue:get_type(Queue) =/= rabbit_quorum_queue orelse
      element(1, ra:process_command(
        amqqueue:get_pid(Queue), rabbit_fifo:make_garbage_collection(), 10000)) =:= ok
  end,
  rabbit_amqqueue:list())
"""

# A quorum queue publishes its counts every five seconds only, so its state machine is asked: with a function
# by its name, which is all that later versions take, or with one made here, which is all that early ones take.
# What a delayed retry holds back (from 4.3 on) is waiting, too.
COUNTS = """
case rabbit_amqqueue:lookup(rabbit_misc:r(<<"/">>, queue, <<{name}>>)) of
  {{ok, Queue}} ->
    case amqqueue:get_type(Queue) of
      rabbit_quorum_queue ->
        Leader = amqqueue:get_pid(Queue),
        {{ok, {{_, Seen}}, _}} =
          try ra:leader_query(Leader, {{rabbit_fifo, overview, []}})
          catch error:_ -> ra:leader_query(Leader, fun(State) -> rabbit_fifo:overview(State) end)
          end,
        #{{num_ready_messages := Ready, num_checked_out := Unacked}} = Seen,
        {{Ready + maps:get(num_delayed_messages, Seen, 0), Unacked}};
      _ ->
        [{{_, Ready}}, {{_, Unacked}}] =
          rabbit_amqqueue:info(Queue, [messages_ready, messages_unacknowledged]),
        {{Ready, Unacked}}
    end;
  {{error, not_found}} -> not_found
end.
"""

# Killed within its first seconds, RabbitMQ 3.10 forgets what it has declared: mnesia's log is
# written late, and so is the table of the logs of quorum queues, without which such a queue
# forgets all that was confirmed and elects no leader.
# Newer versions keep that in Khepri, which syncs by itself.
SYNC = (
    "case mnesia:system_info(is_running) of yes -> ok = mnesia:sync_log(); _ -> ok end, "
    "[dets:sync(Table) || Table <- dets:all()]"
)
