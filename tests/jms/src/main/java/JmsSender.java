import java.util.ArrayList;
import java.util.Date;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import javax.jms.BytesMessage;
import javax.jms.Connection;
import javax.jms.ConnectionFactory;
import javax.jms.DeliveryMode;
import javax.jms.Destination;
import javax.jms.JMSException;
import javax.jms.MapMessage;
import javax.jms.Message;
import javax.jms.MessageProducer;
import javax.jms.ObjectMessage;
import javax.jms.Session;
import javax.jms.StreamMessage;

/** Sends one JMS message of each kind to a queue, and prints what the client gave each: a JSON object a line. */
public final class JmsSender {
    private static final int PRIORITY = 7;
    private static final long TIME_TO_LIVE_MS = 600_000;
    private static final Set<Map.Entry<String, Maker>> NOTHING = Set.of();

    private interface Maker {
        Message make(Session session) throws JMSException;
    }

    /**
     * Arguments: client (activemq, artemis or qpid), url, user, password, queue. With further ones, a name and a value
     * each, it is a text with that property for each of them; one called "text" is the text itself, with \0 for a NUL.
     */
    public static void main(String[] arguments) throws Exception {
        try (AutoConnection connection = new AutoConnection(factory(arguments[0], arguments[1]), arguments)) {
            Session session = connection.connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
            MessageProducer producer = session.createProducer(session.createQueue(arguments[4]));
            for (int given = 5; given + 1 < arguments.length; given += 2) {
                if (arguments[given].equals("text")) {
                    producer.send(session.createTextMessage(arguments[given + 1].replace("\\0", "\0")));
                    continue;
                }
                Message message = session.createTextMessage("text " + (given - 5) / 2);
                message.setStringProperty(arguments[given], arguments[given + 1]);
                producer.send(message);
            }
            for (Map.Entry<String, Maker> kind : arguments.length > 5 ? NOTHING : kinds().entrySet()) {
                Message message = kind.getValue().make(session);
                describe(session, message);
                producer.send(message, DeliveryMode.PERSISTENT, PRIORITY, TIME_TO_LIVE_MS);
                System.out.printf(
                        "{\"kind\": \"%s\", \"id\": \"%s\", \"timestamp\": %d, \"expiration\": %d}%n",
                        kind.getKey(), message.getJMSMessageID(), message.getJMSTimestamp(), message.getJMSExpiration());
            }
        }
    }

    static ConnectionFactory factory(String client, String url) throws Exception {
        switch (client) {
            case "activemq":
                return new org.apache.activemq.ActiveMQConnectionFactory(url);
            case "artemis":
                return new org.apache.activemq.artemis.jms.client.ActiveMQConnectionFactory(url);
            case "qpid":
                return new org.apache.qpid.jms.JmsConnectionFactory(url);
            case "rabbitmq":
                com.rabbitmq.jms.admin.RMQConnectionFactory factory = new com.rabbitmq.jms.admin.RMQConnectionFactory();
                factory.setUri(url);
                factory.setReplyToStrategy(com.rabbitmq.jms.client.HandleAnyReplyToStrategy.INSTANCE);
                return factory;
            default:
                throw new IllegalArgumentException("unknown client " + client);
        }
    }

    /** A queue. RabbitMQ's client has queues of its own, too, whose messages only this client can read. */
    static Destination queue(Session session, String client, String name) throws JMSException {
        return client.equals("rabbitmq")
                ? new com.rabbitmq.jms.admin.RMQDestination(name, "", name, name)
                : session.createQueue(name);
    }

    private static Map<String, Maker> kinds() {
        Map<String, Maker> kinds = new LinkedHashMap<>();
        kinds.put("text", session -> session.createTextMessage("t\u00e4xt \u20ac"));
        kinds.put("bytes", session -> {
            BytesMessage message = session.createBytesMessage();
            message.writeBytes(new byte[] {0, 1, 2, (byte) 0xff});
            return message;
        });
        kinds.put("map", session -> {
            MapMessage message = session.createMapMessage();
            message.setString("name", "value");
            message.setInt("number", 5);
            message.setBoolean("flag", true);
            return message;
        });
        kinds.put("stream", session -> {
            StreamMessage message = session.createStreamMessage();
            message.writeString("one");
            message.writeInt(2);
            return message;
        });
        kinds.put("object", session -> {
            ObjectMessage message = session.createObjectMessage();
            message.setObject(new ArrayList<>(List.of("serialised", new Date(0))));
            return message;
        });
        return kinds;
    }

    private static void describe(Session session, Message message) throws JMSException {
        message.setJMSCorrelationID("correlation-1");
        message.setJMSReplyTo(session.createQueue("answers"));
        message.setJMSType("kind-1");
        message.setStringProperty("JMSXGroupID", "group-1");
        message.setBooleanProperty("aBoolean", true);
        message.setByteProperty("aByte", (byte) -1);
        message.setShortProperty("aShort", (short) -2);
        message.setIntProperty("anInt", -3);
        message.setLongProperty("aLong", -4L);
        message.setFloatProperty("aFloat", 1.5f);
        message.setDoubleProperty("aDouble", 2.25);
        message.setStringProperty("aString", "t\u00e4xt");
    }

    /** A started connection that try-with-resources can close: the interface of JMS 1.1 cannot be. */
    private static final class AutoConnection implements AutoCloseable {
        final Connection connection;

        AutoConnection(ConnectionFactory factory, String[] arguments) throws JMSException {
            connection = factory.createConnection(arguments[2], arguments[3]);
            connection.start();
        }

        @Override
        public void close() throws JMSException {
            connection.close();
        }
    }
}
