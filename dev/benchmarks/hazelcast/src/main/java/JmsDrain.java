import com.hazelcast.config.Config;
import com.hazelcast.core.Hazelcast;
import com.hazelcast.core.HazelcastInstance;
import com.hazelcast.function.FunctionEx;
import com.hazelcast.function.SupplierEx;
import com.hazelcast.jet.Job;
import com.hazelcast.jet.config.JobConfig;
import com.hazelcast.jet.config.ProcessingGuarantee;
import com.hazelcast.jet.core.JobStatus;
import com.hazelcast.jet.pipeline.Pipeline;
import com.hazelcast.jet.pipeline.Sinks;
import com.hazelcast.jet.pipeline.Sources;
import com.hazelcast.jet.pipeline.StreamSource;
import com.rabbitmq.jms.admin.RMQConnectionFactory;
import com.rabbitmq.jms.admin.RMQDestination;
import jakarta.jms.BytesMessage;
import jakarta.jms.ConnectionFactory;
import jakarta.jms.Message;
import jakarta.jms.MessageConsumer;
import jakarta.jms.Session;
import jakarta.jms.TextMessage;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.concurrent.atomic.LongAdder;
import org.apache.activemq.ActiveMQConnectionFactory;
import org.apache.activemq.artemis.jms.client.ActiveMQJMSConnectionFactory;

/**
 * Reads queues with Hazelcast's JMS source, guarantee exactly-once, a snapshot each second.
 *
 * <p>One line of standard input is one job: {@code broker url user password queue messages consumers}, separated by
 * spaces. The answer is {@code received} when so many messages have come through the pipeline. The next line, whatever
 * it is, ends the job; the answer is {@code stopped}. The session is committed by Hazelcast after each snapshot, so
 * the caller looks at the queue before it ends the job. A job that fails answers {@code failed} and the reason.
 * The member is the same for all jobs, so its JVM is warm from the second on.
 */
public final class JmsDrain {
    private static final long SNAPSHOT_INTERVAL_MS = 1000;
    private static final long POLL_MS = 5;
    /** Of all partitions of the running job; lambdas of the pipeline run in this JVM. */
    static final LongAdder COUNT = new LongAdder();

    private JmsDrain() {}

    public static void main(String[] arguments) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        HazelcastInstance member = Hazelcast.newHazelcastInstance(config());
        System.out.println("ready");
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split(" ");
            Job job = start(member, words);
            System.out.println(await(job, Long.parseLong(words[5])));
            lines.readLine();
            if (!job.getStatus().isTerminal()) {
                job.cancel();
                while (!job.getStatus().isTerminal()) {
                    Thread.sleep(POLL_MS);
                }
            }
            System.out.println("stopped");
        }
        member.shutdown();
    }

    private static Config config() {
        Config config = new Config();
        config.setProperty("hazelcast.phone.home.enabled", "false");
        config.setProperty("hazelcast.logging.type", "none");
        config.getJetConfig().setEnabled(true);
        config.getNetworkConfig().setPublicAddress("127.0.0.1");
        config.getNetworkConfig().getInterfaces().setEnabled(true).addInterface("127.0.0.1");
        config.getNetworkConfig().getJoin().getAutoDetectionConfig().setEnabled(false);
        config.getNetworkConfig().getJoin().getMulticastConfig().setEnabled(false);
        return config;
    }

    private static Job start(HazelcastInstance member, String[] words) {
        COUNT.reset();
        Pipeline pipeline = Pipeline.create();
        pipeline.readFrom(source(words[0], words[1], words[2], words[3], words[4]))
                .withoutTimestamps()
                .setLocalParallelism(Integer.parseInt(words[6]))
                .map(body -> {
                    COUNT.increment();
                    return body;
                })
                .writeTo(Sinks.noop());
        JobConfig config = new JobConfig()
                .setProcessingGuarantee(ProcessingGuarantee.EXACTLY_ONCE)
                .setSnapshotIntervalMillis(SNAPSHOT_INTERVAL_MS);
        return member.getJet().newJob(pipeline, config);
    }

    private static String await(Job job, long messages) throws InterruptedException {
        while (COUNT.sum() < messages) {
            if (job.getStatus() == JobStatus.FAILED) {
                return "failed " + reason(job);
            }
            Thread.sleep(POLL_MS);
        }
        return "received";
    }

    private static String reason(Job job) {
        try {
            job.join();
            return "without a reason";
        } catch (RuntimeException failed) {
            return String.valueOf(failed).replace('\n', ' ');
        }
    }

    private static StreamSource<byte[]> source(String broker, String url, String user, String password, String queue) {
        SupplierEx<ConnectionFactory> factory = () -> factory(broker, url);
        FunctionEx<Session, MessageConsumer> consumer = session -> broker.equals("rabbitmq")
                ? session.createConsumer(new RMQDestination(queue, "", queue, queue))
                : session.createConsumer(session.createQueue(queue));
        return Sources.jmsQueueBuilder(factory)
                .connectionParams(user, password)
                .consumerFn(consumer)
                .maxGuarantee(ProcessingGuarantee.EXACTLY_ONCE)
                .messageIdFn(JmsDrain::id)
                .build(JmsDrain::body);
    }

    private static ConnectionFactory factory(String broker, String url) throws Exception {
        switch (broker) {
            case "rabbitmq":
                RMQConnectionFactory rabbit = new RMQConnectionFactory();
                rabbit.setUri(url);
                return rabbit;
            case "activemq":
                return new ActiveMQConnectionFactory(url);
            default:
                return new ActiveMQJMSConnectionFactory(url);
        }
    }

    /** The message's own ID; Artemis gives none to what came over STOMP, whose producer's ID is the correlation ID. */
    private static String id(Message message) throws Exception {
        String own = message.getJMSMessageID();
        return own == null ? message.getJMSCorrelationID() : own;
    }

    private static byte[] body(Message message) throws Exception {
        if (message instanceof TextMessage) {
            return ((TextMessage) message).getText().getBytes(StandardCharsets.UTF_8);
        }
        BytesMessage bytes = (BytesMessage) message;
        byte[] body = new byte[(int) bytes.getBodyLength()];
        bytes.readBytes(body);
        return body;
    }
}
