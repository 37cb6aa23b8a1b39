import com.rabbitmq.stream.Address;
import com.rabbitmq.stream.Consumer;
import com.rabbitmq.stream.Environment;
import com.rabbitmq.stream.OffsetSpecification;
import com.sun.management.OperatingSystemMXBean;
import java.lang.management.ManagementFactory;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.LongAdder;

/**
 * Reads a stream from its first message, some times over in one JVM, which is warm from the second time on.
 *
 * <p>Arguments: port, stream, messages, times. Prints for each time the seconds, and the CPU seconds of this process.
 */
public final class StreamReader {
  private static final int CREDITS = 10;

  private StreamReader() {}

  public static void main(String[] arguments) throws Exception {
    int port = Integer.parseInt(arguments[0]);
    long messages = Long.parseLong(arguments[2]);
    Address address = new Address("127.0.0.1", port);
    try (Environment environment =
        Environment.builder().host("127.0.0.1").port(port).addressResolver(any -> address).build()) {
      for (int time = 0; time < Integer.parseInt(arguments[3]); time++) {
        read(environment, arguments[1], messages);
      }
    }
  }

  private static void read(Environment environment, String stream, long messages) throws Exception {
    OperatingSystemMXBean system = (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
    CountDownLatch done = new CountDownLatch(1);
    LongAdder bytes = new LongAdder();
    long[] left = {messages};
    long began = System.nanoTime();
    long cpu = system.getProcessCpuTime();
    Consumer consumer =
        environment
            .consumerBuilder()
            .stream(stream)
            .offset(OffsetSpecification.first())
            .flow()
            .initialCredits(CREDITS)
            .builder()
            .messageHandler(
                (context, message) -> {
                  bytes.add(message.getBodyAsBinary().length);
                  if (--left[0] == 0) {
                    done.countDown();
                  }
                })
            .build();
    done.await();
    double seconds = (System.nanoTime() - began) / 1e9;
    System.out.printf("%.6f %.6f%n", seconds, (system.getProcessCpuTime() - cpu) / 1e9);
    consumer.close();
  }
}
