import javax.jms.BytesMessage;
import javax.jms.Connection;
import javax.jms.DeliveryMode;
import javax.jms.Destination;
import javax.jms.JMSException;
import javax.jms.Message;
import javax.jms.MessageConsumer;
import javax.jms.MessageProducer;
import javax.jms.Session;
import javax.jms.TemporaryQueue;
import javax.jms.TemporaryTopic;
import javax.jms.TextMessage;
import javax.jms.Topic;

/** Asks, answers what others ask, or reads, by JMS, and prints a JSON object a line. */
public final class JmsPeer {
    private static final long ANSWER_TIMEOUT_MS = 60_000;
    private static final long QUIET_MS = 1_000;

    private JmsPeer() {}

    /**
     * Arguments: ask, serve or read; client (activemq, artemis, rabbitmq or qpid), url, user, password, queue. Then, to ask, kinds
     * of destinations with the name of each: queue, topic, temp-queue, temp-topic, or by-id for a temporary queue and a
     * request without a correlation ID; to serve and to read, how many messages.
     */
    public static void main(String[] arguments) throws Exception {
        Connection connection =
                JmsSender.factory(arguments[1], arguments[2]).createConnection(arguments[3], arguments[4]);
        try {
            connection.start();
            Session session = connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
            Destination requests = JmsSender.queue(session, arguments[1], arguments[5]);
            if (arguments[0].equals("ask")) {
                ask(session, requests, arguments);
            } else if (arguments[0].equals("read")) {
                read(session, requests, Integer.parseInt(arguments[6]));
            } else {
                serve(session, requests, Integer.parseInt(arguments[6]));
            }
        } finally {
            connection.close();
        }
    }

    private static void ask(Session session, Destination requests, String[] arguments) throws JMSException {
        int count = (arguments.length - 6) / 2;
        MessageConsumer[] consumers = new MessageConsumer[count];
        String[] ids = new String[count];
        MessageProducer producer = session.createProducer(requests);
        for (int number = 0; number < count; number++) {
            String kind = arguments[6 + 2 * number];
            Destination answers = destination(session, arguments[1], kind, arguments[7 + 2 * number]);
            consumers[number] = session.createConsumer(answers);
            Message message = session.createTextMessage("ask " + kind);
            message.setJMSReplyTo(answers);
            if (!kind.equals("by-id")) {
                message.setJMSCorrelationID("correlation " + kind);
            }
            producer.send(message);
            ids[number] = message.getJMSMessageID();
        }
        System.out.println("{\"asked\": " + count + "}");
        for (int number = 0; number < count; number++) {
            Message first = consumers[number].receive(ANSWER_TIMEOUT_MS);
            Message second = first == null ? null : consumers[number].receive(QUIET_MS);
            String correlation = first == null ? null : first.getJMSCorrelationID();
            System.out.printf(
                    "{\"kind\": \"%s\", \"text\": %s, \"correlation\": %s, \"more\": %b}%n",
                    arguments[6 + 2 * number], text(first),
                    ids[number].equals(correlation) ? quoted("its own ID") : quoted(correlation), second != null);
        }
    }

    private static Destination destination(Session session, String client, String kind, String name)
            throws JMSException {
        switch (kind) {
            case "queue":
                return JmsSender.queue(session, client, name);
            case "topic":
                return session.createTopic(name);
            case "temp-queue":
            case "by-id":
                return session.createTemporaryQueue();
            default:
                return session.createTemporaryTopic();
        }
    }

    private static void serve(Session session, Destination requests, int count) throws JMSException {
        MessageConsumer consumer = session.createConsumer(requests);
        for (int number = 0; number < count; number++) {
            Message message = consumer.receive(ANSWER_TIMEOUT_MS);
            Destination answers = message == null ? null : message.getJMSReplyTo();
            System.out.printf("{\"text\": %s, \"kind\": %s}%n", text(message), kindOf(answers));
            if (answers != null) {
                String asked = message instanceof TextMessage ? ((TextMessage) message).getText() : "what?";
                Message answer = session.createTextMessage("re: " + asked);
                answer.setJMSCorrelationID(message.getJMSCorrelationID());
                session.createProducer(answers).send(answer);
            }
        }
    }

    private static void read(Session session, Destination queue, int count) throws JMSException {
        MessageConsumer consumer = session.createConsumer(queue);
        for (int number = 0; number < count; number++) {
            Message message = consumer.receive(ANSWER_TIMEOUT_MS);
            if (message == null) {
                return;
            }
            System.out.printf(
                    "{\"text\": %s, \"bytes\": %s, \"correlation\": %s, \"replyTo\": %s, \"type\": %s, "
                            + "\"priority\": %d, \"persistent\": %b, \"expires\": %b, \"colour\": %s}%n",
                    text(message), bytes(message), quoted(message.getJMSCorrelationID()),
                    kindOf(message.getJMSReplyTo()), quoted(message.getJMSType()), message.getJMSPriority(),
                    message.getJMSDeliveryMode() == DeliveryMode.PERSISTENT, message.getJMSExpiration() != 0,
                    quoted(message.getStringProperty("colour")));
        }
    }

    /** The bytes of a bytes message, in hexadecimal. */
    private static String bytes(Message message) throws JMSException {
        if (!(message instanceof BytesMessage)) {
            return "null";
        }
        byte[] bytes = new byte[(int) ((BytesMessage) message).getBodyLength()];
        ((BytesMessage) message).readBytes(bytes);
        StringBuilder hexadecimal = new StringBuilder();
        for (byte one : bytes) {
            hexadecimal.append(String.format("%02x", one));
        }
        return quoted(hexadecimal.toString());
    }

    private static String kindOf(Destination destination) {
        if (destination == null) {
            return "null";
        }
        if (destination instanceof com.rabbitmq.jms.admin.RMQDestination) {
            return quoted(((com.rabbitmq.jms.admin.RMQDestination) destination).isQueue() ? "queue" : "topic");
        }
        boolean temporary = destination instanceof TemporaryQueue || destination instanceof TemporaryTopic;
        // Clients have one class for all kinds, which is a queue and a topic.
        String name = destination.getClass().getSimpleName();
        boolean topic = name.contains("Topic") || (!name.contains("Queue") && destination instanceof Topic);
        return quoted((temporary ? "temp-" : "") + (topic ? "topic" : "queue"));
    }

    private static String text(Message message) throws JMSException {
        if (message == null) {
            return "null";
        }
        return message instanceof TextMessage ? quoted(((TextMessage) message).getText()) : quoted("not a text");
    }

    private static String quoted(String text) {
        return text == null ? "null" : '"' + text.replace("\\", "\\\\").replace("\"", "\\\"") + '"';
    }
}
