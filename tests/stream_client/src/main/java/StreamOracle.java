import com.rabbitmq.stream.ByteCapacity;
import com.rabbitmq.stream.Consumer;
import com.rabbitmq.stream.Environment;
import com.rabbitmq.stream.Message;
import com.rabbitmq.stream.MessageBuilder;
import com.rabbitmq.stream.OffsetSpecification;
import com.rabbitmq.stream.Producer;
import com.rabbitmq.stream.ProducerBuilder;
import com.rabbitmq.stream.compression.Compression;
import java.math.BigDecimal;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.UUID;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;

/**
 * Publishes messages of every kind to a stream, in frames, with filter values and in packed entries of each
 * compression, and reads them back: a line of JSON for each. Arguments: port, stream, messages of each kind.
 */
public final class StreamOracle {
  private StreamOracle() {}

  public static void main(String[] arguments) throws Exception {
    int port = Integer.parseInt(arguments[0]);
    String stream = arguments[1];
    int count = Integer.parseInt(arguments[2]);
    try (Environment environment =
        Environment.builder().host("127.0.0.1").port(port).addressResolver(any -> new com.rabbitmq.stream.Address("127.0.0.1", port)).build()) {
      environment.streamCreator().stream(stream).maxLengthBytes(ByteCapacity.GB(1)).create();
      int total = 0;
      total += publish(environment, stream, count, environment.producerBuilder().stream(stream), "plain");
      total += publish(environment, stream, count,
          environment.producerBuilder().stream(stream).filterValue(message -> message.getProperties().getSubject()), "filtered");
      for (Compression compression : Compression.values()) {
        ProducerBuilder builder =
            environment.producerBuilder().stream(stream).subEntrySize(7).compression(compression);
        total += publish(environment, stream, count, builder, compression.name());
      }
      read(environment, stream, total);
    }
  }

  private static int publish(Environment environment, String stream, int count, ProducerBuilder builder, String kind)
      throws Exception {
    CountDownLatch confirmed = new CountDownLatch(count);
    try (Producer producer = builder.build()) {
      for (int number = 0; number < count; number++) {
        producer.send(message(producer.messageBuilder(), kind, number), status -> {
          if (status.isConfirmed()) {
            confirmed.countDown();
          }
        });
      }
      if (!confirmed.await(30, TimeUnit.SECONDS)) {
        throw new IllegalStateException("not confirmed: " + kind);
      }
    }
    return count;
  }

  private static Message message(MessageBuilder builder, String kind, int number) {
    byte[] body = (kind + " " + number + " täxt ").repeat(40 + number % 40).getBytes(StandardCharsets.UTF_8);
    MessageBuilder.PropertiesBuilder properties = builder.properties().subject(kind);
    switch (number % 5) {
      case 0 -> properties.messageId("id-" + number);
      case 1 -> properties.messageId(number);
      case 2 -> properties.messageId(new UUID(number, 7));
      case 3 -> properties.messageId(new byte[] {1, 2, (byte) number});
      default -> { }
    }
    if (number % 2 == 0) {
      properties.correlationId("correlation-" + number).replyTo("answers").contentType("text/plain")
          .contentEncoding("utf-8").groupId("group").groupSequence(number).userId("guest".getBytes())
          .creationTime(1_700_000_000_000L + number).absoluteExpiryTime(1_800_000_000_000L + number).to("somewhere");
    }
    MessageBuilder.ApplicationPropertiesBuilder entries = builder.applicationProperties();
    if (number % 3 != 0) {
      entries.entry("string", "täxt " + number).entry("boolean", number % 2 == 0).entry("byte", (byte) -number)
          .entry("short", (short) -number).entry("int", -number).entry("long", Long.MIN_VALUE + number)
          .entryUnsigned("ubyte", (byte) 200).entryUnsigned("ushort", (short) 60000)
          .entryUnsigned("uint", (int) 4_000_000_000L).entryUnsigned("ulong", -1L);
    }
    if (number % 7 == 0) {
      entries.entry("float", 1.5f).entry("double", 2.25).entry("char", 'ä')
          .entryTimestamp("timestamp", 1_700_000_000_000L).entry("uuid", new UUID(1, number))
          .entry("binary", new byte[] {0, (byte) 255}).entrySymbol("symbol", "symbolic");
    }
    if (number % 4 == 0) {
      builder.messageAnnotations().entry("x-routing-key", "key-" + number).entry("x-own", number);
    }
    return builder.addData(body).build();
  }

  private static void read(Environment environment, String stream, int total) throws Exception {
    CountDownLatch all = new CountDownLatch(total);
    List<String> lines = new ArrayList<>();
    try (Consumer consumer = environment.consumerBuilder().stream(stream).offset(OffsetSpecification.first())
        .messageHandler((context, message) -> {
          lines.add(json(context.offset(), context.timestamp(), message));
          all.countDown();
        }).build()) {
      if (!all.await(30, TimeUnit.SECONDS)) {
        throw new IllegalStateException(all.getCount() + " did not come");
      }
    }
    System.out.println(String.join("\n", lines));
  }

  private static String json(long offset, long timestamp, Message message) {
    Map<String, String> fields = new TreeMap<>();
    fields.put("offset", Long.toString(offset));
    fields.put("timestamp", Long.toString(timestamp));
    fields.put("body", text(Base64.getEncoder().encodeToString(message.getBodyAsBinary())));
    var properties = message.getProperties();
    if (properties != null) {
      fields.put("messageId", value(properties.getMessageId()));
      fields.put("correlationId", value(properties.getCorrelationId()));
      fields.put("replyTo", value(properties.getReplyTo()));
      fields.put("contentType", value(properties.getContentType()));
      fields.put("contentEncoding", value(properties.getContentEncoding()));
      fields.put("type", value(properties.getSubject()));
      fields.put("groupId", value(properties.getGroupId()));
      fields.put("groupSequence", Long.toString(properties.getGroupSequence()));
      fields.put("created", Long.toString(properties.getCreationTime()));
      fields.put("expires", Long.toString(properties.getAbsoluteExpiryTime()));
      fields.put("userId", properties.getUserId() == null ? "null" : value(new String(properties.getUserId())));
    }
    fields.put("properties", map(message.getApplicationProperties()));
    fields.put("annotations", map(message.getMessageAnnotations()));
    return object(fields);
  }

  private static String map(Map<String, Object> map) {
    Map<String, String> fields = new TreeMap<>();
    if (map != null) {
      map.forEach((key, item) -> fields.put(key, value(item)));
    }
    return object(fields);
  }

  private static String value(Object item) {
    if (item == null) {
      return "null";
    }
    if (item instanceof byte[] bytes) {
      return "[\"bytes\", " + text(Base64.getEncoder().encodeToString(bytes)) + "]";
    }
    String plain = item instanceof Number number ? new BigDecimal(number.toString()).toPlainString() : item.toString();
    return "[" + text(item.getClass().getSimpleName()) + ", " + text(plain) + "]";
  }

  private static String object(Map<String, String> fields) {
    List<String> parts = new ArrayList<>();
    fields.forEach((key, item) -> parts.add(text(key) + ": " + item));
    return "{" + String.join(", ", parts) + "}";
  }

  private static String text(String plain) {
    return "\"" + plain.replace("\\", "\\\\").replace("\"", "\\\"") + "\"";
  }
}
