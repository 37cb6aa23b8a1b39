import com.hazelcast.config.Config;
import com.hazelcast.config.TcpIpConfig;
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
import java.nio.charset.StandardCharsets;
import org.apache.activemq.artemis.jms.client.ActiveMQJMSConnectionFactory;

/**
 * A member of a Hazelcast cluster with one job: a queue into files, exactly once.
 *
 * <p>Arguments: {@code broker url user password queue output port port-of-another...}. The job takes a snapshot each
 * second. It is suspended when it fails, which keeps its snapshot, and resumed by whichever member sees that.
 */
public final class JmsMember {
    private static final long SNAPSHOT_INTERVAL_MS = 1000;
    private static final long LOOK_MS = 1000;
    private static final int MARK_CHARS = 36;

    private JmsMember() {}

    public static void main(String[] arguments) throws Exception {
        HazelcastInstance member = Hazelcast.newHazelcastInstance(config(arguments));
        Pipeline pipeline = Pipeline.create();
        pipeline.readFrom(source(arguments[0], arguments[1], arguments[2], arguments[3], arguments[4]))
                .withoutTimestamps()
                .writeTo(Sinks.<String>filesBuilder(arguments[5]).exactlyOnce(true).build());
        JobConfig config = new JobConfig()
                .setName("comparison")
                .setProcessingGuarantee(ProcessingGuarantee.EXACTLY_ONCE)
                .setSnapshotIntervalMillis(SNAPSHOT_INTERVAL_MS)
                .setSuspendOnFailure(true);
        JobStatus before = null;
        while (true) {
            Thread.sleep(LOOK_MS);
            try {
                Job job = member.getJet().getJob("comparison");
                if (job == null || job.getStatus() == JobStatus.FAILED) {
                    System.err.println(job == null ? "submits the job" : "submits the job again: it has failed");
                    job = member.getJet().newJobIfAbsent(pipeline, config);
                }
                JobStatus status = job.getStatus();
                if (status != before) {
                    System.err.println("job " + job.getIdString() + " is " + status);
                    before = status;
                }
                if (status == JobStatus.SUSPENDED) {
                    System.err.println("resumes after: " + String.valueOf(job.getSuspensionCause().errorCause())
                            .lines().limit(3).reduce("", (all, line) -> all + " " + line.strip()));
                    job.resume();
                }
            } catch (RuntimeException later) {
                System.err.println("asks again: " + later);
            }
        }
    }

    private static Config config(String[] arguments) {
        Config config = new Config();
        config.setProperty("hazelcast.phone.home.enabled", "false");
        config.setProperty("hazelcast.logging.type", "slf4j");
        config.getJetConfig().setEnabled(true);
        config.getNetworkConfig().setPort(Integer.parseInt(arguments[6])).setPortAutoIncrement(false);
        config.getNetworkConfig().setPublicAddress("127.0.0.1:" + arguments[6]);
        config.getNetworkConfig().getInterfaces().setEnabled(true).addInterface("127.0.0.1");
        config.getNetworkConfig().getJoin().getAutoDetectionConfig().setEnabled(false);
        config.getNetworkConfig().getJoin().getMulticastConfig().setEnabled(false);
        TcpIpConfig members = config.getNetworkConfig().getJoin().getTcpIpConfig().setEnabled(true);
        for (int place = 6; place < arguments.length; place++) {
            members.addMember("127.0.0.1:" + arguments[place]);
        }
        return config;
    }

    private static StreamSource<String> source(String broker, String url, String user, String password, String queue) {
        SupplierEx<ConnectionFactory> factory = () -> factory(broker, url);
        FunctionEx<Session, MessageConsumer> consumer = session -> broker.equals("rabbitmq")
                ? session.createConsumer(new RMQDestination(queue, "", queue, queue))
                : session.createConsumer(session.createQueue(queue));
        return Sources.jmsQueueBuilder(factory)
                .connectionParams(user, password)
                .consumerFn(consumer)
                .maxGuarantee(ProcessingGuarantee.EXACTLY_ONCE)
                .messageIdFn(JmsMember::id)
                .build(JmsMember::mark);
    }

    private static ConnectionFactory factory(String broker, String url) throws Exception {
        if (!broker.equals("rabbitmq")) {
            return new ActiveMQJMSConnectionFactory(url);
        }
        RMQConnectionFactory rabbit = new RMQConnectionFactory();
        rabbit.setUri(url);
        return rabbit;
    }

    /** The message's own ID; Artemis gives none to what came over STOMP, whose producer's ID is the correlation ID. */
    private static String id(Message message) throws Exception {
        String own = message.getJMSMessageID();
        return own == null ? message.getJMSCorrelationID() : own;
    }

    /** What a message is known by: the first characters of its body. */
    private static String mark(Message message) throws Exception {
        if (message instanceof TextMessage) {
            return ((TextMessage) message).getText().substring(0, MARK_CHARS);
        }
        byte[] start = new byte[MARK_CHARS];
        ((BytesMessage) message).readBytes(start);
        return new String(start, StandardCharsets.US_ASCII);
    }
}
