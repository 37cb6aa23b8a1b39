import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.concurrent.atomic.LongAdder;
import org.apache.flink.api.common.JobStatus;
import org.apache.flink.api.common.RuntimeExecutionMode;
import org.apache.flink.api.common.restartstrategy.RestartStrategies;
import org.apache.flink.api.common.serialization.AbstractDeserializationSchema;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.core.execution.JobClient;
import org.apache.flink.streaming.api.CheckpointingMode;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.sink.DiscardingSink;
import org.apache.flink.streaming.connectors.rabbitmq.RMQSource;
import org.apache.flink.streaming.connectors.rabbitmq.common.RMQConnectionConfig;

/**
 * Reads queues of RabbitMQ with Flink's RMQSource, exactly once as its documentation says (checkpoints, correlation IDs,
 * parallelism 1, a prefetch count), a checkpoint each second, into nothing.
 *
 * <p>One line of standard input is one job: {@code host port user password queue messages checkpoints}, separated by
 * spaces. The answer is {@code received} when so many messages have come through. The next line, whatever it is, ends
 * the job; the answer is {@code stopped}. The source acknowledges after each checkpoint, so the caller looks at the
 * queue before it ends the job. A job that fails answers {@code failed}. The JVM is the same for all jobs, so it is warm
 * from the second on.
 */
public final class FlinkDrain {
    private static final long CHECKPOINT_INTERVAL_MS = 1000;
    private static final int PREFETCH = 65_535;
    private static final long POLL_MS = 5;
    /** Of the running job, whose operators run in this JVM. */
    static final LongAdder COUNT = new LongAdder();

    private FlinkDrain() {}

    public static void main(String[] arguments) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        System.out.println("ready");
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split(" ");
            COUNT.reset();
            JobClient job = start(words);
            System.out.println(await(job, Long.parseLong(words[5])));
            lines.readLine();
            if (!status(job).isGloballyTerminalState()) {
                job.cancel().get();
                while (!status(job).isGloballyTerminalState()) {
                    Thread.sleep(POLL_MS);
                }
            }
            System.out.println("stopped");
        }
        System.exit(0);
    }

    private static JobClient start(String[] words) throws Exception {
        Configuration settings = new Configuration();
        settings.setString("state.checkpoints.dir", Path.of(words[6]).toUri().toString());
        settings.setString("rest.bind-port", "0");
        StreamExecutionEnvironment environment = StreamExecutionEnvironment.createLocalEnvironment(1, settings);
        environment.setRuntimeMode(RuntimeExecutionMode.STREAMING);
        environment.enableCheckpointing(CHECKPOINT_INTERVAL_MS, CheckpointingMode.EXACTLY_ONCE);
        environment.setRestartStrategy(RestartStrategies.noRestart());
        RMQConnectionConfig connection = new RMQConnectionConfig.Builder()
                .setHost(words[0])
                .setPort(Integer.parseInt(words[1]))
                .setVirtualHost("/")
                .setUserName(words[2])
                .setPassword(words[3])
                .setPrefetchCount(PREFETCH)
                .build();
        environment.addSource(new Source(connection, words[4]))
                .setParallelism(1)
                .addSink(new DiscardingSink<>());
        return environment.executeAsync("drain");
    }

    private static JobStatus status(JobClient job) throws Exception {
        try {
            return job.getJobStatus().get();
        } catch (IllegalStateException ended) { // with its job the local cluster is gone
            return JobStatus.CANCELED;
        }
    }

    private static String await(JobClient job, long messages) throws Exception {
        while (COUNT.sum() < messages) {
            if (status(job).isGloballyTerminalState()) {
                return "failed";
            }
            Thread.sleep(POLL_MS);
        }
        return "received";
    }

    /** Takes the queue as it is, where RMQSource declares a classic one. */
    public static final class Source extends RMQSource<byte[]> {
        Source(RMQConnectionConfig connection, String queue) {
            super(connection, queue, true, new Counted());
        }

        @Override
        protected void setupQueue() {}
    }

    /** The body, counted. */
    public static final class Counted extends AbstractDeserializationSchema<byte[]> {
        @Override
        public byte[] deserialize(byte[] body) {
            COUNT.increment();
            return body;
        }
    }
}
