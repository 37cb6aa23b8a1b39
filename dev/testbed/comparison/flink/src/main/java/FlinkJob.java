import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Comparator;
import java.util.List;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.apache.flink.api.common.RuntimeExecutionMode;
import org.apache.flink.api.common.restartstrategy.RestartStrategies;
import org.apache.flink.api.common.serialization.AbstractDeserializationSchema;
import org.apache.flink.api.common.serialization.SimpleStringEncoder;
import org.apache.flink.api.common.time.Time;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.connector.file.sink.FileSink;
import org.apache.flink.streaming.api.CheckpointingMode;
import org.apache.flink.streaming.api.environment.CheckpointConfig;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.sink.filesystem.rollingpolicies.OnCheckpointRollingPolicy;
import org.apache.flink.streaming.connectors.rabbitmq.RMQSource;
import org.apache.flink.streaming.connectors.rabbitmq.common.RMQConnectionConfig;

/**
 * A queue of RabbitMQ into files, exactly once: RMQSource as its documentation says (checkpoints, correlation IDs,
 * parallelism 1, a prefetch count), and FileSink, which is exactly-once with checkpoints.
 *
 * <p>Arguments: {@code host port queue output checkpoints}. A failure of the job restarts it within the process, from
 * the last checkpoint. A process that was killed goes on from the last checkpoint that it has left.
 */
public final class FlinkJob {
    private static final long CHECKPOINT_INTERVAL_MS = 1000;
    private static final int PREFETCH = 30_000;
    private static final int MARK_CHARS = 36;

    private FlinkJob() {}

    public static void main(String[] arguments) throws Exception {
        Path checkpoints = Path.of(arguments[4]);
        Files.createDirectories(checkpoints);
        Configuration settings = new Configuration();
        settings.setString("state.checkpoints.dir", checkpoints.toUri().toString());
        settings.setString("state.checkpoints.num-retained", "3");
        settings.setString("rest.bind-port", "0");
        List<Path> kept = kept(checkpoints);
        if (!kept.isEmpty()) {
            System.err.println("goes on from " + kept.get(0));
            settings.setString("execution.savepoint.path", kept.get(0).toUri().toString());
        }
        StreamExecutionEnvironment environment = StreamExecutionEnvironment.createLocalEnvironment(1, settings);
        environment.setRuntimeMode(RuntimeExecutionMode.STREAMING);
        environment.enableCheckpointing(CHECKPOINT_INTERVAL_MS, CheckpointingMode.EXACTLY_ONCE);
        environment.getCheckpointConfig().setExternalizedCheckpointCleanup(
                CheckpointConfig.ExternalizedCheckpointCleanup.RETAIN_ON_CANCELLATION);
        environment.setRestartStrategy(RestartStrategies.fixedDelayRestart(Integer.MAX_VALUE, Time.seconds(1)));
        RMQConnectionConfig connection = new RMQConnectionConfig.Builder()
                .setHost(arguments[0])
                .setPort(Integer.parseInt(arguments[1]))
                .setVirtualHost("/")
                .setUserName("guest")
                .setPassword("guest")
                .setPrefetchCount(PREFETCH)
                .build();
        FileSink<String> sink = FileSink
                .forRowFormat(new org.apache.flink.core.fs.Path(Path.of(arguments[3]).toUri()),
                        new SimpleStringEncoder<String>("US-ASCII"))
                .withRollingPolicy(OnCheckpointRollingPolicy.build())
                .build();
        environment.addSource(new RMQSource<>(connection, arguments[2], true, new Mark()))
                .setParallelism(1).uid("source")
                .sinkTo(sink).uid("sink");
        environment.execute("comparison");
    }

    /** The checkpoints that were completed, the newest first. */
    private static List<Path> kept(Path checkpoints) throws IOException {
        try (Stream<Path> found = Files.walk(checkpoints, 3)) {
            return found.filter(file -> file.getFileName().toString().equals("_metadata"))
                    .sorted(Comparator.comparingLong((Path file) -> file.toFile().lastModified()).reversed())
                    .map(Path::getParent)
                    .collect(Collectors.toList());
        }
    }

    /** What a message is known by: the first characters of its body. */
    public static final class Mark extends AbstractDeserializationSchema<String> {
        @Override
        public String deserialize(byte[] body) {
            return new String(body, 0, MARK_CHARS, StandardCharsets.US_ASCII);
        }
    }
}
