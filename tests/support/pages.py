"""The blocks of code on the pages, and what becomes of each: the test that runs it, or why none can.

A test that runs a block takes its text from here, so what is tested is what is printed.
"""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass
from pathlib import Path

__all__ = ["CANNOT", "LANGUAGES", "NO_CODE", "PAGES", "ROOT", "RUN_BY", "Block", "block", "blocks"]

ROOT = Path(__file__).resolve().parents[2]
#: What users read, by their path in the repository.
PAGES = ["README.md", *sorted(str(page.relative_to(ROOT)) for page in (ROOT / "docs").rglob("*.md"))]
#: Of blocks that somebody runs, writes into a file or gives to a broker.
LANGUAGES = {"dockerfile", "python", "sh", "sql", "xml", "yaml"}
#: Of others: what is printed, and what builds the site.
NO_CODE = {"", "{eval-rst}", "{toctree}"}

_FENCE = re.compile(r"^(?P<indent> *)```(?P<language>[^\n]*)\n(?P<text>.*?)^(?P=indent)```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Block:
    """A block between fences.

    Attributes:
        page: as in `PAGES`.
        language: the word behind the fence, empty if there is none.
        text: without indentation.
    """

    page: str
    language: str
    text: str

    @property
    def begin(self) -> str:
        """Its first line, without what a comment adds: by this it is known on its page."""
        return re.sub(r"(?<=\S)  +#.*", "", self.text.partition("\n")[0])


def blocks(page: str, *languages: str) -> list[Block]:
    """The blocks of a page in their order, in these languages or in all."""
    text = (ROOT / page).read_text("utf-8")
    found = [Block(page, match["language"].strip(), textwrap.dedent(match["text"])) for match in _FENCE.finditer(text)]
    return [one for one in found if not languages or one.language in languages]


def block(page: str, begin: str) -> str:
    """The text of the block with that first line.

    Raises:
        ValueError: there is none, or more than one.
    """
    found = [one.text for one in blocks(page) if one.begin == begin]
    if len(found) != 1:
        raise ValueError(f"{page} has {len(found)} blocks that begin with {begin!r}")
    return found[0]


_PAGES = "integration/test_pages.py"
_INSTALLS = (
    "installs from the package index, which does not have the version that is tested; "
    "`make release-check` installs the wheel, with its extras, into empty environments"
)
_WHEELS = "builds the wheel, or installs it; `make release-check` does both, in empty environments"
_PACKAGES = "fetches JARs; test_sinks_with_jars.py runs the example with those that set-up has fetched, and with kills"
_EXAMPLE = "stands in the example, which test_sinks_with_jars.py runs with kills"
_RECURSES = (
    "runs tests or measures for minutes to hours; `test_every_make_command_is_one` reads it as make and program do"
)
_VENDOR = "is for a vendor's cloud, which no test has; test_pages.py runs the programs that such blocks start"
_KUBERNETES = (
    "needs a registry with Spark's image, and a Kubernetes; "
    "`test_every_setting_of_spark_on_the_pages_is_one` looks for the settings in Spark"
)

#: Page -> first line of a block -> the test that runs it: file below `tests`, and function.
RUN_BY: dict[str, dict[str, str]] = {
    "docs/streams.md": {"df = (": "integration/test_streams.py::test_the_code_of_its_page_reads_a_stream"},
    "README.md": {"df = (": f"{_PAGES}::test_the_first_lines_read_a_queue"},
    "docs/request-reply.md": dict.fromkeys(
        (
            'answers = requests.filter("replyTo is not null").selectExpr(',
            'names = "^(answers$|answers[.]|temp-queue://)"',
            'columns = ["body", "id AS correlationId", "\'answers\' AS replyTo"]',
        ),
        "integration/test_sink.py::test_the_code_of_the_page_answers_and_asks",
    ),
    "docs/command-line.md": dict.fromkeys(
        (
            "pyspark-mq inspect /data/checkpoints/orders",
            "pyspark-mq peek --from job.json",
            "pyspark-mq release /data/checkpoints/orders",
            "pyspark-mq repair /data/checkpoints/orders --sink /data/orders",
            "pyspark-mq doctor --from job.json managementUrl=http://mq.example:15672",
        ),
        f"{_PAGES}::test_every_command_of_its_page",
    ),
    "docs/deploy.md": {
        'os.environ.setdefault("PYSPARK_PYTHON", sys.executable)': (
            f"{_PAGES}::test_the_python_of_the_workers_is_the_one_that_runs"
        ),
        "export PYSPARK_PYTHON=/opt/venv/bin/python": (
            "integration/test_spark_cluster.py::test_the_command_of_the_page_reads_a_queue"
        ),
        "from pyspark.sql import SparkSession": "integration/test_connect.py::test_a_client_reads_a_queue",
        **dict.fromkeys(
            ("python3 -m venv env", "export PYSPARK_PYTHON=./env/bin/python"),
            "integration/test_yarn.py::test_a_driver_and_an_executor_of_yarn_that_die_take_nothing_with_them",
        ),
        **dict.fromkeys(
            ("# doctor.py", "spark-submit doctor.py broker=rabbitmq queue=orders \\", "# orders.py"),
            f"{_PAGES}::test_a_vendor_s_cluster_is_checked_and_its_job_reads_a_queue",
        ),
        **dict.fromkeys(
            ("# on Databricks", "import runpy", "# on Fabric"),
            f"{_PAGES}::test_a_notebook_reads_a_queue_and_checks_its_cluster",
        ),
    },
    "docs/pipelines.md": dict.fromkeys(
        ("# spark-pipeline.yml", "# transformations/orders.py", "spark-pipelines --remote sc://server:15002 run"),
        "integration/test_pipelines.py::test_a_table_of_a_pipeline_has_each_message_once_and_outlives_a_full_refresh",
    ),
    "docs/monitor.md": {
        "# alerts.yml": "unit/test_listener.py::test_the_dashboard_and_the_alerts_ask_for_metrics_that_there_are",
        "from opentelemetry.exporter.otlp.proto.http.metric_exporter import (": (
            "unit/test_listener.py::test_the_listener_of_the_page_pushes_its_metrics"
        ),
        "from pyspark_mq import QueueListener": f"{_PAGES}::test_a_line_a_minute_and_prometheus",
        "from pyspark_mq import readings": f"{_PAGES}::test_the_counters_can_be_read",
        'spark.streams.addListener(QueueListener(prometheus="localhost:9464"))': (
            f"{_PAGES}::test_a_line_a_minute_and_prometheus"
        ),
    },
    "docs/brokers.md": {
        **dict.fromkeys(
            ("import pika", 'rabbitmqctl add_user spark "$PASSWORD"'),
            f"{_PAGES}::test_rabbitmq_takes_the_settings_of_the_page",
        ),
        '<policyEntry queue="orders" useCache="false"/>': f"{_PAGES}::test_activemq_takes_the_settings_of_the_page",
        '<transportConnector name="stomp"': f"{_PAGES}::test_activemq_takes_the_settings_of_the_page",
        '<transportConnector name="amqp"': f"{_PAGES}::test_activemq_takes_the_settings_of_the_page",
        '<authorizationEntry queue="orders"': f"{_PAGES}::test_activemq_takes_the_settings_of_the_page",
        '<address-setting match="orders">': f"{_PAGES}::test_artemis_takes_the_settings_of_the_page",
    },
    "docs/operate.md": dict.fromkeys(
        ('checkpoint = "/data/checkpoints/orders"', "pyspark-mq repair /data/checkpoints/orders --sink /data/orders"),
        f"{_PAGES}::test_what_lost_power_is_repaired",
    )
    | {"query = (": "integration/test_write.py::test_a_scheduled_job_takes_what_is_there_and_ends"},
    "docs/quick-start.md": dict.fromkeys(
        ("# publish.py", "python publish.py", "# job.py", "python job.py"),
        "integration/test_quick_start.py::test_the_blocks_run_one_after_the_other",
    ),
    "docs/write-to-queues.md": dict.fromkeys(
        (
            "query = (",
            'url = "amqp://guest:guest@localhost:5672/"',
            "def write(batch, number):",
        ),
        "integration/test_sink.py::test_the_code_of_the_pages_writes",
    ),
    "docs/sinks.md": {
        "from pyspark.sql.functions import col, expr, from_json, try_validate_utf8": (
            "integration/test_sinks.py::test_the_code_of_the_page_sorts_into_folders"
        ),
        'rows = spark.read.parquet("rows")': (
            "integration/test_sinks.py::test_the_code_of_the_page_sorts_into_folders"
        ),
        "def write(batch, batch_id):": (
            "integration/test_sinks_with_jars.py::test_the_code_of_the_page_writes_each_delta_table_once"
        ),
        "def merge(batch, batch_id):": (
            "integration/test_sinks_with_jars.py::test_the_code_of_the_page_merges_each_message_once"
        ),
        "from pyspark.sql.functions import col, from_json, try_validate_utf8": (
            f"{_PAGES}::test_bad_rows_are_dead_lettered"
        ),
    },
    "docs/formats.md": {
        "import json": "integration/test_formats.py::test_avro_of_two_schemas_has_the_columns_of_the_newest",
        "from google.protobuf.message import DecodeError": (
            "integration/test_formats.py::test_protobuf_is_read_by_its_class"
        ),
        "from pyspark.sql.functions import expr, from_json, when": (
            "integration/test_formats.py::test_json_behind_the_number_of_its_schema"
        ),
    },
    "docs/tuning.md": {
        "# sitecustomize.py": "integration/test_formats.py::test_the_file_of_the_page_logs_everything",
        "options = {": "unit/test_options.py::test_the_options_of_the_page_hold_ten_seconds_of_messages_of_4_kib",
    },
    "docs/versions.md": {
        'python -c "import pyspark.sql.streaming.datasource"': f"{_PAGES}::test_which_column_is_yours"
    },
    "docs/errors.md": {
        'spark.sql("CREATE TABLE orders (messageId STRING, body BINARY) USING mq")': (
            f"{_PAGES}::test_a_table_of_sql_is_read_with_the_options_of_the_stream"
        ),
    },
}

#: Page -> first line of a block -> why no test can run it as it is, and what stands for it.
CANNOT: dict[str, dict[str, str]] = {
    "README.md": {
        "pip install pyspark-mq": _INSTALLS,
    },
    "docs/reports/audits.md": {"make demo BROKER=artemis": _RECURSES},
    "docs/reports/comparison.md": {"make compare": _RECURSES},
    "docs/deploy.md": {
        "FROM apache/spark:4.3.0-python3": _KUBERNETES,
        "spark-submit --master k8s://https://... --deploy-mode cluster \\": _KUBERNETES,
        "# on each machine, in the Python that PYSPARK_PYTHON names": _INSTALLS,
        "pip wheel . -w wheels": _WHEELS,
        "pip install --no-index --find-links wheels pyspark-mq": _WHEELS,
        **dict.fromkeys(
            (
                "databricks secrets create-scope mq",
                "# install.sh in s3://bucket/mq",
                "aws emr create-cluster --name mq --release-label emr-spark-8.0.0 \\",
                "# install.sh in gs://bucket/mq",
                "gcloud config set dataproc/region europe-west3",
            ),
            _VENDOR,
        ),
    },
    "docs/brokers.md": {
        "pyspark-mq doctor broker=rabbitmq queue=orders \\": (
            "names a broker of AWS; test_doctor.py runs the command under such a name"
        ),
    },
    "docs/operate.md": dict.fromkeys(
        ("# databricks.yml", 'aws emr add-steps --cluster-id "$CLUSTER" --steps \'[{'), _VENDOR
    ),
    "docs/reports/benchmarks.md": {"make bench": _RECURSES, 'make bench ARGS="guarantees --page"': _RECURSES},
    "docs/quick-start.md": {"python3 -m venv mq && . mq/bin/activate": _INSTALLS},
    "docs/reports/specification.md": {"make spec": _RECURSES},
    "docs/sinks.md": {
        "pip install 'psycopg[binary]'": "installs, and starts examples that test_sinks.py runs with kills",
        "INSERT INTO batches AS b VALUES (query, batch)": (
            "a statement of examples/to_postgres.py with names in place of values; test_sinks.py runs that"
        ),
        "spark-submit --packages io.delta:delta-spark_4.2_2.13:4.4.0 \\": _PACKAGES,
        'writer = messages.writeStream.format("delta")': _EXAMPLE,
        "spark-submit --packages org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0 \\": _PACKAGES,
        "query = (": _EXAMPLE,
    },
}
