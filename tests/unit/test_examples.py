"""The examples for a scheduler, as far as they can be read without one."""

from __future__ import annotations

import ast
import re
from typing import Any

from tests.support.pages import ROOT

DAG = ROOT / "examples" / "airflow_dag.py"
JOB = ROOT / "examples" / "scheduled.py"


def given(name: str) -> dict[str, Any]:
    """The arguments with a literal value of the one call of that name in the DAG."""
    tree = ast.parse(DAG.read_text("utf-8"))
    (call,) = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and ast.unparse(node.func) == name]
    literal = (ast.Constant, ast.List, ast.Dict)
    return {
        str(one.arg): ast.literal_eval(one.value)
        for one in call.keywords
        if isinstance(one.value, literal) and "timedelta" not in ast.unparse(one.value)
    }


def test_the_dag_has_one_run_at_a_time_and_makes_up_for_none() -> None:
    compile(DAG.read_text("utf-8"), DAG.name, "exec")
    arguments = given("DAG")
    assert (arguments["max_active_runs"], arguments["catchup"]) == (1, False)
    assert arguments["schedule"]
    assert "retries" in DAG.read_text("utf-8")


def test_the_dag_calls_the_job_as_it_wants_to_be_called() -> None:
    arguments = given("SparkSubmitOperator")
    (main,) = [
        node
        for node in ast.parse(JOB.read_text("utf-8")).body
        if isinstance(node, ast.FunctionDef) and node.name == "main"
    ]
    assert arguments["application"].endswith(f"/{JOB.name}")
    assert len(arguments["application_args"]) == len(main.args.args)
    assert {name for name in arguments["env_vars"] if name.startswith("MQ_")} <= {
        node.value for node in ast.walk(main) if isinstance(node, ast.Constant)
    }


def test_airflow_hides_the_url_of_the_broker_as_it_may_have_a_password() -> None:
    (variable,) = re.findall(r"\{\{ var\.value\.(\w+) \}\}", given("SparkSubmitOperator")["env_vars"]["MQ_URL"])
    assert "secret" in variable
    assert f"`{variable}`" in DAG.read_text("utf-8")


def test_the_line_of_cron_is_on_the_page_and_keeps_a_second_run_from_starting() -> None:
    text = (ROOT / "examples" / "crontab").read_text("utf-8")
    lines = "".join(f"{line}\n" for line in text.splitlines() if not line.startswith("#"))
    assert lines in (ROOT / "docs" / "operate.md").read_text("utf-8")
    *settings, line = lines.splitlines()
    when, _, command = line.partition(" spark ")
    assert len(when.split()) == 5
    # As the shell that cron starts reads it.
    for name, value in (setting.split("=", 1) for setting in settings):
        command = command.replace(f"${name}", value)
    assert command.startswith("flock -n /")
    assert f"/{JOB.name} " in command
    assert "$" not in command
