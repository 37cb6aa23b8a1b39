"""A DAG for Airflow 2.4 and later: every 15 minutes what the queue holds, one run at a time.

It needs the provider `apache-airflow-providers-apache-spark`, a connection `spark_default`, and a variable
`orders_mq_url_secret` with the URL of the broker (Airflow hides variables whose name has `secret` or `password`).
"""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

from airflow import DAG
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator

with DAG(
    dag_id="orders",
    schedule="*/15 * * * *",
    start_date=datetime(2026, 1, 1, tzinfo=timezone.utc),
    # A queue has no history to make up for, and two runs would take each other's messages.
    catchup=False,
    max_active_runs=1,
    default_args={"retries": 3, "retry_delay": timedelta(minutes=1)},
) as dag:
    SparkSubmitOperator(
        task_id="drain",
        conn_id="spark_default",
        application="/opt/jobs/scheduled.py",
        application_args=["/data/checkpoints/orders", "/data/orders"],
        env_vars={"MQ_URL": "{{ var.value.orders_mq_url_secret }}", "PYSPARK_PYTHON": "/opt/venv/bin/python"},
        execution_timeout=timedelta(minutes=30),
    )
